"""Options that several commands share: times, sizes, filters, and the options of a queue."""

import math
import re
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xaspool_scripts.terminal.exit_codes import FAILED
from xaspool_scripts.terminal.program import AnyFunction, Failure, complete_queue, describe, note

if TYPE_CHECKING:
    from spool.model.checks import Option

_Thing = TypeVar("_Thing")

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SHORTEST_SECONDS = 0.1
_MESSAGE_ID = re.compile(r"[0-9a-fA-F]{32}")
_DURATION = re.compile(r"([0-9]*\.?[0-9]+) ?([smhdw]?)")


def moment(text: str) -> float:
    """Parse a moment: seconds since the epoch, or an ISO date and time. A time without a zone is local."""
    for read in (float, lambda text: datetime.fromisoformat(text).timestamp()):
        try:
            return read(text)
        except (ValueError, OverflowError, OSError):
            continue
    span = "; a time from now on is written with --delay or --time-to-live" if _DURATION.fullmatch(text) else ""
    raise click.BadParameter(f"{text!r} is neither seconds since the epoch nor a time like 2030-01-31T08:00{span}")


def duration(text: str) -> float:
    """Parse a time span into seconds: ``30``, or with a unit: ``90s``, ``15m``, ``2h``, ``7d``, ``1w``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not math.isfinite(seconds := float(match[1]) * _UNITS[match[2] or "s"]):
        raise click.BadParameter(f"{text!r} is neither a number of seconds nor a time like 90s, 15m, 2h or 7d")
    return seconds


def past(text: str) -> float:
    """Parse a time as `moment` does, or a time span before now with a unit, e.g. ``2h``."""
    if text[-1:] in _UNITS and _DURATION.fullmatch(text):
        return time.time() - duration(text)
    try:
        return moment(text)
    except click.BadParameter:
        form = "a time like 2030-01-31T08:00, nor a time span like 90s, 15m, 2h or 7d, which means so long ago"
        raise click.BadParameter(f"{text!r} is neither {form}") from None


def duration_or_forever(text: str) -> float | None:
    """Parse a time span as `duration` does; ``forever`` gives None."""
    if text == "forever":
        return None
    try:
        return duration(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, nor forever") from None


def lifetime(text: str) -> float:
    """Parse a time span as `duration` does, but refuse 0."""
    seconds = duration(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} would let the message expire at once: leave it out, and it never expires")
    return seconds


def short_duration(text: str) -> float:
    """Parse a time span of at least 0.1 seconds, e.g. the time limit of a call."""
    seconds = duration(text)
    if seconds < _SHORTEST_SECONDS:
        raise click.BadParameter(f"{text!r} is less than {_SHORTEST_SECONDS} seconds, the shortest time")
    return seconds


def size(text: str) -> int:
    """Parse a size into bytes: ``1048576``, or a number with a unit: ``500 kB``, ``1 GiB``."""
    from spool.model.settings import BYTES, parse_mark

    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        mark = parse_mark(text)
        if mark.unit == BYTES:
            return int(mark.amount)
    raise click.BadParameter(f"{text!r} is neither a number of bytes nor a size like 500 kB, 64 MiB or '1 GiB'")


def message_id(text: str) -> str:
    """Check the form of a message id, but not whether the message exists."""
    if _MESSAGE_ID.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is not a message id, which is 32 hexadecimal digits")
    return text


def group(text: str) -> str:
    """Check that this machine has a user group of this name."""
    import grp

    try:
        return grp.getgrnam(text).gr_name
    except KeyError:
        raise click.BadParameter(f"there is no group {text!r} on this machine") from None


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a whole number") from None


class _None:
    """The value ``none`` of a command-line option. It removes the option from the queue."""

    def __repr__(self) -> str:
        return "none"


NONE = _None()


def or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser for ``none`` and for the values that `read` parses."""
    return lambda text: NONE if text == "none" else read(text)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave. The value ``none`` becomes None."""
    return {name: None if value is NONE else value for name, value in options.items() if value not in (None, ())}


def by_queue(
    given: tuple[str, ...], kind: str, form: str, example: str, default: Callable[[str], str] | None = None
) -> dict[str, str]:
    """Parse texts such as ``QUEUE=SERVICE`` into targets by queue. ``kind``, ``form``, ``example``: parts of error
    texts.

    ``default`` returns the target for a text that names only a queue. Without a ``default``, such a text is an error.
    """
    targets: dict[str, str] = {}
    for text in given:
        queue, sign, target = text.partition("=")
        if queue and not sign and default is not None:
            sign, target = "=", default(queue)
        if not (queue and sign and target):
            raise click.BadParameter(f"{text!r} is not {form}, e.g. {example}")
        if queue in targets:
            raise click.BadParameter(f"the queue {queue} has two {kind}s: give it one")
        targets[queue] = target
    return targets


def _pairs(texts: tuple[str, ...], form: str) -> dict[str, str]:
    """Parse texts such as NAME=VALUE; no name may occur twice. ``form``: a description of the right form, for an error
    text."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{text!r} is not {form}")
        if name in pairs:
            raise click.BadParameter(f"{name!r} is given twice")
        pairs[name] = value
    return pairs


