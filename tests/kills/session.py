"""A short life of a space, the same each time: every kind of transaction, a reclaim, and the space opened again."""

import random

import spool
from tests import door
from tests.torture.history import Log
from tests.torture.windows import WindowDisk
from tests.torture.worker import KINDS, Worker, XaWorker

# A worker's kind, and its lot: below 0.1 a transaction is rolled back; below 0.8 a prepared branch is committed.
GOES_WELL, GOES_BACK, VOTES_IN_VAIN = 0.5, 0.0, 0.9
FIRST = (
    ("putter", GOES_WELL), ("transaction-putter", GOES_WELL), ("transaction-putter", GOES_BACK),
    ("xa-putter", GOES_WELL), ("xa-putter", VOTES_IN_VAIN), ("getter", GOES_WELL), ("mover", GOES_WELL),
    ("mover", GOES_BACK), ("xa-mover", GOES_WELL), ("xa-mover", VOTES_IN_VAIN), ("dropper", GOES_WELL),
    ("batch-getter", GOES_WELL),
)  # fmt: skip
SECOND = (("putter", GOES_WELL), ("mover", GOES_WELL))


class Lot(random.Random):
    """Always the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def live(root: str, log_path: str) -> None:
    """Open, work, reclaim, close; and again, now with files to overwrite."""
    for incarnation, steps in enumerate((FIRST, SECOND)):
        log = Log(log_path, "session")
        disk = WindowDisk(root, log, random.Random(0), {}, lambda window: None)
        with spool.open(disk) as space:
            for place, (kind, lot) in enumerate(steps):
                _worker(space, log, f"{kind}-{place}", kind, incarnation, lot).step()
            log.tx = ""
            door.reclaim(space)


def _worker(space: spool.Space, log: Log, name: str, kind: str, incarnation: int, lot: float) -> Worker:
    log.worker = name
    options = {"past": ()} if issubclass(KINDS[kind], XaWorker) else {}
    return KINDS[kind](space, log, incarnation, Lot(lot), **options)
