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
from tests.forwarder.processes import ROOT, processes_of, wait_until_left
from tests.shown import left_over

KILLS, BATCHES = 30, 60


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_x05_every_row_is_written_once_if_any_process_is_killed(kind: str, tmp_path: Path, chance: random.Random):
    directory = tmp_path
    with spool.create(directory / "space") as space:
        space.create_queue("orders")
    command = [sys.executable, "-m", "tests.forwarder.dataframes.writing", kind, str(directory), str(BATCHES)]
    kills = 0
    for start in range(10 * KILLS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            try:
                said = program.stdout.readline()
                assert said == "started\n" or start, f"the first start said {said!r}"
                while program.poll() is None and kills < KILLS:
                    time.sleep(chance.uniform(0.05, 1.5))
                    victims = processes_of(program.pid, directory / "space")
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(victims), signal.SIGKILL)
                        kills += 1
                program.stdout.read()  # (a pipe that is full would hold it up)
                program.wait()
            finally:
                program.kill()  # or a test that fails would wait for its end
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
    assert left_over(directory / "space") == []
