"""A storm over the HTTP server: while messages are put and taken, the server and its clients are killed, the server is
stopped for a while, and the network loses connections. Nothing acknowledged is lost, and nothing is done twice."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import spool
from tests.ports import free_port
from tests.strides import Stride
from tests.web.kills.accounts import Accounts, Times
from tests.web.kills.network import Network
from xaspool_scripts.admin import main as spool_admin

ROOT = Path(__file__).parents[3]
_MESSAGES = 20_000
_BYTES_AT_MOST = 100_000  # of the journals, between two faults
_PRODUCERS, _CONSUMERS = 2, 3
_PATIENT_SECONDS, _DRAIN_SECONDS = 120.0, 1_800.0


class Server:
    """spool-serve, which listens at the same port after each start."""

    def __init__(self, space: Path, processes: int, log: Path) -> None:
        self.port, self._log = free_port(), log
        self._command = [
            sys.executable,
            "-c",
            "from xaspool_scripts.start import serve; serve()",
            f"shop={space}",
            "--json",
            "--listen",
            f"127.0.0.1:{self.port}",
            "--processes",
            str(processes),
        ]
        self.start()

    def start(self) -> None:
        deadline = time.monotonic() + _PATIENT_SECONDS
        while time.monotonic() < deadline:  # the processes of a killed server may listen for a moment
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
            assert self._process.stdout is not None
            if self._process.stdout.readline():
                return
            self._process.wait()
        raise AssertionError(self._log.read_text())

    @property
    def children(self) -> list[int]:
        pid = self._process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def kill(self, *processes: int) -> None:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        if self._process.pid in processes:
            self._process.wait()
            self.start()

    def kill_all(self) -> None:
        self.kill(*self.children, self._process.pid)

    def kill_parent(self) -> None:
        """Kill only the parent. Its children notice, and end by themselves, while the next server starts."""
        children = self.children
        self.kill(self._process.pid)
        _until(lambda: not any(map(_lives, children)), self._log)

    def kill_child(self) -> None:
        self.kill(*self.children[:1])

    def stop_for(self, seconds: float) -> None:
        stopped = [self._process.pid, *self.children]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in stopped:
                os.kill(pid, number)
            time.sleep(seconds if number == signal.SIGSTOP else 0)

    def close(self) -> None:
        if self._process.poll() is None:
            for pid in (*self.children, self._process.pid):
                os.kill(pid, signal.SIGKILL)

    def start_again(self) -> None:
        self.end()
        self.start()

    def end(self) -> int:
        self._process.terminate()
        return self._process.wait(_PATIENT_SECONDS)


class Clients:
    """The processes of the clients. A killed one starts again; a producer goes on after its journal."""

    def __init__(self, port: int, place: Path, seed: str, messages: int) -> None:
        self.running = dict[tuple[str, ...], subprocess.Popen[bytes]]()
        self._arguments, self._place, self._count = (port, seed), place, 0
        for number in range(_PRODUCERS):
            self._start("put", str(place / f"put{number}"), str(number), str(_PRODUCERS), str(messages))
        for _ in range(_CONSUMERS):
            self._start_taking()

    def _start_taking(self) -> None:
        self._count += 1
        self._start("take", str(self._place / f"take{self._count}"), "0", "0", "0")

    def _start(self, what: str, journal: str, *numbers: str) -> None:
        port, seed = self._arguments
        Path(journal).touch()
        words = [sys.executable, "-m", "tests.web.kills.clients", what, str(port), journal, seed, *numbers]
        self.running[what, journal, *numbers] = subprocess.Popen(words, cwd=ROOT)

    def kill(self, which: tuple[str, ...]) -> None:
        process = self.running.pop(which)
        has_ended = process.poll() is not None
        process.kill()
        process.wait()
        if which[0] == "take":
            self._start_taking()
        elif not has_ended:
            self._start(*which)
        else:
            self.running[which] = process

    @property
    def journals(self) -> dict[str, list[Path]]:
        return {what: sorted(self._place.glob(f"{what}[0-9]*")) for what in ("put", "take")}

    @property
    def written(self) -> int:
        return sum(journal.stat().st_size for found in self.journals.values() for journal in found)

    def have_put(self) -> bool:
        codes = [process.poll() for (what, *_), process in self.running.items() if what == "put"]
        assert not any(codes), codes
        assert all(process.poll() is None for (what, *_), process in self.running.items() if what == "take")
        return None not in codes

    def wait_for(self, size: int, log: Path) -> None:
        """Wait until the journals have grown by so many bytes, or all messages are put."""
        wanted = self.written + size
        _until(lambda: self.written > wanted or self.have_put(), log)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _until(holds: Callable[[], bool], log: Path, seconds: float = _PATIENT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)


@contextmanager
def _running(tmp_path: Path, processes: int, seed: str, messages: int) -> Iterator[tuple[Server, Network, Clients]]:
    with spool.create(tmp_path / "shop") as space:
        for name in ("results", "errors"):
            space.create_queue(name)
        space.create_queue("orders", error_queue="errors", retries=12, retry_delay=0, deduplication_window=3_600)
    with ExitStack() as opened:
        server = Server(tmp_path / "shop", processes, tmp_path / "log")
        opened.callback(server.close)
        network = Network(server.port, random.Random(f"network {seed}"))
        opened.callback(network.close)
        clients = Clients(network.port, tmp_path, seed, messages)
        opened.callback(clients.close)
        yield server, network, clients


@pytest.mark.every(2, first=1)
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path, processes: int, stride: Stride) -> None:
    seed = os.environ.get("XASPOOL_TORTURE_SEED", f"{random.randrange(10**6)}")
    print(f"XASPOOL_TORTURE_SEED={seed}")
    chance, messages, log = random.Random(seed), _MESSAGES // stride(66), tmp_path / "log"
    accounts, acted, size = Accounts(seed), 0, _BYTES_AT_MOST // stride(5)
    with _running(tmp_path, processes, seed, messages) as (server, network, clients):

        def noted(times: list[Times], act: Callable[[], object]) -> Callable[[], object]:
            def noting() -> None:
                begun = time.monotonic()
                act()
                times.append((begun, time.monotonic()))

            return noting

        kill_all, kill_child = noted(accounts.kills, server.kill_all), noted(accounts.kills, server.kill_child)
        acts: list[Callable[[], object]] = [
            *[kill_all] * 2,
            noted(accounts.graceful, server.start_again),
            lambda: network.cut(chance.uniform(0.1, 1)),
            lambda: server.stop_for(chance.uniform(0.1, 2.5)),
            *[lambda: clients.kill(chance.choice([*clients.running]))] * 2,
        ]
        if processes > 1:
            kill_parent = noted(accounts.kills, noted(accounts.graceful, server.kill_parent))
            acts += [kill_child, kill_child, kill_parent]
        while not clients.have_put():
            clients.wait_for(chance.randrange(size // 4, size), log)
            chance.choice(acts)()
            acted += 1
        network.mend()

        def is_drained() -> bool:
            with suppress(httpx.TransportError):
                found = httpx.get(f"http://127.0.0.1:{server.port}/v1/shop/queues/orders").json()
                return not (found["ready"] + found["claimed"] + found["delayed"])
            return False

        _until(is_drained, log, _DRAIN_SECONDS)
        assert server.end() == 0
        clients.close()
    with spool.open(tmp_path / "shop") as space:
        accounts.read_log(log.read_text())
        assert "Traceback" not in log.read_text(), log.read_text()
        for journal in clients.journals["put"]:
            accounts.read_puts(journal)
        for journal in clients.journals["take"]:
            accounts.read_claims(journal)
        left, results, errors = (list(space.browse(name)) for name in ("orders", "results", "errors"))
        ends = accounts.check(left, results, errors)
    print(f"{acted} faults: {ends}")
    with pytest.raises(SystemExit) as done:
        spool_admin(["-s", str(tmp_path / "shop"), "check"])
    assert done.value.code == 0
