"""Workers of docs/transactions-and-xa.md side by side on one space and one database, killed at each line of a booking.

Every message becomes one row, and no worker that lives has an error: a recovery never decides against its branch.
"""

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from tests.at_once import AT_ONCE
from tests.children import exit_code, start
from tests.forwarder.kills.destinations import postgresql
from tests.xa.recipes import Connection, Rows, SQLite, at_line, die, make_tables, recipe

BACKLOG = 20
STOP = "stop"
EMPTY = 2

Connect = Callable[[], Connection]

booking = recipe("booking")


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    if request.param == "SQLite":
        yield partial(SQLite, tmp_path / "database")
        return
    psycopg = pytest.importorskip("psycopg")
    with postgresql() as where:
        yield partial(psycopg.connect, where)


def work(path: Path, connect: Connect) -> None:
    """Book and recover, as the page's worker does, until the queue ``stop`` says so."""
    with spool.open(path) as space, closing(connect()) as database:
        while not space.stats(STOP).ready:
            booking.recover(space, database)
            try:
                while True:
                    booking.book(space, database, uuid.uuid4().bytes)
            except spool.Empty:
                pass


def die_at_line(path: Path, connect: Connect, n: int) -> None:
    with spool.open(path) as space, closing(connect()) as database, at_line(booking, n, die):
        try:
            booking.book(space, database, uuid.uuid4().bytes)
        except spool.Empty:  # the others have taken all
            os._exit(EMPTY)


def test_x03_workers_that_are_killed_at_any_line_lose_and_double_nothing(tmp_path: Path, connect: Connect) -> None:
    path, line, code, put = tmp_path / "s", 1, EMPTY, 0
    with spool.create(path, defaults=AT_ONCE) as space, closing(connect()) as database:
        make_tables(booking, database)
        space.create_queue("in")
        space.create_queue(STOP)
        workers = [start(partial(work, path, connect)) for _ in range(2)]
        try:
            while code in (EMPTY, -signal.SIGKILL):
                space.put_many("in", map(str, range(put, put := put + BACKLOG)))
                code = exit_code(start(partial(die_at_line, path, connect, line)))
                line += code == -signal.SIGKILL
        finally:
            space.put(STOP, "")
            codes = [exit_code(worker) for worker in workers]
        assert codes == [0, 0], "no worker that lives has an error"
        assert code == 0
        assert line > 12
        booking.recover(space, database)
        assert xa.ResourceManager(space).recover() == []
        for _ in range(space.stats("in").ready):
            booking.book(space, database, uuid.uuid4().bytes)
        rows = sorted(int(text) for (text,) in database.execute("select text from bookings").fetchall())
        assert rows == list(range(put))


class Watched:
    """A connection that does something before a statement that begins so, or before its commit."""

    def __init__(self, connection: Connection, before: str, act: Callable[[], object]) -> None:
        self._connection = connection
        self._before = before
        self._act = act
        self.rollback = connection.rollback
        self.close = connection.close

    def execute(self, statement: str, values: tuple[Any, ...] | list[Any] = ()) -> Rows:
        if statement.startswith(self._before):
            self._act()
        return self._connection.execute(statement, values)

    def commit(self) -> None:
        if self._before == "commit":
            self._act()
        self._connection.commit()


def test_x03_a_recovery_waits_for_a_worker_that_lives(tmp_path: Path, connect: Connect) -> None:
    """It begins between the worker's vote and the worker's decision."""
    decides, threads = threading.Event(), []

    def recover() -> None:
        with spool.open(tmp_path / "s") as space, closing(Watched(connect(), "insert", decides.set)) as database:
            booking.recover(space, database)
        decides.set()

    def meanwhile() -> None:
        threads.append(threading.Thread(target=recover))
        threads[-1].start()
        assert decides.wait(60)

    with spool.create(tmp_path / "s", defaults=AT_ONCE) as space, closing(connect()) as database:
        make_tables(booking, database)
        space.create_queue("in")
        space.put("in", "tea")
        booking.book(space, Watched(database, "commit", meanwhile), b"1")
        threads[0].join()
        assert database.execute("select text from bookings").fetchall() == [("tea",)]
        assert space.stats("in").ready == 0
        assert xa.ResourceManager(space).recover() == []
