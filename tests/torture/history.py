"""What each worker wrote down: an append-only log a worker, one ``write`` a line, so a kill never tears one.

A line is a JSON object with ``event``, ``at`` (the machine's monotonic clock, comparable between processes) and what
the event needs. Positions are ``[number, ordinal]``; ``tx`` names one transaction for good.

====================  ================================================================================================
``start``             a process begins; what is unfinished above this line in the same log died with its predecessor
``begin``             ``tx``, ``noted``: whether its claims are noted, so that its death counts as a try
``put``               ``queue``, ``keys``: is about to be put in ``tx``
``got``               ``queue``, ``messages`` ``[[key, position, attempts], …]``: was delivered in ``tx``
``try``, ``claimed``  ``number``, ``first``, ``count``: is about to be locked; was locked (seen at the disk)
``number``            ``number``: the file is about to get it (seen at the disk)
``prepare``           the vote is about to be asked for, ``xid``; ``prepared``: it was told
``commit``            the decision was made, the commit is about to be asked for
``ack``               the commit was acknowledged
``rollback``          is about to be rolled back, and never to be committed
``unknown``           the commit said that its outcome is unknown
``broken``            a promise was seen broken on the spot: ``what``
====================  ================================================================================================
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]


class Log:
    """One worker's log, open for appending. ``tx`` is added to every line."""

    def __init__(self, path: str) -> None:
        self.tx = ""
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "at": time.monotonic_ns(), "tx": self.tx, **fields}
        os.write(self._handle, json.dumps(record).encode() + b"\n")


def read(path: str) -> Iterator[Record]:
    """A log's lines in order; none if the worker never got to write one."""
    try:
        with open(path, encoding="utf-8") as file:
            yield from map(json.loads, file)
    except FileNotFoundError:
        return
