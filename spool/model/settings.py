"""The queues and options of a space as checked values. How they stand in ``space.toml`` is ``settings_file``'s.

Each option has one check: what it takes, in words and as a function. An unknown option or a value of another kind is an
InvalidArgument that names the option and what is allowed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from spool.errors import InvalidArgument
from spool.model import layout
from spool.model.checks import ValueCheck, seconds, text, unwritable, whole
from spool.model.text import shortened, shown

BODY_LIMIT_BYTES = 256 << 20
HARD_BODY_LIMIT_BYTES = 2**32 - 1
HEADERS_LIMIT_BYTES = 8 << 10
HEADERS_LIMIT = 64
HARD_HEADERS_LIMIT_BYTES = 1 << 20
HARD_HEADERS_LIMIT = 4_096

FIFO, LIFO, PRIORITY, TIME = "fifo", "lifo", "priority", "time"
TOP, BEFORE = "top", "before"
AS_BYTES = "bytes"  # a type of dropped files
EXPIRY_MODES = ("error", "drop")
DURABILITIES = ("flush", "none")
SYNC_METHODS = ("auto", "ordered", "strict")

# What a queue has that is made now and says nothing else. It is written into space.toml with the queue, so that those
# that stand there without it, written by hand, go on as they are.
OF_NEW_QUEUES: Mapping[str, Any] = {"retry_delay": 1.0, "retry_delay_max": 300.0}

_SUFFIX = re.compile(r"(\.[A-Za-z0-9_+-]{1,32}){1,3}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,100}/[A-Za-z0-9.+-]{1,100}( *; *[\w.-]{1,50}=[\w.-]{1,50})*", re.ASCII)
_LONGEST_TYPES = 1000  # characters: all stand in one line of space.toml
_MOST_SECONDS = 1e10
_MOST = 2**31
_LARGEST = 2**62


@dataclass(frozen=True)
class QueueConfig:
    """One queue with its options, checked; ``spool.QueueOptions`` tells each."""

    name: str
    order: tuple[str, ...] = (FIFO,)
    out_of_order: tuple[str, ...] = ()
    retries: int | None = None
    retry_delay: float = 0.0
    retry_delay_max: float | None = None
    first_delay: float = 0.0
    error_queue: str | None = None
    reply_queue: str | None = None
    failure_queue: str | None = None
    on_expiry: str = "error"
    ordered: bool = False
    max_messages: int | None = None
    max_bytes: int | None = None
    deduplication_window: float = 300.0
    capacity_high: str | None = None
    capacity_low: str | None = None
    capacity_command: str | None = None
    capacity_timeout: float = 60.0
    durability: str = "flush"
    drop_types: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class SpaceConfig:
    """A whole space: its queues by name, and its options, checked; ``spool.SpaceOptions`` tells each."""

    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_messages: int | None = None
    max_bytes: int | None = None
    max_body_bytes: int = BODY_LIMIT_BYTES
    max_headers: int = HEADERS_LIMIT
    max_headers_bytes: int = HEADERS_LIMIT_BYTES
    drop_settle: float = 60.0
    sync_method: str = "auto"
    network_file_system: str | None = None
    mirror: str | None = None

    @cached_property
    def may_lose(self) -> frozenset[str]:
        """The queues whose messages a power cut may take."""
        return frozenset(name for name, queue in self.queues.items() if queue.durability == "none")

    @cached_property
    def has_marks(self) -> bool:
        """Whether any queue has a mark."""
        return any(queue.capacity_high is not None for queue in self.queues.values())

    @cached_property
    def has_limits(self) -> bool:
        """Whether anything has a limit on how much it holds."""
        limits = {self.max_messages, self.max_bytes}
        for queue in self.queues.values():
            limits |= {queue.max_messages, queue.max_bytes}
        return limits != {None}


QUEUE_OPTIONS = tuple(f.name for f in fields(QueueConfig) if f.name != "name")
SPACE_OPTIONS = tuple(f.name for f in fields(SpaceConfig) if f.name != "queues")


# -- what an option takes ---------------------------------------------------------------------------------------------


def _require(allowed: bool) -> None:
    if not allowed:
        raise ValueError


def _optional(checked: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else checked(value)


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        _require(value in allowed)
        return str(value)

    return checked


def _words(value: Any) -> tuple[str, ...]:
    """Return a tuple of words, from a list or from a text with commas."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    _require(isinstance(words, list | tuple) and all(isinstance(word, str) for word in words))
    return tuple(words)


