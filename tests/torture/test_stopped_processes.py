"""A process that is stopped in a critical window delays no other process beyond its time limit, and loses no message
itself."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spool
from spool.runtime.clock import Clock
from tests.at_once import AT_ONCE
from tests.clocks import timed
from tests.torture import aftermath, windows, worker
from tests.torture.history import Log
from tests.torture.nursery import Nursery
from tests.torture.windows import WindowDisk
from tests.torture.worker import KINDS

REAL_SECONDS = 20.0


class Hasty(Clock):
    """A clock by which waiting calls see time pass a hundred times as fast."""

    def monotonic(self) -> float:
        return time.monotonic() * 100

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 100)


@contextmanager
def stopped_in(window: str, kind: str, root: Path, logs: Path, nursery: Nursery) -> Iterator[None]:
    """Stop a worker in the window; afterwards the worker goes on to its end."""
    arguments = [str(root), str(logs / f"{kind}.log"), kind, kind, "0", "1", f'{{"{window}": 1.0}}']
    child = nursery.bear(arguments, str(logs / "stderr"))
    try:
        assert child.stdout.readline() == f"window {window}\n"
        child.stop()
        yield
        child.go_on()
        child.stdin.close()
        assert child.wait(REAL_SECONDS)
        assert child.stdout.read().endswith("bye\n"), (logs / "stderr").read_text()
    finally:
        child.kill()
        child.close()
        nursery.close()


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("window", "kind"),
    [
        (windows.RENAME_TO_PUBLICATION, "putter"),
        (windows.FLUSH_TO_PUBLICATION, "putter"),
        (windows.CLAIM_TO_SECOND_LOOK, "getter"),
        (windows.PREPARE_TO_UNLOCK, "xa-putter"),
        (windows.DECISION_TO_MOVE, "xa-putter"),
        (windows.COMMIT_TO_REMOVAL, "dropper"),
    ],
)
def test_no_process_waits_for_ever_for_a_stopped_process(window: str, kind: str, tmp_path: Path) -> None:
    root, logs = tmp_path / "space", tmp_path / "logs"
    logs.mkdir()
    with spool.create(root, defaults=AT_ONCE) as space:
        worker.make_queues(space)
    assert _work(root, logs, "before", Clock(), "putter", "putter", "transaction-putter") == []
    with stopped_in(window, kind, root, logs, Nursery()):
        begun = time.monotonic()
        errors = _work(root, logs, "bystander", Hasty(), "putter", "mover", "getter", "putter")
        assert time.monotonic() - begun < REAL_SECONDS
        if window in (windows.RENAME_TO_PUBLICATION, windows.FLUSH_TO_PUBLICATION):
            assert errors, "it cannot be overtaken"
        unclear = [error for error in errors if not isinstance(error, spool.TransactionTimeout | spool.CommitUnknown)]
        assert unclear == []
        assert all("process " in str(error) for error in errors), "the text names who holds it"
    aftermath.look(str(root), logs, random.Random(1)).assert_nothing_is_broken()


def _work(root: Path, logs: Path, name: str, clock: Clock, *kinds: str) -> list[spool.SpoolError]:
    """Run a step of each kind; returns the errors."""
    log, errors = Log(str(logs / f"{name}.log"), name), []
    disk = WindowDisk(str(root), log, random.Random(0), {}, lambda window: None)
    with spool.open(timed(disk, clock)) as space:
        for place, kind in enumerate(kinds):
            log.worker = f"{name}-{place}"
            try:
                KINDS[kind](space, log, 0, random.Random(place)).step()
            except spool.SpoolError as error:
                errors.append(error)
    return errors
