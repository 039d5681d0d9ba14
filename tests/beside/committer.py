"""A program that commits all the while, in each space that it finds below a directory, until its standard input ends.

``python -m tests.beside.committer DIRECTORY`` puts messages into the queue ``zz`` of each space and takes them again.
It prints a dot after its first commit, and at the end a JSON object: for each space, the ids that it put and took. A
space that was deleted meanwhile is left out.
"""

import json
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

import spool

QUEUE = "zz"
_PAUSE_SECONDS, _LOOK_SECONDS = 0.02, 0.05
_LEFT = 10  # messages of one process that wait in the queue


class Committed:
    """One space in which this process commits. ``put``, ``got``: the ids of its messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.space = spool.open(path)
        self.space.create_queue(QUEUE, exist_ok=True)
        self.put: list[str] = []
        self.got: list[str] = []

    def commit(self) -> bool:
        """Commit a put and a get. Return False if the space was deleted."""
        try:
            if len(self.put) < len(self.got) + _LEFT:
                self.put.append(self.space.put(QUEUE, "x"))
            with self.space.transaction() as tx:
                message, again = tx.get(QUEUE, timeout=1), []
                if len(self.put) % 3 == 1:
                    again = [tx.put(QUEUE, message.body)]
            self.got.append(message.id)
            self.put += again
        except spool.Empty:
            pass
        except (spool.SpoolError, OSError):
            if self.path.exists():
                raise
            return False
        return True


def _spaces(directory: Path) -> list[Path]:
    """Return the spaces below a directory that a process has opened."""
    found = []
    for path, directories, files in os.walk(directory):
        if "space.toml" in files:
            directories.clear()  # (``walk`` does not enter them)
            if os.path.exists(f"{path}/run/requests"):
                found.append(Path(path))
    return found


def main() -> None:
    directory, looked, spoken = Path(sys.argv[1]), 0.0, False
    spaces: dict[Path, Committed] = {}
    while not select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
        if time.monotonic() > looked + _LOOK_SECONDS:
            looked = time.monotonic()
            for path in _spaces(directory):
                with suppress(spool.SpoolError, OSError):  # a space that is being created or deleted
                    if path not in spaces:
                        spaces[path] = Committed(path)
        for path, one in [*spaces.items()]:
            if not one.commit():
                del spaces[path]
        if spaces and not spoken:
            os.write(1, b".")
            spoken = True
    print(json.dumps({str(one.path): [one.put, one.got] for one in spaces.values()}))


if __name__ == "__main__":
    main()