def _order(value: Any) -> tuple[str, ...]:
    words = _words(value)
    _require(bool(words))
    if words[-1] not in (FIFO, LIFO):
        words += (FIFO,)
    _require(set(words[:-1]) <= {PRIORITY, TIME} and len(set(words)) == len(words))
    return words


def _out_of_order(value: Any) -> tuple[str, ...]:
    words = () if value == "" else _words(value)
    _require(set(words) <= {TOP, BEFORE})
    return tuple(word for word in (TOP, BEFORE) if word in words)


def _flag(value: Any) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


def _mark(value: Any) -> str:
    parse_mark(value)
    return str(value)


def _absolute(value: Any) -> str:
    _require(text(value).startswith("/"))
    return text(value)


def _drop_types(value: Any) -> dict[str, str]:
    """Return types by suffixes, which are made lower case: a file is taken by its suffix in any case."""
    _require(isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair))
    found = {suffix.lower(): kind for suffix, kind in value.items()}
    _require(len(found) == len(value) and sum(map(len, [*found, *found.values()])) <= _LONGEST_TYPES)
    for suffix, kind in found.items():
        _require(_SUFFIX.fullmatch(suffix) is not None and suffix not in layout.UNFINISHED_SUFFIXES)
        _require(kind == AS_BYTES or _MEDIA_TYPE.fullmatch(kind) is not None)
    return found


_delay = partial(seconds, most=_MOST_SECONDS)
_A_DELAY = f"a number of seconds, from 0 to less than {_MOST_SECONDS:.0f}"
_A_MARK = 'a mark like "80%", "5000 messages" or "1 GiB", or left out'
_A_LIMIT = f"a whole number from 0 to {_LARGEST}, or left out for no limit"
_A_QUEUE = "the name of a queue, or left out"
_QUEUE_CHECKS = {
    "order": ValueCheck(
        "priority and time, in this or the other order, each or none, then fifo or lifo: e.g. fifo or priority,fifo",
        _order,
    ),
    "out_of_order": ValueCheck("top, before, both or none", _out_of_order),
    "retries": ValueCheck(
        f"a whole number from 0 to {_MOST}, or left out to try for ever", _optional(partial(whole, most=_MOST))
    ),
    "retry_delay": ValueCheck(_A_DELAY, _delay),
    "retry_delay_max": ValueCheck(f"{_A_DELAY}, or left out for delays that do not grow", _optional(_delay)),
    "first_delay": ValueCheck(_A_DELAY, _delay),
    "error_queue": ValueCheck(_A_QUEUE, _optional(text)),
    "reply_queue": ValueCheck(_A_QUEUE, _optional(text)),
    "failure_queue": ValueCheck(_A_QUEUE, _optional(text)),
    "deduplication_window": ValueCheck(_A_DELAY, _delay),
    "capacity_high": ValueCheck(_A_MARK, _optional(_mark)),
    "capacity_low": ValueCheck(_A_MARK, _optional(_mark)),
    "capacity_command": ValueCheck("what the shell is to run, or left out", _optional(text)),
    "capacity_timeout": ValueCheck(_A_DELAY, _delay),
    "max_messages": ValueCheck(_A_LIMIT, _optional(partial(whole, most=_LARGEST))),
    "max_bytes": ValueCheck(_A_LIMIT, _optional(partial(whole, most=_LARGEST))),
    "ordered": ValueCheck("true or false", _flag),
    "on_expiry": ValueCheck(f"one of {', '.join(EXPIRY_MODES)}", _one_of(*EXPIRY_MODES)),
    "durability": ValueCheck(f"one of {', '.join(DURABILITIES)}", _one_of(*DURABILITIES)),
    "drop_types": ValueCheck(
        'suffixes with a content type or "bytes" for each, e.g. {".csv": "text/csv", ".txt": "bytes"}', _drop_types
    ),
}
_SPACE_CHECKS = {
    "max_messages": ValueCheck(_A_LIMIT, _optional(partial(whole, most=_LARGEST))),
    "max_bytes": ValueCheck(_A_LIMIT, _optional(partial(whole, most=_LARGEST))),
    "max_body_bytes": ValueCheck(f"1 to {HARD_BODY_LIMIT_BYTES}", partial(whole, most=HARD_BODY_LIMIT_BYTES, least=1)),
    "max_headers": ValueCheck(f"0 to {HARD_HEADERS_LIMIT}", partial(whole, most=HARD_HEADERS_LIMIT)),
    "max_headers_bytes": ValueCheck(f"0 to {HARD_HEADERS_LIMIT_BYTES}", partial(whole, most=HARD_HEADERS_LIMIT_BYTES)),
    "drop_settle": ValueCheck(_A_DELAY, _delay),
    "sync_method": ValueCheck(f"one of {', '.join(SYNC_METHODS)}", _one_of(*SYNC_METHODS)),
    "network_file_system": ValueCheck('the name of one, e.g. "nfs"', _optional(text)),
    "mirror": ValueCheck("the absolute path of a directory", _optional(_absolute)),
}


