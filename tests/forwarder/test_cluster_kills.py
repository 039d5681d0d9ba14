"""The forwarder on a cluster of processes on this machine, with speculation and retries, as its workers are killed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.forwarder.cluster import HERE, SPECULATION, Cluster
from tests.forwarder.processes import RunningForwarder, processes_of, wait_until_left
from tests.shown import left_over

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

MESSAGES, SEED = 1200, 5
SERVICE = """
import os, time
def nap(message):
    with open(os.path.dirname(__file__) + "/calls", "ab", 0) as file:
        file.write(b"%d\\n" % message.body)
    time.sleep(0.02 if message.body % 50 else 0.5)
    return message.body
"""


def forwarder_on(master: str, directory: Path) -> RunningForwarder:
    """``spool-forward --once`` on a cluster."""
    settings = {**SPECULATION, **HERE, "spark.executor.memory": "512m"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return RunningForwarder(
        "space", "python:naps:nap", ["--once", "--master", master, *options], directory / "said",
        {"SPARK_LOCAL_IP": "127.0.0.1"}, directory,
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "naps.py").write_text(SERVICE)
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        for queue in ("replies", "errors"):
            space.create_queue(queue)
        space.create_queue("work", reply_queue="replies", error_queue="errors", retries=20, retry_delay=0.0)
        space.put_many("work", range(MESSAGES))
    return tmp_path


def of_kind(tree: list[int], *words: str) -> list[int]:
    """Return the processes of ``tree`` whose command has one of the words."""
    found = []
    for process in tree:
        with suppress(OSError):
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
            if any(word in command for word in words):
                found.append(process)
    return found


def kill_one(roots: list[int], directory: Path, word: str, chance: random.Random) -> None:
    """Kill one of the processes that have come from ``roots``, as soon as there is one of this kind."""
    end = time.monotonic() + 60
    while True:
        if found := [pid for root in roots for pid in of_kind(processes_of(root, directory / "space"), word)]:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(sorted(set(found))), signal.SIGKILL)
                return
        assert time.monotonic() < end, f"there is no process of {word}"
        time.sleep(0.05)


def forwarded(space: spool.Space) -> int:
    return space.stats("replies").ready


def wait_for(reached: Callable[[], bool], program: RunningForwarder) -> None:
    while not reached():
        assert program.process.poll() is None, program.said()
        time.sleep(0.05)


def check(directory: Path) -> None:
    """Expect one reply to each message, at least one call for each message, and no remains of an attempt."""
    wait_until_left(directory / "space")
    with spool.open(directory / "space") as space:
        assert space.recovery.alone
        assert sorted(message.body for message in space.browse("replies")) == list(range(MESSAGES))
        assert (space.stats("work").ready, space.stats("errors").ready) == (0, 0)
        assert list(space.check()) == []
    calls = [int(line) for line in (directory / "calls").read_text().split()]
    assert set(calls) == set(range(MESSAGES))
    print(f"{len(calls)} calls for {MESSAGES} messages")
    assert left_over(directory / "space") == []


EXECUTOR, DAEMON = "CoarseGrainedExecutorBackend", "pyspark.daemon"


def test_x05_on_a_cluster_each_message_is_forwarded_once_when_any_process_is_killed(directory: Path) -> None:
    """The test kills a Python worker and the Java of an executor, alternating; then the driver; at last a machine with
    all its processes."""
    chance = random.Random(SEED)
    with ExitStack() as stack:
        cluster = Cluster(directory, stack)
        workers = [worker.pid for worker in cluster.workers]
        program = stack.enter_context(forwarder_on(cluster.url, directory))
        with spool.open(directory / "space") as space:
            for step, kind in enumerate([DAEMON, EXECUTOR, DAEMON, EXECUTOR], 1):
                wait_for(lambda done=100 * step: forwarded(space) >= done, program)  # type: ignore[misc]
                kill_one(workers, directory, kind, chance)
            program.kill(program.process.pid, "driver")
            before = forwarded(space)
            wait_for(lambda: forwarded(space) > before, program)
            for process in processes_of(workers[1], directory / "space"):
                if process in of_kind([process], "worker.Worker", EXECUTOR, DAEMON) and process != program.process.pid:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
        assert program.ended() == 0, program.said()
    check(directory)


def test_x05_in_a_local_cluster_each_message_is_forwarded_once_though_an_executor_is_killed(directory: Path) -> None:
    with forwarder_on("local-cluster[2,1,1024]", directory) as program:
        with spool.open(directory / "space") as space:
            wait_for(lambda: forwarded(space) >= 100, program)
            kill_one([program.process.pid], directory, EXECUTOR, random.Random(SEED))
        assert program.ended() == 0, program.said()
    check(directory)


def test_x05_a_cluster_with_a_worker_on_another_machine_is_refused_before_a_message_is_taken(directory: Path) -> None:
    """The worker reads the id of another boot, as on a machine that shares the file system."""
    (directory / "boot_id").write_text("6f3d1c1e-0000-4000-8000-000000000001\n")
    script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    wrapped = ["unshare", "--mount", "sh", "-c", script, str(directory / "boot_id")]
    if subprocess.run([*wrapped, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this takes a mount namespace")
    with ExitStack() as stack:
        cluster = Cluster(directory, stack, wrapped=wrapped)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)  # or it could be the only one that was asked
        cluster.workers[0].wait()
        program = stack.enter_context(forwarder_on(cluster.url, directory))
        assert program.ended() == 1, program.said()
    assert "is open on another machine" in program.said()
    with spool.open(directory / "space") as space:
        assert (space.stats("work").ready, forwarded(space)) == (MESSAGES, 0)
