"""Offers: the messages of a task that the forwarder's process offers to workers that do not see the space.

A worker on the space's machine has a ``RemoteBranch``; any other worker has an ``OfferedBranch``. An ``OfferedBranch``
gets the bodies from the forwarder's process, and returns the outcomes. The forwarder's process writes the branch and
votes. Calls in progress are not recorded. If a call ends its worker, the round counts an attempt. If the forwarder is
killed during a call, no attempt is counted.
"""

import json
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from forwarder.network.arrow import batches
from forwarder.network.outcome_codec import sendable
from forwarder.network.server_calls import act, read, vote_of, write
from forwarder.network.space_directory import Place
from spool.client.connection import HttpConnection
from spool.engine.remote import CallMarks, DamagedMessage, EndedCall, ReadMessage, StoredRun, Vote, decoded, origin_of
from spool.errors import ProtocolError
from spool.model.position import Position
from spool.workers.effects import Effect, OutcomePolicy

_BYTES: Any = pa.large_binary()
BODIES = pa.schema({"raw": _BYTES, "damaged": pa.string()})
"""The columns of messages. ``damaged``: why the body cannot be read; otherwise null."""
OUTCOMES = pa.schema({"place": pa.int32(), "at": pa.float64(), "outcome": _BYTES})
"""The columns of outcomes, with the fields of ``EndedCall``."""


@dataclass(frozen=True)
class Offer:
    """Messages that a forwarder offers.

    key: the number of the offer in the forwarder's process. place: the directory of the space.
    """

    connection: HttpConnection
    key: int
    place: Place


class OfferedBranch:
    """The branch of a task, written by the forwarder's process. Not thread-safe.

    Args:
        place: the place of the chunk in its task.
        attempt: the number of the attempt at the task.
    """

    def __init__(self, offer: Offer, place: int, attempt: int) -> None:
        self._offer = offer
        self._attempt = {"key": offer.key, "task": place, "attempt": attempt}
        self._ahead = float(act(offer.connection, "now")["now"]) - time.time()

    def now(self) -> float:
        """Return the time of the forwarder's machine, whose clock may differ from the clock of this machine."""
        return time.time() + self._ahead

    def record_calls(self, marks: CallMarks) -> None:
        """Do nothing."""

    def begin_call(self, place: int) -> None:
        """Do nothing."""

    end_call = begin_call

    def messages(self, runs: Iterable[StoredRun]) -> Iterator[ReadMessage | DamagedMessage]:
        """Get the messages of the offer. ``runs``: the control fields of these messages."""
        with closing(self._rows()) as rows:
            for whole in runs:
                origin = origin_of(whole)
                for ordinal in range(whole.first, whole.first + whole.length):
                    raw, damaged = next(rows, (None, None))
                    if damaged is not None:
                        yield DamagedMessage(Position(whole.number, ordinal), damaged)
                    elif raw is None:
                        raise ProtocolError("the forwarder sent fewer messages than it claimed")
                    else:
                        yield decoded(origin, ordinal, raw)

    def _rows(self) -> Generator[tuple[bytes | None, str | None]]:
        with closing(read(self._offer.connection, json.dumps(self._attempt).encode())) as found:
            for batch in found:
                yield from zip(values(batch.column(0)), batch.column(1).to_pylist(), strict=True)

    def conclude(
        self, policy: OutcomePolicy, calls: Sequence[EndedCall]
    ) -> tuple[Vote | None, list[tuple[Effect, str]]]:
        """Send the outcomes, and return the vote and the effect of each call. ``policy`` is not sent."""
        rows = ((call.place, call.at, sendable(call.outcome)) for call in calls)
        answer = write(self._offer.connection, batches(OUTCOMES, rows), OUTCOMES, **self._attempt)
        effects = [(Effect(effect), str(reason)) for effect, reason, times in answer["effects"] for _ in range(times)]
        if len(effects) != len(calls):
            raise ProtocolError("the forwarder answered for another number of outcomes")
        return vote_of(answer["vote"]), effects

    def close(self) -> None:
        """Do nothing: the forwarder's process closes the branch."""


def values(column: Any) -> list[bytes | None]:
    """Return the values of a column of bytes. (``to_pylist`` takes ten times as long.)"""
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("q")[column.offset : column.offset + len(column) + 1].tolist()
    raw = b"" if data is None else data.to_pybytes()
    found: list[bytes | None] = [raw[begin:end] for begin, end in pairwise(ends)]
    if column.null_count:
        found = [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found
