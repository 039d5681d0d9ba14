"""The booking of docs/transactions-and-xa.md, whose database is SQLite here, stopped at each of its decisions."""

import sqlite3
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spool
from tests import pages

PAGE = Path(__file__).parents[2] / "docs" / "transactions-and-xa.md"


class Stopped(Exception):
    """The program dies here."""


class Database:
    """A psycopg connection, as far as the page uses one; ``dies``: before or after its commit."""

    def __init__(self, path: Path, dies: str = "") -> None:
        self.connection = sqlite3.connect(path)
        self.dies = dies

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement.replace("%s", "?"), values)

    def commit(self) -> None:
        if self.dies != "before":
            self.connection.commit()
        if self.dies:
            self.connection.close()
            raise Stopped

    def rollback(self) -> None:
        self.connection.rollback()


@pytest.fixture
def booking() -> ModuleType:
    (text,) = [block.text for block in pages.blocks(PAGE) if block.file == "booking.py"]
    module = ModuleType("booking")
    exec(text, module.__dict__)
    return module


@pytest.mark.parametrize(("dies", "booked"), [("", True), ("before", False), ("after", True)])
def test_x03_a_booking_of_the_page_is_in_both_or_in_neither(
    dies: str, booked: bool, booking: ModuleType, tmp_path: Path
) -> None:
    database = Database(tmp_path / "database")
    database.connection.executescript(booking.TABLES)
    with spool.create(tmp_path / "s") as space:
        space.create_queue("in", retry_delay=0)
        space.put("in", "tea")
        try:
            booking.book(space, Database(tmp_path / "database", dies), b"1")
        except Stopped:
            assert dies
    with spool.open(tmp_path / "s") as space:
        booking.recover(space, database)
        assert database.execute("select text from bookings").fetchall() == [("tea",)] * booked
        assert [message.body for message in space.browse("in")] == ["tea"] * (not booked)
