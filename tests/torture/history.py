"""The logs of the workers: one append-only file each, one ``write`` a line.

A kill tears a line only at the edge of a page. A torn line counts as not written: the worker died before the step that
the line announces, or the line tells an outcome, which is then unknown.

A line is a JSON object with ``event``, ``at`` (the machine's monotonic clock, in ns: comparable between processes),
``worker``, ``tx`` (a transaction's name, never used twice) and the fields of the event. A position is [number,
ordinal].

=====================  ===============================================================================================
``begin``              ``noted``: are its claims noted, so that its death counts as an attempt; ``ordered``: are its
puts in
                       the worker's order
``put``                ``queue``, ``keys``, and ``priority`` if it is not 50: are put in this transaction
``got``                ``queue``, ``messages``: [[key, position, attempts], …] were delivered in it
``try``, ``claimed``   ``number``, ``first``, ``count``: are about to be locked; were locked (seen at the disk)
``number``             ``number``: its file is about to get that number (seen at the disk); None: it may get one
``joined``             puts of other workers are about to be committed before its own, in its file
``prepare``            its vote is about to be asked for; ``prepared``: it was told
``commit``             commit was decided, and is about to be asked for; ``ack``: it was acknowledged
``rollback``           rollback was decided, and is about to be asked for
``saw``                ``queue``, ``keys``: were there at a moment since ``begun``; ``all``: and no others
``broken``             ``what``: a promise was seen broken on the spot
=====================  ===============================================================================================
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

Record = dict[str, Any]


class Log:
    """One worker's log, open for appending; ``tx`` is the transaction that it is in."""

    def __init__(self, path: str, worker: str) -> None:
        self.worker = worker
        self.tx = ""
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(self._handle, b"\n")  # the end of a torn line

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "at": time.monotonic_ns(), "worker": self.worker, "tx": self.tx, **fields}
        os.write(self._handle, json.dumps(record).encode() + b"\n")


def read(path: str) -> Iterator[Record]:
    """A log's lines in order; none if the worker never came to write one."""
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                with suppress(json.JSONDecodeError):
                    yield json.loads(line)
    except FileNotFoundError:
        return