def _checked(
    options: Mapping[str, Any], checks: Mapping[str, ValueCheck], where: str, tables: tuple[str, ...] = ()
) -> dict[str, Any]:
    found = {}
    for option, value in options.items():
        check = checks.get(option)
        if check is None:
            known = ", ".join((*checks, *tables))
            raise InvalidArgument(f"{where}there is no option {shown(option)}; there are {known}")
        try:
            found[option] = check.convert(value)
        except UnicodeEncodeError:
            raise unwritable(f"{where}{option}", value) from None
        except ValueError:
            raise InvalidArgument(f"{where}{option} is {check.expected}, not {_given(value)}") from None
    return found


def _given(value: object) -> str:
    if isinstance(value, Mapping):
        return shortened(", ".join(f"{key}={one}" for key, one in value.items())) or "empty"
    return shortened(",".join(map(str, value))) if isinstance(value, list | tuple) else shown(value)


# -- marks of how full a queue is --------------------------------------------------------------------------------------

PERCENT, MESSAGES, BYTES = "%", "messages", "bytes"
_MARK = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z%]+)")
_UNITS = {
    "%": (PERCENT, 1), "message": (MESSAGES, 1), "messages": (MESSAGES, 1), "byte": (BYTES, 1), "bytes": (BYTES, 1),
    "B": (BYTES, 1), "kB": (BYTES, 10**3), "MB": (BYTES, 10**6), "GB": (BYTES, 10**9), "TB": (BYTES, 10**12),
    "KiB": (BYTES, 2**10), "MiB": (BYTES, 2**20), "GiB": (BYTES, 2**30), "TiB": (BYTES, 2**40),
}  # fmt: skip


class Mark(NamedTuple):
    """So much of a queue's limit, so many messages, or so many bytes of bodies."""

    amount: float
    unit: str


def parse_mark(text: object) -> Mark:
    """Parse a mark, e.g. ``80%``. Raises ValueError if the text is not one."""
    found = _MARK.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2] not in _UNITS:
        raise ValueError(text)
    unit, factor = _UNITS[found[2]]
    amount = float(found[1]) * factor
    if unit == PERCENT and not 0 <= amount <= 100:
        raise ValueError(text)
    return Mark(amount, unit)


def fullness(unit: str, messages: int, size: int, max_messages: int | None, max_bytes: int | None) -> float:
    """Return how full a queue is, in the unit of a mark. In percent, the limit that is nearer counts."""
    if unit == MESSAGES:
        return messages
    if unit == BYTES:
        return size
    shares = [
        100.0 * there / limit if limit else 100.0
        for there, limit in ((messages, max_messages), (size, max_bytes))
        if limit is not None
    ]
    return max(shares, default=0.0)


# -- checking ---------------------------------------------------------------------------------------------------------


def check_queue_name(name: object, where: str = "") -> str:
    """Return the name. Raises InvalidArgument, which says what a name may be."""
    if not isinstance(name, str) or not layout.is_queue_name(name):
        raise InvalidArgument(
            f"{where}{shown(name)} cannot be a queue's name: it takes 1 to 127 letters, digits, '.', '_' or '-', "
            "and does not start with a dot"
        )
    return name


