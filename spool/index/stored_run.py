"""Runs for a process without an index: neighbouring messages, their control fields, and the places of their bodies.

A Spark task gets stored runs from the process that has the space open. Neighbouring messages with the same control
fields are one stored run, so the task gets fewer entries than messages.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spool.format.header import SectionEntry
from spool.format.reader import BodyPlace
from spool.index.commit import FileRef
from spool.index.run import Run
from spool.model.message import message_id, with_defaults
from spool.model.position import Position
from spool.model.settings import QueueConfig


class StoredRun(NamedTuple):
    """Neighbouring messages of one commit with the same queue and control fields.

    file, bodies, base: as in a ``Run``.
    branch, in_branch: the id of the messages' branch, and the ordinal of the first message in this branch.
    committed_at: seconds since the epoch.
    """

    file: FileRef
    bodies: BodyPlace | SectionEntry
    base: int
    queue: str
    number: int
    first: int
    length: int
    branch: bytes
    in_branch: int
    committed_at: float
    attributes: Mapping[str, Any]

    @property
    def position(self) -> Position:
        """The position of the first message."""
        return Position(self.number, self.first)

    @property
    def id(self) -> str:
        """The id of the first message."""
        return message_id(self.branch, self.in_branch)

    @property
    def bytes(self) -> int:
        """The approximate number of bytes of the bodies. The exact number would need the table of the section."""
        if isinstance(self.bodies, BodyPlace):
            return self.bodies.length
        return self.bodies.bodies_bytes * self.length // self.bodies.messages

    def part(self, first: int, length: int) -> "StoredRun":
        """Return ``length`` of the messages, from the ordinal ``first`` on."""
        return self._replace(first=first, length=length, in_branch=self.in_branch + first - self.first)


def stored_run_of(run: Run, config: QueueConfig | None) -> StoredRun:
    """Return the messages of a run as a stored run.

    ``config``: the options of the queue; None if the settings lack the queue.
    """
    attributes = run.attributes if config is None else with_defaults(config, run.attributes)
    return StoredRun(
        run.file, run.bodies, run.base, run.queue.name, run.number, run.first, run.live, run.branch,
        run.first - run.begin, run.committed_at, attributes,
    )  # fmt: skip


def cut(runs: Sequence[StoredRun], most: int, most_bytes: int = sys.maxsize) -> Iterator[list[StoredRun]]:
    """Yield the messages, in order, in lists of at most ``most`` messages and about ``most_bytes`` bytes. Each list has
    at least one message."""
    some, count, size = list[StoredRun](), 0, 0.0
    for rest in runs:
        each = rest.bytes / rest.length
        while rest.length:
            fit = most if not each else int((most_bytes - size) / each)
            length = min(rest.length, most - count, max(fit, 0 if some else 1))
            if length:
                some.append(rest.part(rest.first, length))
                count, size = count + length, size + length * each
                rest = rest.part(rest.first + length, rest.length - length)
            if rest.length:
                yield some
                some, count, size = [], 0, 0.0
    if some:
        yield some
