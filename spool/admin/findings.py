"""The findings of a scan or a check, as values that can be printed, compared and written as JSON."""

import enum
from dataclasses import dataclass, field

from spool.model.position import Position


class Kind(enum.StrEnum):
    """The kind of a finding. Only a finding of the kind DAMAGED can mean that messages are lost."""

    FINISHED = "finished"  # a whole commit whose writer died before it was published
    TORN = "torn"  # a file whose flush had not ended
    EMPTY_NUMBER = "empty number"  # a sequence number that was issued and has no file
    IN_DOUBT = "in doubt"  # a prepared branch that waits for its coordinator
    RETURNED = "returned"  # an adopted branch whose commit did not survive; it is decided like a prepared branch
    MOVED = "moved"  # a committed file that did not have its committed name
    ROLLED_BACK = "rolled back"  # a branch whose owner died
    COUNTED = "counted"  # messages whose holder died: an attempt was counted
    ALIVE = "alive"  # a live process works on the file
    TAKEN = "taken"  # dropped files that an intake captured but did not put as messages
    STRAY = "stray"  # a file that does not belong to a space
    MISSING = "missing"  # a directory of the space that does not exist
    EXPOSED = "exposed"  # a file or directory that other users may read or write
    DAMAGED = "damaged"  # bytes that were durable cannot be read; also in quarantine, if messages lay in the file
    QUARANTINED = "quarantined"  # a file in quarantine in which no messages lay


LEFT_ALONE = "left alone"


@dataclass(frozen=True)
class Finding:
    """One finding.

    name: the file, relative to the space.
    detail: the problem, as a sentence.
    action: the repair that was made, or will be made; "" if none.
    reason: the cause, for programs: one of few texts, e.g. "missing queue"; "" if only the detail says the cause.
    position: the commit and the ordinal of the damaged message, or of the first of several.
    """

    kind: Kind
    name: str
    detail: str
    action: str = ""
    reason: str = ""
    position: Position | None = None

    @property
    def repaired(self) -> bool:
        """True if an action was taken about the problem."""
        return self.action not in ("", LEFT_ALONE)

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.detail}" + (f"; {self.action}" if self.action else "")


@dataclass
class RecoveryReport:
    """The report of opening a space.

    alone: whether no other process had the space open, so that this process recovered the space.
    findings: the problems, with their repairs.
    in_doubt: the xids of the branches in doubt, as text.
    published: the highest published sequence number.
    seconds: how long the opening took.
    others: in the report of a plan, the other processes that have the space open, as far as this user may see them.
    """

    alone: bool
    findings: list[Finding] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    published: int = 0
    seconds: float = 0.0
    others: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind is Kind.DAMAGED]
