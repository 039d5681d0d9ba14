"""A shop: a space with orders, a database with bookings, and the transaction that turns one into the other."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import psycopg
import pytest

import spool
import xa
from spool.engine import Clock
from tests.at_once import AT_ONCE
from tests.children import die, let_die
from tests.clocks import timed
from tests.postgresql import Server
from tests.xa.manager.steps import STEPS, acting

last_resource = pytest.mark.parametrize("shop", ["last resource"], indirect=True)
two_phases = pytest.mark.parametrize("shop", ["two phases"], indirect=True)


class Shop:
    """``answers``: whether the transaction also puts a message, so that the space's commit is not deferred."""

    def __init__(self, directory: Path, server: Server, two_phase: bool, answers: bool = True) -> None:
        self.path, self.logs = directory / "space", directory / "decisions"
        self.server = server
        self._entered_by = 0
        self.two_phase = two_phase
        self.answers = answers
        with spool.create(self.path, defaults=AT_ONCE) as space:
            space.create_queue("orders")
            space.create_queue("answers")
        with closing(server.connect()) as database:
            database.execute("drop table if exists xaspool_decisions, bookings")
            database.execute("create table bookings (text text primary key)")
            for name in database.tpc_recover():
                database.tpc_rollback(name)
            database.commit()
            if not two_phase:
                with self.manager() as manager:
                    manager.prepare_database(database)

    def __enter__(self) -> Self:
        """Open the space and connect; what this process has open is closed. (A child must not end its parent's.)"""
        if self._entered_by == os.getpid():
            self.__exit__(None, None, None)
        self._entered_by = os.getpid()
        self.space = spool.open(self.path)
        self.database = self.server.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
        self.space.close()

    def manager(self, clock: Clock | None = None) -> xa.TransactionManager:
        return xa.TransactionManager(self.logs if clock is None else timed(self.logs, clock))

    def reconnect(self) -> None:
        self.database.close()
        self.database = self.server.connect()

    @contextmanager
    def booking(self, manager: xa.TransactionManager) -> Iterator[xa.GlobalTransaction]:
        """A transaction over the space and the database, in which the caller works."""
        with manager.transaction() as transaction:
            transaction.enlist(self.space)
            transaction.enlist(self.database, two_phase=self.two_phase)
            yield transaction

    def book(self, manager: xa.TransactionManager) -> str:
        """Turn an order into a booking and an answer; return its text."""
        with self.booking(manager):
            return self.work()

    def work(self) -> str:
        """Take an order, insert its row and put its answer, in the caller's transaction; return its text."""
        text = str(self.space.get("orders").body)
        self.database.execute("insert into bookings values (%s)", [text])
        if self.answers:
            self.space.put("answers", text)
        return text

    def kill_program(self, when: str = "after", step: str = "the decision") -> None:
        """A program books an order, and is killed before or after a step. Afterwards this process opens the space."""
        [found] = [each for each in STEPS[self.two_phase] if each.text == step]

        def program() -> None:
            with self, self.manager() as manager, acting(found, when, die):
                self.book(manager)

        let_die(program)
        self.__enter__()

    # -- the state ----------------------------------------------------------------------------------------------------

    def booked(self) -> list[str]:
        """Return the bookings, by a connection of its own."""
        with closing(self.server.connect()) as database:
            return [text for (text,) in database.execute("select text from bookings order by text").fetchall()]

    def waiting(self, queue: str = "orders") -> list[str]:
        return sorted(message.body for message in self.space.browse(queue))

    def check_agreement(self, orders: list[str]) -> list[str]:
        """Check that each order is either waiting, or booked and answered, and that nothing is in doubt.

        Returns the booked orders.
        """
        booked = self.booked()
        assert sorted([*booked, *self.waiting()]) == sorted(orders)
        if self.answers:
            assert self.waiting("answers") == booked
        assert self.doubts() == []
        return booked

    def doubts(self) -> list[str]:
        """Return each branch in doubt, in the space and in the database."""
        found = [str(xid) for xid in self.space.engine.in_doubt()]
        with closing(self.server.connect()) as database:
            return found + [str(gid) for gid in database.tpc_recover()]

    def decisions(self) -> int:
        """Return the number of decisions in the table."""
        with closing(self.server.connect()) as database:
            try:
                found = database.execute("select count(*) from xaspool_decisions where serial > 0").fetchone()
            except psycopg.errors.UndefinedTable:
                return 0
            return int(found[0])

    def dead_logs(self, *living: xa.TransactionManager) -> int:
        """Return the number of logs, without the logs of these managers."""
        return sum(name.endswith(".log") for name in os.listdir(self.logs)) - len(living)
