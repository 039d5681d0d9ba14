"""The findings of a scan or a check, as values that can be printed, compared and written as JSON."""

import enum
from dataclasses import dataclass, field

from spool.model.position import Position


class Kind(enum.StrEnum):
    """The kind of a finding. Only a finding of the kind DAMAGED can mean that messages are lost."""

    FINISHED = "finished"  # a whole commit whose writer died before the publication
    TORN = "torn"  # a file that was not completely flushed
    EMPTY_NUMBER = "empty number"  # a sequence number that was issued and has no file
    IN_DOUBT = "in doubt"  # a prepared branch that waits for its coordinator
    RETURNED = "returned"  # an adopted branch whose commit did not survive; it is decided like any prepared branch
    MOVED = "moved"  # a committed file that did not have its final name
    ROLLED_BACK = "rolled back"  # a branch whose owner died
    COUNTED = "counted"  # messages whose holder died; the holder's attempt was counted
    ALIVE = "alive"  # a file on which a live process works
    TAKEN = "taken"  # dropped files that an intake captured but did not put as messages
    STRAY = "stray"  # a file that does not belong to a space
    MISSING = "missing"  # a directory of the space that does not exist
    EXPOSED = "exposed"  # a file or directory that other users may read or write
    DAMAGED = "damaged"  # durable bytes cannot be read; or a file in quarantine that had messages
    QUARANTINED = "quarantined"  # a file in quarantine that had no messages


LEFT_ALONE = "left alone"


@dataclass(frozen=True)
class Finding:
    """One finding.

    name: the file, relative to the space.
    detail: the problem, as a sentence.
    action: the repair that was made, or will be made; "" without a repair.
    reason: the cause, as one of a few fixed texts for programs, e.g. "missing queue"; "" if only the detail names the
        cause.
    position: the commit and the ordinal of the first damaged message.
    """

    kind: Kind
    name: str
    detail: str
    action: str = ""
    reason: str = ""
    position: Position | None = None

    @property
    def repaired(self) -> bool:
        """True if the problem was repaired."""
        return self.action not in ("", LEFT_ALONE)

    @property
    def is_damage_left(self) -> bool:
        """True for damage that was neither repaired nor moved to quarantine. A queue that is missing is no damage."""
        ended = self.repaired or self.name.startswith("quarantine/") or self.reason == "missing queue"
        return self.kind is Kind.DAMAGED and not ended

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.detail}" + (f"; {self.action}" if self.action else "")


@dataclass
class RecoveryReport:
    """The report of opening a space.

    alone: whether this process recovered the space, because no other process had the space open.
    findings: the problems, with their repairs.
    in_doubt: the xids of the branches in doubt, as text.
    published: the highest published sequence number.
    seconds: how long the opening took.
    others: the other processes that have the space open, if this user may see them. ``spool.open`` leaves this list
        empty.
    """

    alone: bool
    findings: list[Finding] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    published: int = 0
    seconds: float = 0.0
    others: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> list[Finding]:
        """The findings of the kind *damaged*."""
        return [finding for finding in self.findings if finding.kind is Kind.DAMAGED]


@dataclass(frozen=True)
class RecoveryRecord:
    """The last recovery that found something.

    at: the time of the recovery, in seconds since the epoch.
    seconds: how long the recovery took.
    findings: the findings, at most 1,000.
    """

    at: float
    seconds: float
    findings: tuple[Finding, ...]
