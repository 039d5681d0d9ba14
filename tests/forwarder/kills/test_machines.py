"""A forwarder whose workers do not see its space, a server of spaces, and a stream on a third machine, as they die.

The workers are on two machines with a network of their own. The forwarder, the server, Python workers, executors and
whole machines are killed, and cables are pulled out, at random. Each message comes once into a queue of another space,
and a stream copies each message once.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.forwarder.machines import cluster_on_machines, end
from tests.forwarder.processes import ROOT, Program, RunningForwarder, wait_until_left
from tests.ports import free_port
from tests.shown import left_over

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.root, pytest.mark.timeout(7200)]

MESSAGES, SEED, LATEST_KILL = 100_000, 20261126, 0.9
KILLS = {"driver": 7, "server": 10, "worker": 10, "executor": 7, "machine": 4, "network": 12}
SHORTEST_CUT, LONGEST_CUT = 0.5, 25.0
MARKS = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}
PATIENT_SECONDS = 300.0
QUICK = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "4s",
    "spark.task.maxFailures": "8",
}
"""Settings with which Spark notices a lost machine soon."""


@dataclass
class Run:
    """One run. ``done``: the other space, into which the messages go."""

    directory: Path
    cluster: Any
    chance: random.Random
    stack: ExitStack
    done: spool.Space
    killed: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        address = self.cluster.machines.address
        port = free_port()
        serving = ["hidden=hidden/space", "other=other", "--listen", f"{address}:{port}", "--insecure"]
        self.server = self.stack.enter_context(
            Program("xaspool_scripts.serve", serving, self.directory / "served", "serving", self.directory)
        )
        settings = {**self.cluster.settings, **QUICK}
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        listening = ["--listen", f"{address}:0", "--insecure", "--master", self.cluster.url, *options]
        self.driver = self.stack.enter_context(
            RunningForwarder(
                "hidden/space", f"queue:done@{self.directory}/other", listening, self.directory / "said",
                {"SPARK_LOCAL_IP": address}, self.directory,
            )
        )  # fmt: skip
        self.served = f"http://{address}:{port}/other"
        self.start_beside()

    def start_beside(self) -> None:
        """Start the stream on the second machine."""
        words = [sys.executable, "-m", "tests.forwarder.kills.beside", self.served, str(self.directory / "checkpoint")]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/scripts"}
        name = self.cluster.machines.names[1]
        self.beside = self.cluster.machines.start(name, words, environment, self.directory / "beside.log")
        self.stack.callback(end, self.beside)

    def wait(self, reached: Callable[[], bool], of: str) -> None:
        """Wait until something is reached; start programs again that could not start."""
        last = time.monotonic() + PATIENT_SECONDS
        while not reached():
            assert time.monotonic() < last, f"{of}: {self.driver.said()[-3000:]}"
            self.keep_up()
            time.sleep(0.1)

    def keep_up(self) -> None:
        """Start what has ended again, as a supervisor does."""
        for program in (self.server, self.driver):
            if program.process.poll() is not None:
                program.start()
        if self.beside.poll() is not None:
            self.start_beside()
        for name, worker in self.cluster.workers.items():
            if worker.poll() is not None:
                self.cluster.start_worker(name)

    def kill(self, kind: str) -> None:
        name = self.chance.choice(self.cluster.machines.names)
        match kind:
            case "driver" | "server":
                program = self.driver if kind == "driver" else self.server
                program.process.kill()
                program.process.wait()
            case "network":
                self.cluster.machines.connect(name, False)
                time.sleep(
                    self.chance.uniform(SHORTEST_CUT, LONGEST_CUT) if self.chance.random() < 0.5 else SHORTEST_CUT
                )
                self.cluster.machines.connect(name)
            case "machine":
                for process in self.cluster.machines.processes(name):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                self.cluster.workers[name].wait()
            case _:
                found = [each for each in self.cluster.machines.processes(name) if MARKS[kind] in command(each)]
                if not found:
                    self.keep_up()
                    return
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(found), signal.SIGKILL)
        self.killed[kind] += 1
        seconds, done = time.monotonic() - self.begun, self.forwarded()
        print(f"{seconds:.0f} s: {kind} {'' if kind in ('driver', 'server') else name}; {done} forwarded", flush=True)
        self.keep_up()

    def forwarded(self) -> int:
        return self.done.stats("done").ready


def command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return ""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "hidden").mkdir()
    with spool.create(tmp_path / "hidden/space", defaults=AT_ONCE) as space:
        space.create_queue("errors")
        space.create_queue("work", error_queue="errors", retries=50, retry_delay=0.0)
        for first in range(0, MESSAGES, 1000):
            space.put_many("work", [b"%d" % number for number in range(first, min(first + 1000, MESSAGES))])
    with spool.create(tmp_path / "other", defaults=AT_ONCE) as done, ExitStack() as stack:
        done.create_queue("done", deduplication_window=86400.0)
        done.create_queue("copies")
        yield Run(tmp_path, cluster_on_machines(tmp_path, stack), random.Random(SEED), stack, done)


def test_x05_each_message_comes_once_when_any_machine_or_cable_dies(run: Run) -> None:
    kinds = [kind for kind, times in KILLS.items() for _ in range(times)]
    run.chance.shuffle(kinds)
    for step, kind in enumerate(kinds):
        least = int(MESSAGES * LATEST_KILL * step / len(kinds))
        run.wait(lambda least=least: run.forwarded() > least, f"{least} of {MESSAGES} messages")  # type: ignore[misc]
        time.sleep(run.chance.uniform(0.0, 1.0))
        before = run.killed[kind]
        while run.killed[kind] == before:
            run.kill(kind)
            time.sleep(0.2)
    run.wait(lambda: run.forwarded() >= MESSAGES, "the last message")
    run.wait(lambda: run.done.stats("copies").ready >= MESSAGES, "the last copy")
    print(dict(run.killed), flush=True)
    time.sleep(1.0)  # a message that came twice would come now
    assert run.driver.stop() == 0, run.driver.said()
    for queue in ("done", "copies"):
        assert sorted(int(message.body) for message in run.done.browse(queue)) == list(range(MESSAGES)), queue
    said = (run.directory / "beside.log").read_text()
    assert " read" in said
    assert " twice" not in said
    assert " lost" not in said
    run.stack.close()
    assert list(run.done.check()) == []
    wait_until_left(run.directory / "hidden/space")
    with spool.open(run.directory / "hidden/space") as space:
        assert (space.stats("work").ready, space.stats("errors").ready) == (0, 0)
        assert list(space.check()) == []
    assert left_over(run.directory / "hidden/space") == []
    assert left_over(run.directory / "other") == []
