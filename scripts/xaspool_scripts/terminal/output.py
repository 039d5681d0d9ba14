"""Write data to stdout: tables on a terminal, aligned text elsewhere, JSON with --json."""

import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, is_dataclass
from typing import Any, BinaryIO

import click

from spool.watch import units
from xaspool_scripts.terminal.program import Failure, describe, note
from xaspool_scripts.terminal.wording import printable

NOTHING = "-"

_STDOUT, _STDERR = 1, 2
_own_output: BinaryIO | None = None  # the real standard output during ``prints_to_stderr``


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout, and flush stdout. Raise OSError if the write fails."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    output, left = _own_output or sys.stdout.buffer, memoryview(data)
    while left:
        left = left[output.write(left) :]  # (with PYTHONUNBUFFERED, the system may write only a part)
    output.flush()


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Reserve standard output for this program's data. Functions of the user, and programs started by these functions,
    print to stderr."""
    global _own_output
    if sys.stdout is None or sys.stderr is None:
        yield
        return
    sys.stdout.flush()
    with ExitStack() as undo:
        _own_output = undo.enter_context(_kept_apart()) if _is_process_output() else sys.stdout.buffer
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _own_output = None


def _is_process_output() -> bool:
    assert sys.stdout is not None
    try:
        return sys.stdout.fileno() == _STDOUT
    except io.UnsupportedOperation:
        return False


@contextmanager
def _kept_apart() -> Iterator[BinaryIO]:
    """Let programs that this process starts print to stderr. Yield a file for the real standard output."""
    kept = os.dup(_STDOUT)
    output = open(kept, "wb")  # noqa: SIM115 (closed below)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield output
    finally:
        os.dup2(kept, _STDOUT)
        with suppress(OSError):  # an earlier write has already reported the error
            output.close()


def write_json(value: Any) -> None:
    """Write one object on one line, in ASCII, so that the line is the same in every locale."""
    write_bytes(json.dumps(value, default=_as_json).encode("ascii") + b"\n")


def _as_json(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def flush_directory(path: str) -> None:
    """Make the names of the new files in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system cannot flush directories
            raise
    finally:
        os.close(handle)


@contextmanager
def answering(done: str) -> Iterator[None]:
    """Use this context to print the result of a completed step. If the output fails, the error text says that the step
    was done."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{done}; but this could not be written to standard output: {describe(error)}") from error


def write_answer(count: int, done: str, as_json: bool) -> None:
    """Write a count to stdout, and the description of the completed step to stderr."""
    with answering(done):
        if as_json:
            write_json({"count": count})
        else:
            write_bytes(f"{count}\n".encode())
    note(done)


def write_all(
    found: Sequence[object], as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str
) -> None:
    """Write each value as JSON, or all values as one table. If the table would be empty, print the remark
    ``nothing``."""
    if as_json:
        for each in found:
            write_json(each)
    elif found:
        table(columns, rows)
    else:
        note(nothing)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; columns of numbers are right-aligned."""
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
    """Return one line of a table whose column widths are known."""
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


def short(text: str, most: int) -> str:
    """Return a text with at most ``most`` characters. If the end is cut off, the last character is ``…``."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def pairs(values: Mapping[str, object]) -> None:
    """Write names and values, one pair per line."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name.ljust(width)}  {show(value)}")


def show(value: object) -> str:
    """Return a value as text. Control characters are escaped, because a message must not control a terminal."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return show(", ".join(f"{key}={item}" for key, item in value.items()))
    if isinstance(value, list | tuple):
        return show(",".join(map(str, value)))
    return printable(str(value))


def moment(seconds: float | None) -> str | None:
    """Return a time as text, in the local time zone."""
    return None if seconds is None else units.moment(seconds)


def delayed_in(space: Any, queue: str) -> str:
    """Describe the delayed messages of a queue by their number and the time when the first is due. Return "" if no
    message is delayed. A server does not tell the time."""
    count, engine = space.stats(queue).delayed, getattr(space, "engine", None)
    due = engine.first_due(queue) if engine is not None else None
    if not count or due is None:
        return f"{count:,} delayed" if count and engine is None else ""
    return f"{count:,} delayed" + (" until " if count == 1 else ", the first until ") + str(moment(due))
