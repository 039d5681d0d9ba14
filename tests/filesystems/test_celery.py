"""Celery on a disk that another program keeps full: publishing programs get an error, and tasks run once."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from tests.celery.tasks import LOG, application
from tests.celery.workers import SECONDS, Worker, prepared, until, working
from tests.filesystems.volume import EXT4, Volume, missing
from tests.threads import beside

TASKS = 40


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if reason := missing(EXT4.make[0]):
        pytest.skip(reason)
    with Volume(EXT4, tmp_path) as volume:
        yield volume.make(megabytes=16).mount()


@contextmanager
def kept_full(directory: Path) -> Iterator[None]:
    """Write until the disk is full, and then take each byte that becomes free; at last make room."""
    ended, full = threading.Event(), threading.Event()

    def fill() -> None:
        with open(directory / "filler", "ab", buffering=0) as file:
            while not ended.is_set():
                for size in (1 << 20, 4096, 1):
                    try:
                        while not ended.is_set():
                            file.write(bytes(size))
                    except OSError:
                        pass
                full.set()
                time.sleep(0.002)

    with beside(fill, ended.set):
        assert full.wait(SECONDS)
        yield
    (directory / "filler").unlink()


def test_tasks_run_once_while_the_disk_is_full(volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, gate = tmp_path / "tasks.log", tmp_path / "gate"
    monkeypatch.setenv(LOG, str(log))
    (tmp_path / "space").symlink_to(volume.path / "space")
    with prepared(volume.path) as space, closing(application(space.path)) as app, working(tmp_path, "full") as worker:
        for _ in range(2):
            app.tasks["wait_for_file"].delay(str(gate))
        until(lambda: space.stats("celery").claimed == 2, worker)
        sent = [app.tasks["logged"].delay().id for _ in range(TASKS)]
        with kept_full(volume.path):
            with pytest.raises(OperationalError, match="free space on the disk"):
                for _ in range(100):
                    app.tasks["add"].delay(1, 2)
            with pytest.raises(AssertionError, match=r"Unrecoverable error: DiskFailure.*free space on the disk"):
                Worker(tmp_path, "another")
            gate.touch()
            until(lambda: log.exists() and log.read_text().count("end") >= TASKS, worker)
        until(lambda: space.stats("celery").claimed == space.stats("celery").ready == 0, worker)
        assert app.tasks["add"].delay(1, 2).get(timeout=SECONDS) == 3
        runs = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin"))
        assert runs == Counter(sent)
        assert space.check() == []


@pytest.mark.slow
def test_a_worker_runs_the_tasks_of_a_killed_one_while_the_disk_is_full(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = tmp_path / "tasks.log", tmp_path / "gate"
    monkeypatch.setenv(LOG, str(log))
    (tmp_path / "space").symlink_to(volume.path / "space")
    with prepared(volume.path) as space, closing(application(space.path)) as app:
        with working(tmp_path, "killed") as killed, working(tmp_path, "heir") as heir:
            for _ in range(4):
                app.tasks["wait_for_file"].delay(str(gate))
            until(lambda: space.stats("celery").claimed == 4, heir)
            sent = [app.tasks["logged"].delay().id for _ in range(10)]
            until(lambda: space.stats("celery").ready == 0, heir)
            with kept_full(volume.path):
                killed.kill()
                gate.touch()
                until(lambda: log.exists() and log.read_text().count("end") >= len(sent), heir)
            until(lambda: space.stats("celery").claimed == space.stats("celery").ready == 0, heir)
        assert {line.split()[1] for line in log.read_text().splitlines() if line.startswith("end")} == set(sent)
        assert space.check() == []
