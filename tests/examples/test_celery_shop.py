"""The project examples/celery_shop: an order is shipped although its worker is killed in the middle."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import spool
from tests.celery.workers import SECONDS, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "celery_shop"


def _start(place: Path, *command: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "C_FORCE_ROOT": "1"}
    with open(place / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, *command], cwd=place, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip


def test_an_order_is_shipped_although_the_worker_is_killed(tmp_path: Path) -> None:
    place = shutil.copytree(EXAMPLE, tmp_path / "celery_shop")
    worker = ("-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--without-mingle")
    with spool.create(place / "queues") as space:
        first, order = _start(place, *worker), _start(place, "order.py")
        until(lambda: "celery" in space.queues() and space.stats("celery").enqueued)
        os.killpg(first.pid, signal.SIGKILL)
        second = _start(place, *worker)
        try:
            out, _ = order.communicate(timeout=SECONDS)
            assert out == "order 4711: receipt of 4711 for 12.90, parcel with tea, parcel with a cup\n"
        finally:
            second.terminate()
            first.communicate(timeout=SECONDS)
            second.communicate(timeout=SECONDS)
        assert space.stats("celery").ready == 0
