"""Programs of docs/transactions-and-xa.md that work side by side, and are killed at each line of a recipe.

Every message arrives once, and no program that lives has an error: a recovery never decides against its branch.
"""

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
LEFT = 5  # messages for the worker that is killed

Connect = Callable[[], Connection]

booking, transfer = recipe("booking"), recipe("transfer")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as where:
        yield where


@pytest.fixture(params=[pytest.param("SQLite", marks=pytest.mark.slow), "PostgreSQL"])
def connect(request: pytest.FixtureRequest, memory: Path) -> Connect:
    """Connect to a database without bookings."""
    if request.param == "SQLite":
        return partial(SQLite, memory / "database")
    found = partial(pytest.importorskip("psycopg").connect, request.getfixturevalue("server"))
    with closing(found()) as database:
        database.execute("drop table if exists bookings, decisions")
        database.commit()
    return found


def is_stopped(space: spool.Space) -> bool:
    """Return whether a message is in the queue ``stop``, after a short wait."""
    try:
        space.get(STOP, timeout=0.02)
    except spool.Empty:
        return False
    return True


def work(path: Path, connect: Connect) -> None:
    """Book messages and recover branches, until the queue ``stop`` has a message."""
    with spool.open(path) as space, closing(connect()) as database:
        while not is_stopped(space):
            booking.recover(space, database)
            while space.stats("in").ready > LEFT:
                booking.book(space, database, uuid.uuid4().bytes)


def die_at_line(path: Path, connect: Connect, n: int) -> None:
    with spool.open(path) as space, closing(connect()) as database, at_line(booking, n, die):
        booking.book(space, database, uuid.uuid4().bytes)


def test_x03_workers_that_are_killed_at_any_line_lose_and_double_nothing(memory: Path, connect: Connect) -> None:
    path, line, code, put = memory / "s", 1, -signal.SIGKILL, 0
    with spool.create(path, defaults=AT_ONCE) as space, closing(connect()) as database:
        make_tables(booking, database)
        space.create_queue("in")
        space.create_queue(STOP)
        workers = [start(partial(work, path, connect)) for _ in range(2)]
        try:
            while code == -signal.SIGKILL:
                space.put_many("in", map(str, range(put, put := put + BACKLOG)))
                code = exit_code(start(partial(die_at_line, path, connect, line)))
                line += 1
        finally:
            space.put_many(STOP, ["", ""])
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


def test_x03_a_recovery_waits_for_a_worker_that_lives(memory: Path, connect: Connect) -> None:
    """The recovery begins between the worker's vote and the worker's decision."""
    decides, threads = threading.Event(), []

    def recover() -> None:
        with spool.open(memory / "s") as space, closing(Watched(connect(), "insert", decides.set)) as database:
            booking.recover(space, database)
        decides.set()

    def meanwhile() -> None:
        threads.append(threading.Thread(target=recover))
        threads[-1].start()
        assert decides.wait(60)

    with spool.create(memory / "s", defaults=AT_ONCE) as space, closing(connect()) as database:
        make_tables(booking, database)
        space.create_queue("in")
        space.put("in", "tea")
        booking.book(space, Watched(database, "commit", meanwhile), b"1")
        threads[0].join()
        assert database.execute("select text from bookings").fetchall() == [("tea",)]
        assert space.stats("in").ready == 0
        assert xa.ResourceManager(space).recover() == []


def move(east: Path, west: Path) -> None:
    """Transfer messages and recover branches, until the queue ``stop`` has a message."""
    with spool.open(east) as source, spool.open(west) as target:
        while not is_stopped(source):
            transfer.recover(source, target)
            while source.stats("in").ready > LEFT:
                transfer.transfer(uuid.uuid4().bytes, source, target, 1)


def die_moving(east: Path, west: Path, line: int) -> None:
    with spool.open(east) as source, spool.open(west) as target, at_line(transfer, line, die):
        transfer.transfer(uuid.uuid4().bytes, source, target, 1)


def test_transfers_that_are_killed_at_any_line_lose_and_double_nothing(
    memory: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The kill comes at each line with --long, and at every seventh line without."""
    step = 1 if request.config.getoption("--long") else 7
    east, west, line, code, put = memory / "east", memory / "west", 1, -signal.SIGKILL, 0
    monkeypatch.chdir(memory)
    (memory / "decisions").mkdir()
    with spool.create(east, defaults=AT_ONCE) as source, spool.create(west) as target:
        for space, queue in ((source, "in"), (source, STOP), (target, "out")):
            space.create_queue(queue)
        workers = [start(partial(move, east, west)) for _ in range(2)]
        try:
            while code == -signal.SIGKILL:
                source.put_many("in", map(str, range(put, put := put + BACKLOG)))
                code = exit_code(start(partial(die_moving, east, west, line)))
                line += step
        finally:
            source.put_many(STOP, ["", ""])
            codes = [exit_code(worker) for worker in workers]
        assert codes == [0, 0], "no worker that lives has an error"
        assert code == 0
        assert line > 20
        transfer.recover(source, target)
        for _ in range(source.stats("in").ready):
            transfer.transfer(uuid.uuid4().bytes, source, target, 1)
        moved = sorted(int(message.body.removeprefix("1 for ")) for message in target.browse("out"))
        assert moved == list(range(put))
