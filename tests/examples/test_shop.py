"""The programs of examples/shop, killed in the middle: each order that the shop accepted is shipped exactly once."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import httpx
import pytest

import spool
from tests.ports import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"
PROGRAMS = Path(sys.executable).parent
SECONDS = 60


class Program:
    """A program of the shop, which is started again after each kill."""

    def __init__(self, place: Path, *command: str, **environment: str) -> None:
        self._place, self._environment = place, environment
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        environment = {**os.environ, **self._environment, "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{EXAMPLE.parents[1]}"}
        with open(self._place / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._place, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(SECONDS)


class Shop:
    """The web server and the worker, in a directory of their own. elsewhere: they see only the server of the space."""

    def __init__(self, place: Path, *, elsewhere: bool) -> None:
        port, served = free_port(), free_port()
        self.address = f"http://127.0.0.1:{port}/orders"
        self.space = place / "shop"
        self.log = place / "log"
        web = (sys.executable, "-m", "uvicorn", "--port", str(port), "--log-level", "warning")
        worker = (str(PROGRAMS / "spool-worker"), "-s", "shop", "orders=orders:ship")
        if elsewhere:
            with spool.create(self.space) as space:
                for queue in ("shipped", "failed"):
                    space.create_queue(queue)
                space.create_queue("orders", max_messages=10_000, deduplication_window=86_400, error_queue="failed")
            listen = ("--listen", f"127.0.0.1:{served}")
            self.programs = [
                Program(place, str(PROGRAMS / "spool-serve"), "shop", *listen),
                Program(place, *web, "web_elsewhere:app", SHOP=f"http://127.0.0.1:{served}/shop"),
                Program(place, "node", str(EXAMPLE / "worker.mjs"), SHOP=f"http://127.0.0.1:{served}/shop"),
            ]
            self.post("first", until=lambda code: code == 202)
        else:
            self.programs = [Program(place, *web, "web:app")]
            self.post("first", until=lambda code: code == 202)  # the space exists now
            self.programs.append(Program(place, *worker))
        self.worker = self.programs[-1]

    def post(self, key: str, until: Callable[[int], bool]) -> httpx.Response:
        """Post an order, again and again with the same key until the answer is as wanted."""
        pause, tries = threading.Event(), 20 * SECONDS
        while True:
            try:
                headers = {"Idempotency-Key": key}
                answer = httpx.post(self.address, params={"item": key}, headers=headers, timeout=SECONDS)
                if until(answer.status_code):
                    return answer
            except httpx.TransportError:  # the web server was killed: it may have taken the order
                answer = None
            tries -= 1
            assert tries, f"{answer}\n{self.log.read_text()}"
            pause.wait(0.05)

    def shipped(self) -> list[str]:
        """Ship the rest, and return the items of all parcels."""
        subprocess.run(
            [PROGRAMS / "spool-worker", "-s", self.space, "orders=orders:ship", "--once"],
            cwd=EXAMPLE, check=True, timeout=SECONDS,
        )  # fmt: skip
        with spool.open(self.space) as space:
            left = [*space.browse("orders"), *space.browse("failed")]
            assert not left, f"{[message.failure_reason for message in left]}\n{self.log.read_text()}"
            return sorted(message.body["item"] for message in space.browse("shipped"))


@contextmanager
def running(place: Path, *, elsewhere: bool = False) -> Iterator[Shop]:
    shop = Shop(place, elsewhere=elsewhere)
    try:
        yield shop
    finally:
        for program in reversed(shop.programs):
            program.stop()


@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "elsewhere", [False, pytest.param(True, marks=pytest.mark.skipif(which("node") is None, reason="needs node"))]
)
def test_each_accepted_order_is_shipped_once_whatever_is_killed(tmp_path: Path, kills: int, elsewhere: bool) -> None:
    chance, accepted, another = random.Random(kills), list[str](), threading.Semaphore(0)

    def buy(customer: int) -> None:
        for number in range(5 * kills):
            key = f"{customer}-{number}"
            shop.post(key, until=lambda code: code == 202)
            accepted.append(key)
            another.release()

    with running(tmp_path, elsewhere=elsewhere) as shop:
        customers = [threading.Thread(target=buy, args=(customer,)) for customer in range(2)]
        for customer in customers:
            customer.start()
        for _ in range(kills):
            for _ in range(chance.randint(1, 6)):
                assert another.acquire(timeout=SECONDS)
            program = chance.choice(shop.programs)
            program.kill()
            program.start()
        for customer in customers:
            customer.join()
        for program in reversed(shop.programs):
            program.stop()
        assert shop.shipped() == sorted([*accepted, "first"])


@pytest.mark.slow
def test_an_order_that_finds_the_queue_full_is_to_be_tried_again(tmp_path: Path) -> None:
    with running(tmp_path) as shop:
        shop.worker.stop()
        with spool.open(shop.space) as space:
            for _ in list(space.browse("orders")):
                space.get("orders")
            space.change_queue("orders", max_messages=1)
        shop.post("one", until=lambda code: code == 202)
        assert shop.post("two", until=lambda code: code == 503).headers["Retry-After"] == "10"
        assert "one" in shop.shipped()
        shop.post("two", until=lambda code: code == 202)
