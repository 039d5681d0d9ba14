"""The service of docs/exactly-once.md, killed and disconnected: each order becomes exactly one row."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
import xa
from tests import postgresql
from tests.pages import blocks

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    with postgresql.server(two_phase=False) as found:
        yield found


class Service:
    """The program of the page, which is started again after each kill."""

    def __init__(self, place: Path, where: str) -> None:
        (program,) = [block.text for block in blocks(ROOT / "docs" / "exactly-once.md") if block.file == "serving.py"]
        self._place = place
        (place / "serving.py").write_text(program.replace("dbname=shop", where).replace("timeout=10", "timeout=0.5"))
        self.start()

    def start(self) -> None:
        with open(self._place / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "serving.py"], cwd=self._place, stdout=log, stderr=log, env={"PYTHONPATH": str(ROOT)}
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None


def booked(server: postgresql.Server) -> list[int]:
    with server.connect() as database:
        return sorted(int(text) for (text,) in database.execute("select text from bookings").fetchall())


def disconnect(server: postgresql.Server) -> None:
    """Terminate all other connections, as an administrator does."""
    with server.connect() as database:
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and usename = 'test'"
        )


def crash(server: postgresql.Server) -> None:
    server.kill()
    server.start()


@pytest.mark.slow
@pytest.mark.parametrize("faults", [3, 60])
def test_each_order_is_booked_once_whichever_side_is_killed(tmp_path: Path, server: postgresql.Server, faults: int):
    chance, orders, pause = random.Random(faults), 10 * faults, threading.Event()
    with spool.create(tmp_path / "shop") as space, server.connect() as database:
        space.create_queue("orders")
        database.execute("drop table if exists bookings")
        database.execute("create table bookings (text text)")
        database.commit()
        with xa.TransactionManager(tmp_path / "decisions") as manager:
            manager.prepare_database(database)
    service = Service(tmp_path, server.where)
    try:
        with spool.open(tmp_path / "shop") as space:
            for fault in range(faults):
                space.put_many("orders", [str(order) for order in range(10 * fault, 10 * fault + 10)])
                tries = 20 * SECONDS
                while len(booked(server)) < 10 * fault + chance.randint(1, 5):  # the service is in the middle
                    tries -= 1
                    assert tries, (tmp_path / "log").read_text()
                    pause.wait(0.05)
                how = (service.kill, disconnect, crash)[fault % 3]
                if how == service.kill:
                    service.kill()
                    service.start()
                else:
                    how(server)
            tries = 20 * SECONDS
            while len(booked(server)) < orders or list(space.browse("orders")):
                tries -= 1
                assert tries, (tmp_path / "log").read_text()
                pause.wait(0.05)
        assert not service.has_ended, "it connects again by itself"
    finally:
        service.kill()
    assert booked(server) == list(range(orders))
