"""Applications: a space remembers the last batch of each application, so that a repeated batch is not committed twice.

An application gives its batches increasing numbers. The commit of a batch records the number as a fact. So after a
crash both the batch and its number exist, or neither.

By mistake, two programs may have the same application name, with numbers that begin at 0. The ``source`` distinguishes
their batches.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from spool.errors import CorruptedFile, InvalidArgument
from spool.log.engine_commit import commit_if
from spool.log.write_set import WriteSet
from spool.model.text import shown
from spool.store.store import Store

REMEMBERED_SECONDS = 90 * 86_400.0
"""How long the last batch of an application without a source is remembered."""

Facts = Mapping[str, tuple[int, Any, float | None]]
"""The facts of an index, by key."""


class BatchOf(NamedTuple):
    """A batch of an application.

    application: the name of the application, 1 to 255 characters.
    number: the number of the batch.
    source: the origin of the numbers, e.g. the checkpoint of a stream; "" if the program itself counts its batches.
    """

    application: str
    number: int
    source: str = ""

    def is_committed(self, facts: Facts, now: float) -> bool:
        """Return whether this batch, or a later batch of its application, was committed.

        Args:
            facts: the facts of an index that has applied every issued commit.
            now: the time in seconds since the epoch.

        Raises:
            InvalidArgument: the last batch of this application has another source.
            CorruptedFile: the record of the last batch is damaged.
        """
        _, value, expiry = facts.get(self._key, (0, None, None))
        if value is None or (expiry is not None and expiry <= now):
            return False
        match value:
            case [int(number), str(source)]:
                pass
            case _:
                raise CorruptedFile(f"the record of the application {self.application!r} is damaged: {shown(value)}")
        if source != self.source:
            raise InvalidArgument(
                f"the application {self.application!r} has committed batch {number} of {_described(source)}, and "
                f"this is batch {self.number} of {_described(self.source)}: give this program another application id"
            )
        return self.number <= number

    def fact(self, now: float) -> WriteSet:
        """Return the record that is committed together with the batch. ``now``: the time in seconds since the epoch."""
        return WriteSet().fact(self._key, [self.number, self.source], None if self.source else now + REMEMBERED_SECONDS)

    def record_apart(self, store: Store, number: int) -> None:
        """Record the batch again, in a separate commit.

        Otherwise the first record would keep all files of the batch's commit. If another batch was recorded meanwhile,
        do nothing. The caller has reported the batch as committed.

        Args:
            number: the sequence number of the commit with the batch.
        """
        fact = self.fact(store.clock.now())
        commit_if(store, fact, lambda: store.view.index.facts.get(self._key, (0,))[0] == number)

    @property
    def _key(self) -> str:
        return f"application:{self.application}"


def _described(source: str) -> str:
    return f"the stream {source}" if source else "a program without a stream"