def _drop_types(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """Parse the values of --drop-type. Return None without values, because the user has then not given the option."""
    return NONE if values == ("none",) else _pairs(values, "SUFFIX=TYPE, e.g. .csv=text/csv") or None


def _drop_ignore(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    """Parse the values of --drop-ignore. Return None without values, because the user has then not given the option."""
    return [] if values == ("none",) else list(values) or None


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    return _pairs(values, "NAME=VALUE") or None


# For each metavar, the parser of the option's values, and the end of the option's help text, which describes the form
# of a value.
_WRITTEN: dict[str, tuple[Callable[[str], Any], str]] = {
    "TIME": (duration, " Written in seconds or e.g. 5m."),
    "SIZE": (size, " Written in bytes or e.g. '1 GiB'."),
    "MOMENT": (moment, " Written e.g. 2030-01-31T08:00."),
    "N": (whole, ""),
    "ID": (message_id, ""),
}
# The options that may be given several times: for each metavar, the option's name, and the parser of the values.
_SEVERAL = {
    "NAME=VALUE": ("--header", _headers), "SUFFIX=TYPE": ("--drop-type", _drop_types),
    "PATTERN": ("--drop-ignore", _drop_ignore),
}  # fmt: skip


def _default(value: object) -> str:
    if not value or isinstance(value, dict):
        return ""
    if isinstance(value, tuple):
        return f" Default: {', '.join(value)}."
    return f" Default: {value:.10g}." if isinstance(value, int | float) else f" Default: {value}."


def options_of(
    listed: Mapping[str, "Option"],
    *,
    removable: Container[str] = (),
    types: Mapping[str, Callable[[str], Any]] = MappingProxyType({}),
) -> Callable[[AnyFunction], AnyFunction]:
    """Add listed options to a command.

    ``removable``: the options that the value ``none`` removes. ``types``: for some options, a parser
    that replaces the parser of the metavar.
    """

    def add(function: AnyFunction) -> AnyFunction:
        decorated: Any = function
        for name, (check, meaning, default) in reversed(list(listed.items())):
            text = re.sub(r"\{(\w+)\}", lambda other: f"--{other[1].replace('_', '-')}", meaning)
            written, form = _WRITTEN.get(check.metavar, (str, ""))
            option = f"--{name.replace('_', '-')}"
            settings: dict[str, Any] = {"metavar": check.metavar, "help": f"{text}{form}{_default(default)}"}
            if check.metavar == "FLAG":
                settings = {"help": text, "default": None} | ({} if name in removable else {"is_flag": True})
                option = f"{option}/--not-{name}" if name in removable else option
            elif check.metavar in _SEVERAL:
                option, callback = _SEVERAL[check.metavar]
                settings |= {"multiple": True, "callback": callback}
                settings["help"] += " May be given several times."
            else:
                kind = types.get(name, written)
                settings["type"] = or_none(kind) if name in removable else kind
                settings["shell_complete"] = complete_queue if check.metavar == "QUEUE" else None
            decorated = click.option(option, name, **settings)(decorated)
        return decorated  # type: ignore[no-any-return]

    return add


_FILTERS = (
    click.option(
        "--id", "message_id", type=message_id, multiple=True, metavar="ID",
        help="Only the message with this id; may be given several times.",
    ),
    click.option(
        "--reason", metavar="TEXT",
        help="Only messages whose failure reason contains this text; upper and lower case differ.",
    ),
    click.option(
        "--since", type=past, metavar="TIME",
        help="Only messages that failed last, or else were put, at this time or later: in seconds since the epoch, or "
        "e.g. 2030-01-31T08:00 in local time, or 2h for two hours ago.",
    ),
    click.option(
        "--until", type=past, metavar="TIME",
        help="Only messages that failed last, or else were put, before this time: in seconds since the epoch, or e.g. "
        "2030-01-31T08:00 in local time, or 2h for two hours ago.",
    ),
    click.option("--correlation-id", metavar="TEXT", help="Only messages with this correlation id."),
    click.option(
        "--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
        help="Only messages with this header; may be given several times.",
    ),
    click.option(
        "--older-than", type=duration, metavar="TIME",
        help="Only messages that failed last, or else were put, longer ago than this, in seconds or e.g. 15m, 2h, 7d.",
    ),
)  # fmt: skip
yes_option = click.option(
    "--yes", "-y", is_flag=True, help="Go ahead without the question that the command asks on a terminal."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Count the messages, and change nothing.")


def filter_options(function: AnyFunction) -> AnyFunction:
    """Add the options that choose messages of a queue. A message must match all options that are given."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def confirm(question: str, yes: bool, otherwise: str = "nothing was deleted") -> None:
    """Ask a question on a terminal. If the answer is no, the command fails with the text ``otherwise``.

    Without a terminal, or with --yes, the answer is yes.
    """
    if not yes and sys.stdin is not None and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Failure(otherwise)


@contextmanager
def progress(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal. Yield the function that sets the number of done steps."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not (shown and console.is_terminal), transient=True) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda done: bar.update(task, completed=done)


pause_after_option = click.option(
    "--pause-after", metavar="N", type=click.IntRange(0, 1000), default=10, show_default=True,
    help="Pause, for longer each time, when so many messages have failed one after another with the same kind of "
    "failure; 0: never. After a pause, one message shows whether the service works again.",
)  # fmt: skip
"""The option of programs that call a service or a function for each message."""


def attempt_each(things: Sequence[_Thing], act: Callable[[_Thing], object]) -> list[str]:
    """Call ``act`` with each thing, also after errors, and return the texts of the errors.

    If there is only one thing, raise its error.
    """
    from spool.errors import BadMessageId, InvalidArgument, MessageInUse, QueueNotFound

    if len(things) == 1:
        act(things[0])
        return []
    failed = []
    for thing in things:
        try:
            act(thing)
        except (BadMessageId, InvalidArgument, MessageInUse, QueueNotFound) as error:
            failed.append(describe(error))
    return failed


def fail(failed: Sequence[str], remark: str = "", code: int = FAILED) -> None:
    """Print all texts, the last one with the remark as a Failure. Without texts, do nothing."""
    for text in failed[:-1]:
        note(text)
    if failed:
        raise Failure(f"{failed[-1]}{remark}", code)
