"""What a scan or a check found, as values that can be printed, compared and written as JSON."""

import enum
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """What a finding is about. DAMAGED is the only one that means loss."""

    FINISHED = "finished"  # a commit whose writer died before it was published, and which was whole
    TORN = "torn"  # bytes that nobody was promised
    EMPTY_NUMBER = "empty number"  # a number that was given out and never got a file
    IN_DOUBT = "in doubt"  # a prepared branch that waits for its coordinator
    RETURNED = "returned"  # an adopted branch whose decision did not survive: in doubt again
    MOVED = "moved"  # an adopted branch under its prepared name
    ROLLED_BACK = "rolled back"  # a branch whose owner is gone
    COUNTED = "counted"  # messages whose holder died: a try more
    ALIVE = "alive"  # somebody is at it
    TAKEN = "taken"  # dropped files that an intake took and did not finish
    STRAY = "stray"  # not ours
    MISSING = "missing"  # a directory of the space
    EXPOSED = "exposed"  # other users may read or write it
    DAMAGED = "damaged"  # what was durable cannot be read
    QUARANTINED = "quarantined"  # lies in quarantine


LEFT_ALONE = "left alone"


@dataclass(frozen=True)
class Finding:
    """One thing that was found: the file (relative to the space), what it is, and what was or will be done."""

    kind: Kind
    name: str
    detail: str
    action: str = ""

    @property
    def mended(self) -> bool:
        """Whether a check that repairs did something about it."""
        return self.kind in (Kind.DAMAGED, Kind.STRAY, Kind.MISSING, Kind.EXPOSED) and self.action not in (
            "",
            LEFT_ALONE,
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}: {self.detail}" + (f"; {self.action}" if self.action else "")


@dataclass
class RecoveryReport:
    """What opening a space found. ``alone``: no other process had it open, so it was recovered, not only joined."""

    alone: bool
    findings: list[Finding] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    published: int = 0
    seconds: float = 0.0

    @property
    def damaged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind is Kind.DAMAGED]
