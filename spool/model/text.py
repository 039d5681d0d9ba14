"""Parts of error texts: shortened values, and the name that is most similar to a mistyped name. Pure."""

import reprlib
from collections.abc import Iterable

from spool.errors import QueueNotFound

LONGEST_REASON = 1000  # in characters; people read the reason, and each copy of the message has the reason

_MOST_CHARACTERS = 80
_MOST_LISTED = 20


def printable(text: str, keep: str = "") -> str:
    """Escape the control characters of a text, except the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error's first sentence, e.g. ``; did you mean orders?``, or "" if no name is similar."""
    from difflib import get_close_matches  # imported here, because it is needed only for a mistyped name

    lowered = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), lowered, n=1)
    return f"; did you mean {lowered[found[0]]}?" if found else ""


def no_queue(name: str, queues: Iterable[str], *how: str, where: tuple[str, ...] = ()) -> QueueNotFound:
    """Return the error for a queue that is not among ``queues``. The error text suggests a similar name, lists the
    queues, and shows how to create the queue.

    ``name`` has the form of a queue's name (``check_queue_name``). ``how``: the parts of the advice; by default, the
    advice is to create the queue. ``where``: the parts of the text's beginning.
    """
    names = sorted(queues)
    there = ", ".join(names[:_MOST_LISTED]) or "none yet"
    there += f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    meant = did_you_mean(name, names)
    otherwise = f"{meant} Otherwise" if meant else ":"
    how = how or (f"create it with spool-admin queue create {name}",)
    return QueueNotFound(*where, f"there is no queue {name!r} (queues: {there}){otherwise} ", *how)


def storable(value: object, most: int = 4 * _MOST_CHARACTERS) -> str:
    """Return the text of any value, cut to ``most`` characters. A character that UTF-8 cannot encode is escaped.

    If the value's ``__str__`` fails, the text is empty, so that an application's exception with a faulty ``__str__``
    cannot prevent a rollback.
    """
    try:
        return str(value)[:most].encode("utf-8", "backslashreplace").decode()[:most]
    except BaseException:  # (``__str__`` raised it, not Ctrl-C, which waits for the end of a rollback)
        return ""


def one_line(text: object) -> str:
    """Return a text as a reason: one line of at most ``LONGEST_REASON`` characters that UTF-8 can express.

    Each white space is one blank, and other control characters are escaped. The reason is empty for an exception whose
    ``__str__`` fails.
    """
    return printable(" ".join(storable(text, 8 * LONGEST_REASON).split()))[:LONGEST_REASON]


def class_name(value: object) -> str:
    """Return the name of a value's class, even if its metaclass hides the name."""
    return storable(type.__dict__["__name__"].__get__(type(value)))


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 file``, ``2 files``, ``1,000 files``. ``many``: the plural of the noun;
    by default, the singular with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


class _Short(reprlib.Repr):
    """Formats long values without their middle."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _MOST_CHARACTERS
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = self.maxdeque = 6
        self.maxlevel = 3

    def repr_bytes(self, value: bytes | bytearray, level: int) -> str:
        half = _MOST_CHARACTERS // 2
        return repr(value) if len(value) <= _MOST_CHARACTERS else f"{value[:half]!r}...{value[-half:]!r}"

    repr_bytearray = repr_bytes


_short = _Short()


def shown(value: object) -> str:
    """Return ``repr`` of any value, cut to a few hundred characters."""
    return shortened(_short.repr(value))


def shortened(text: str) -> str:
    """Return the text, cut to a few hundred characters. A character that UTF-8 cannot encode is escaped."""
    most = 4 * _MOST_CHARACTERS
    text = text[: most + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."
