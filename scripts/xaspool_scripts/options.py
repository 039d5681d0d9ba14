"""Options that several commands share: how times, filters and a queue's options are written on the command line."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import click

from xaspool_scripts.common import AnyFunction, complete_queue

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+) ?([smhdw]?)")


def moment(text: str) -> float:
    """Seconds since the epoch, or an ISO date and time (local, unless it names its zone)."""
    for read in (float, lambda text: datetime.fromisoformat(text).timestamp()):
        try:
            return read(text)
        except (ValueError, OverflowError, OSError):
            continue
    raise click.BadParameter(f"{text!r} is neither seconds since the epoch nor a time like 2030-01-31T08:00")


def duration(text: str) -> float:
    """Seconds: ``30``, or with a unit: ``90s``, ``15m``, ``2h``, ``7d``, ``1w``. Every time span is of this type."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not math.isfinite(seconds := float(found[1]) * _UNITS[found[2] or "s"]):
        raise click.BadParameter(f"{text!r} is neither a number of seconds nor a time like 90s, 15m, 2h or 7d")
    return seconds


def duration_or_forever(text: str) -> float | None:
    """Seconds as ``duration`` has them, or ``forever``: None."""
    if text == "forever":
        return None
    try:
        return duration(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, nor forever") from None


def size(text: str) -> int:
    """Bytes: ``1048576``, or a number with a unit: ``500 kB``, ``1 GiB``. The type of every option that is a size."""
    from spool.marks import BYTES, parse_mark

    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        mark = parse_mark(text)
        if mark.unit == BYTES:
            return int(mark.amount)
    raise click.BadParameter(f"{text!r} is neither a number of bytes nor a size like 500 kB, 64 MiB or '1 GiB'")


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a whole number") from None


class _Nothing:
    """What ``none`` says: the value is taken away."""

    def __repr__(self) -> str:
        return "none"


NOTHING = _Nothing()


def or_nothing(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """What ``read`` takes, or ``none``."""

    def read_or_none(text: str) -> Any:
        return NOTHING if text == "none" else read(text)

    return read_or_none


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, with None where ``none`` was."""
    return {name: None if value is NOTHING else value for name, value in options.items() if value not in (None, ())}


def headers(given: tuple[str, ...]) -> dict[str, str]:
    """``NAME=VALUE``, several times."""
    found: dict[str, str] = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--header")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--header")
        found[name] = value
    return found


# -- a queue's options -------------------------------------------------------------------------------------------------

_SECONDS = "SECONDS"
_QUEUE_OPTIONS: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("--order", or_nothing(str), "CRITERIA", "E.g. fifo, lifo, priority,fifo or priority,time,lifo."),
    ("--out-of-order", or_nothing(str), "WAYS", "What a put may ask for: top, before, or top,before."),
    ("--retries", or_nothing(whole), "N", "Tries after the first; else it is tried for ever."),
    ("--retry-delay", or_nothing(duration), _SECONDS, "Wait so long after a failed try."),
    ("--retry-delay-max", or_nothing(duration), _SECONDS, "Double the wait with each try, up to so long."),
    ("--first-delay", or_nothing(duration), _SECONDS, "Wait so long before the first try."),
    ("--error-queue", or_nothing(str), "QUEUE", "Where it goes after all tries."),
    ("--reply-queue", or_nothing(str), "QUEUE", "For messages that name none."),
    ("--failure-queue", or_nothing(str), "QUEUE", "For messages that name none."),
    ("--on-expiry", or_nothing(str), "WHERE", "What is past its time: error (to the error queue) or drop."),
    ("--max-messages", or_nothing(whole), "N", "Refuse more."),
    ("--max-bytes", or_nothing(whole), "N", "Refuse more bytes of bodies."),
    ("--deduplication-window", or_nothing(duration), _SECONDS, "How long a deduplication key is remembered."),
    ("--capacity-high", or_nothing(str), "MARK", "E.g. 80%, '5000 messages' or '1 GiB': run the command."),
    ("--capacity-low", or_nothing(str), "MARK", "And not again before it was down to this."),
    ("--capacity-command", or_nothing(str), "COMMAND", "For the shell; SPOOL_QUEUE says which queue."),
    ("--capacity-timeout", or_nothing(duration), _SECONDS, "End the command after so long."),
)


def queue_options(function: AnyFunction) -> AnyFunction:
    """All options of a queue; ``none`` takes one away that may be left out."""
    ordered = "One transaction at a time, strictly in order."
    decorated: Any = click.option("--ordered/--not-ordered", default=None, help=ordered)(function)
    for name, type, metavar, text in reversed(_QUEUE_OPTIONS):
        complete = complete_queue if metavar == "QUEUE" else None
        decorated = click.option(name, type=type, metavar=metavar, shell_complete=complete, help=text)(decorated)
    return decorated  # type: ignore[no-any-return]


# -- filters -----------------------------------------------------------------------------------------------------------


def filter_options(function: AnyFunction) -> AnyFunction:
    """Which messages of a queue; all of these must hold."""
    decorated: Any = click.option(
        "--older-than", type=duration, metavar="TIME", help="Only those put longer ago, e.g. 90s, 15m, 2h, 7d."
    )(function)
    decorated = click.option(
        "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Only those with this header; several times."
    )(decorated)
    decorated = click.option("--correlation-id", metavar="TEXT", help="Only those with this correlation id.")(decorated)
    return click.option("--id", "message_id", metavar="ID", help="Only this one.")(decorated)  # type: ignore[no-any-return]


def filters(options: dict[str, Any]) -> dict[str, Any]:
    """As ``Space.browse`` takes them."""
    chosen = given(options)
    if "headers" in chosen:
        chosen["headers"] = headers(chosen["headers"])
    return chosen


def dry_run_option(function: AnyFunction) -> AnyFunction:
    return click.option("--dry-run", is_flag=True, help="Only say how many it would be.")(function)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, and nothing elsewhere; it is told how many are done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda done: bar.update(task, completed=done)
