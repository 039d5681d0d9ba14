"""A write on a cluster with speculation: two attempts of one task at the same time, on two machines."""

import subprocess
import sys
from pathlib import Path

import pytest

import spool
from tests.forwarder.processes import ROOT, wait_until_left
from tests.shown import left_over


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_x05_of_two_attempts_of_a_task_at_once_one_is_written(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
    command = [sys.executable, "-m", "tests.forwarder.dataframes.speculating", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "attempts" / "1.1").exists(), "no second attempt was begun"
    wait_until_left(tmp_path / "space")
    with spool.open(tmp_path / "space") as space:
        assert space.recovery.alone
        assert [message.body for message in space.browse("orders")] == list(map(str, range(400)))
    assert left_over(tmp_path / "space") == []
