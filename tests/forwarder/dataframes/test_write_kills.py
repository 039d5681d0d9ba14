"""Processes of a write are killed at random: the driver, its Java, its Python workers, the holder of its lock."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import spool

KILLS, BATCHES = 30, 60
ROOT = Path(__file__).parents[3]


def parents() -> dict[int, int]:
    """The parent of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def processes_of(program: int, space: Path) -> list[int]:
    """A program and all that it has started, and what holds locks in the space for it: no children of it."""
    tree = parents()
    found = [program]
    for process in found:
        found += [child for child, parent in tree.items() if parent == process]
    return found + [process for process in tree if process not in found and has_open(process, space)]


def has_open(process: int, space: Path) -> bool:
    with suppress(OSError):
        return (
            any(os.readlink(entry).startswith(str(space)) for entry in Path(f"/proc/{process}/fd").iterdir())
            and process != os.getpid()
        )
    return False


def wait_until_left(space: Path, seconds: float = 60.0) -> None:
    """Wait until no process has the space open: those of a killed driver end by themselves."""
    end = time.monotonic() + seconds
    while any(has_open(process, space) for process in parents()):
        assert time.monotonic() < end, "a process of a killed driver stays"
        time.sleep(0.05)


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("SEED", time.time_ns() % 10**9))
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_x05_every_row_is_written_once_whatever_is_killed(kind: str, tmp_path: Path, chance: random.Random) -> None:
    directory = tmp_path
    with spool.create(directory / "space") as space:
        space.create_queue("orders")
    command = [sys.executable, "-m", "tests.forwarder.dataframes.writing", kind, str(directory), str(BATCHES)]
    kills = 0
    for start in range(10 * KILLS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            said = program.stdout.readline()
            assert said == "started\n" or start, f"the first start said {said!r}"
            while program.poll() is None and kills < KILLS:
                time.sleep(chance.uniform(0.05, 1.5))
                victims = processes_of(program.pid, directory / "space")
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(victims), signal.SIGKILL)
                    kills += 1
            program.stdout.read()  # (a pipe that is full would hold it up)
        if program.returncode == 0 and kills >= KILLS:
            break
    else:
        pytest.fail("it has not come to an end")
    wait_until_left(directory / "space")
    with spool.open(directory / "space") as space:
        assert space.recovery.alone
        numbers = sorted(int(message.body) for message in space.browse("orders"))
        assert space.recovery.in_doubt == []
    assert numbers == list(range(len(numbers))), "lost, or written twice"
    assert len(numbers) >= 40 * BATCHES
    left = [file for stage in ("active", "prepared") for file in (directory / "space" / stage).iterdir()]
    assert left == []