def queue_options(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return checked options of a queue, of whatever name."""
    found = _checked(options, _QUEUE_CHECKS, where)
    for option in ("error_queue", "reply_queue", "failure_queue"):
        if found.get(option) is not None:
            check_queue_name(found[option], f"{where}{option}: ")
    return found


def queue_config(
    name: str, options: Mapping[str, Any], where: str = "", defaults: Mapping[str, Any] | None = None
) -> QueueConfig:
    """Return a checked queue; InvalidArgument names the option and what it takes.

    ``where`` opens the text: a file's name. ``defaults``: checked options, for those that are not given.
    """
    check_queue_name(name, where)
    where = f"{where}queue {name}: "
    own = queue_options(options, where)
    config = replace(QueueConfig(name), **{**(defaults or {}), **own})
    if own.get("error_queue") == name:
        raise InvalidArgument(f"{where}a queue cannot be its own error_queue: name another, or leave it out")
    if config.error_queue == name:  # the space's error queue has none itself
        config = replace(config, error_queue=None)
    _check_marks(config, where)
    if config.retry_delay_max is not None and config.retry_delay_max < config.retry_delay:
        raise InvalidArgument(
            f"{where}retry_delay_max is at least retry_delay, {config.retry_delay:g}, not {config.retry_delay_max:g}"
        )
    return config


def made_queue(
    name: str, options: Mapping[str, Any], defaults: Mapping[str, Any], known: Mapping[str, Any] | None = None
) -> QueueConfig:
    """Check a queue that is made now or changed.

    ``options`` override those that are ``known`` of it, and these the space's ``defaults``. A ``retry_delay`` above
    ``retry_delay_max`` raises that, too, unless that is given as well.
    """
    check_queue_name(name)
    given = queue_options(options, f"queue {name}: ")
    own = {option: value for option, value in OF_NEW_QUEUES.items() if option not in defaults}
    together = {**own, **(known or {}), **given}
    delay, longest = ({**defaults, **together}.get(option) for option in ("retry_delay", "retry_delay_max"))
    if "retry_delay_max" not in given and longest is not None and delay is not None:
        together["retry_delay_max"] = max(delay, longest)
    return queue_config(name, together, defaults=defaults)


def differences(present: object, wanted: object, options: Iterable[str]) -> str:
    """Name the options, of these, that differ between two configurations: ``retries is 3, not 5``; "" if none does."""
    pairs = ((option, getattr(present, option), getattr(wanted, option)) for option in options)
    return ", ".join(
        f"{option} is {_given(here)}, not {_given(there)}" for option, here, there in pairs if here != there
    )


def _check_marks(config: QueueConfig, where: str) -> None:
    if config.capacity_high is None:
        for option in ("capacity_low", "capacity_command"):
            if getattr(config, option) is not None:
                raise InvalidArgument(f"{where}{option} needs a capacity_high")
        return
    high, low = parse_mark(config.capacity_high), parse_mark(config.capacity_low or config.capacity_high)
    if high.unit != low.unit or low.amount > high.amount:
        raise InvalidArgument(
            f"{where}capacity_low is at most capacity_high, {config.capacity_high}, in the same unit, "
            f"not {config.capacity_low}"
        )
    if high.unit == PERCENT and config.max_messages is None and config.max_bytes is None:
        raise InvalidArgument(f"{where}capacity_high in percent needs max_messages or max_bytes: set one of them")


def space_config(options: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]], where: str = "") -> SpaceConfig:
    """Return a checked space with its queues' options; InvalidArgument names the option and what it takes."""
    options = dict(options)
    defaults = options.pop("defaults", {})
    if not isinstance(defaults, Mapping):
        raise InvalidArgument(f"{where}defaults are options of queues, not {shown(defaults)}")
    defaults = queue_options(defaults, f"{where}defaults: ")
    config = SpaceConfig(defaults=defaults, **_checked(options, _SPACE_CHECKS, where, ("defaults", "queues")))
    return replace(config, queues={name: queue_config(name, queues[name], where, defaults) for name in queues})
