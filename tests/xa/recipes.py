"""The recipes of docs/transactions-and-xa.md as modules, and programs that fail or die at a line of them."""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

from tests import pages

PAGE = Path(__file__).parents[2] / "docs" / "transactions-and-xa.md"


def recipe(name: str) -> ModuleType:
    """Return the file of this name that the page saves, as a module."""
    [text] = [block.text for block in pages.blocks(PAGE) if block.file == f"{name}.py"]
    module = ModuleType(name)
    module.__text__ = text  # type: ignore[attr-defined]
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


class Failure(BaseException):
    """Comes from outside, as KeyboardInterrupt does."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise Failure


@contextmanager
def at_line(module: ModuleType, n: int, act: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """Do this before the n-th line of the recipe that runs in the block; yields a count of the lines that ran.

    The way of an exception from a ``with`` block to its ``__exit__`` is no line: Python looks for no signal there.
    """
    seen, raised, usual = 0, False, sys.gettrace()

    def lines(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal seen, raised
        if frame.f_code.co_filename != f"{module.__name__}.py":
            return None
        if event == "line":
            text = module.__text__.splitlines()[frame.f_lineno - 1].strip()
            if not (raised and text.startswith("with ")):
                seen += 1
                if seen == n:
                    act()
        raised = event == "exception"
        return lines

    sys.settrace(lines)
    try:
        yield lambda: seen
    finally:
        sys.settrace(usual)


class Rows(Protocol):
    """The rows that a statement found."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A connection to the database, as far as the page uses one."""

    def execute(self, statement: str, values: tuple[Any, ...] | list[Any] = ...) -> Rows: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class SQLite:
    """SQLite, with psycopg's marks for values."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=60)
        self.commit = self._connection.commit
        self.rollback = self._connection.rollback
        self.close = self._connection.close

    def execute(self, statement: str, values: tuple[Any, ...] | list[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement.replace("%s", "?"), values)


def make_tables(booking: ModuleType, database: Connection) -> None:
    for statement in booking.TABLES.split(";")[:-1]:
        database.execute(statement)
    database.commit()
