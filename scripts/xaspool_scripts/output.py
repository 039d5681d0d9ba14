"""Data on stdout: tables on a terminal, aligned text elsewhere, JSON where asked for."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import click

from xaspool_scripts.common import Failure, describe, lost_output, note

NOTHING = "-"


def write_bytes(data: bytes) -> None:
    """To stdout, and on their way when this returns; OSError if they cannot be."""
    if sys.stdout is None:
        lost_output()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json(value: Any) -> None:
    """One object on one line, in ASCII, so that it is the same in every locale."""
    write_bytes(json.dumps(value, default=_as_json).encode("ascii") + b"\n")


def _as_json(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@contextmanager
def answering(done: str) -> Iterator[None]:
    """Around output about what was done already: if it cannot be written, the error says that it was done."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{done}; but this could not be written to standard output: {describe(error)}") from error


def write_answer(count: int, done: str, as_json: bool) -> None:
    """How many, on stdout; and what was done, in words, on stderr."""
    with answering(done):
        if as_json:
            write_json({"count": count})
        else:
            write_bytes(f"{count}\n".encode())
    note(done)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A whole table. Numbers stand to the right."""
    kept = [list(row) for row in rows]
    cells = [[show(value) for value in row] for row in kept]
    right = [all(isinstance(row[i], int | float | None) for row in kept) for i in range(len(columns))]
    if sys.stdout is not None and sys.stdout.isatty():
        _rich_table(columns, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([*columns], *cells):
        click.echo(aligned(row, widths, right))


def aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """One line of a table whose widths are known."""
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(row, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _rich_table(columns: Sequence[str], cells: Iterable[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(header_style="bold")
    for column, to_right in zip(columns, right, strict=True):
        drawn.add_column(column, justify="right" if to_right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console().print(drawn)


def pairs(values: Mapping[str, object]) -> None:
    """Names and values below each other."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name.ljust(width)}  {show(value)}")


def show(value: object) -> str:
    """A value for people. Control characters are written out: a message must not steer a terminal."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return show(", ".join(f"{key}={item}" for key, item in value.items()))
    if isinstance(value, list | tuple):
        return show(",".join(map(str, value)))
    return printable(str(value))


def printable(text: str, keep: str = "") -> str:
    """The text with what a terminal would act on written as escapes, but for the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def moment(seconds: float | None) -> str | None:
    """A time for people, in their time zone."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"


def messages(count: int) -> str:
    """A number of them, for people."""
    return f"{count:,} message{'' if count == 1 else 's'}"
