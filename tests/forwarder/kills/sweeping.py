"""A program that compacts and reclaims a space without end: ``python -m tests.forwarder.kills.sweeping SPACE LOG``.

A line of the log is a round that did something: how many files it wrote, and how many it removed.
"""

import sys
import time
from pathlib import Path

import spool
from tests import door
from tests.compaction import small_compactions

PAUSE_SECONDS = 0.5


def main(path: str, log: str) -> None:
    with small_compactions(), spool.open(path) as space, Path(log).open("a", buffering=1) as lines:
        print("sweeping", flush=True)
        while True:
            written, removed = door.compact(space), door.reclaim(space)
            if written or removed:
                lines.write(f"{written} {removed}\n")
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
