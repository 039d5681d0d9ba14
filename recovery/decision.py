"""Decisions of recovery and of the check, as data, and the sentences that describe the decisions to people."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from spool.admin.findings import LEFT_ALONE, Finding, Kind
from spool.disk.quarantine import FileCause, FileReason
from spool.model import layout
from spool.model.position import Position
from spool.model.text import plural
from spool.model.xid import Xid


class Step(enum.Enum):
    """A step of recovery or repair. No step deletes messages; a file that cannot be repaired is kept in quarantine."""

    NONE = enum.auto()
    LEAVE = enum.auto()
    # Steps when the space opens.
    NAME = enum.auto()  # restore the name that a commit or a vote lost in a power cut
    FINISH = enum.auto()  # publish the commit of a dead writer
    DISCARD = enum.auto()  # move a numbered file that was not flushed to quarantine; the number becomes an empty commit
    FILL = enum.auto()  # create an empty commit for a number that has no file
    RETURN = enum.auto()  # put an adopted branch back into prepared/
    QUARANTINE = enum.auto()  # move the file to quarantine
    MOVE = enum.auto()  # move a committed branch to its committed name
    ROLL_BACK = enum.auto()
    COUNT = enum.auto()  # count an attempt for each message that a dead process held
    REMOVE = enum.auto()
    WRITE_NUMBER = enum.auto()  # write the sequence number of the file's name into the header again; 0: of a vote
    # Steps of a repair.
    TRUNCATE = enum.auto()  # remove the bytes after the file's proper end
    REPLACE_BY_EMPTY = enum.auto()  # move a published file to quarantine; its number becomes an empty commit
    KEEP_COPY = enum.auto()  # copy the file to quarantine; its undamaged messages are still served
    RECORD = enum.auto()  # the file is lost, so write only a reason file into quarantine
    QUARANTINE_MESSAGES = enum.auto()  # move messages with damaged bodies to quarantine
    RESET_DIGEST = enum.auto()  # compute the digest of retired numbers again
    CREATE_QUEUE = enum.auto()
    CREATE_DIRECTORY = enum.auto()
    RESTRICT = enum.auto()  # permit only the owner to use the file or directory
    PROTECT = enum.auto()  # forbid users of the directory to remove files of other users


class Reason(enum.StrEnum):
    """The reason for a decision, as programs read it. ``detail``: the template of `Decision.detail`, which people
    read."""

    detail: str

    def __new__(cls, reason: str, detail: str) -> Self:
        self = str.__new__(cls, reason)
        self._value_, self.detail = reason, detail
        return self

    LOST_NAME = "lost name", "a power cut took the name of commit {d.number}"
    LOST_VOTE = "lost name of a vote", "a power cut took the name of prepared branch {d.xid}"
    HALF_MARKED = "damaged mark", "a power cut interrupted the write of its mark; all other bytes are whole"
    UNPUBLISHED = "unpublished", "its writer ended before it was visible ({d.cause})"
    UNFLUSHED = "unflushed", "it was not flushed yet: {d.cause}"
    NO_FILE = "no file", "the number was issued and has {d.cause}"
    UNADOPTED = "unadopted", "it is damaged, and no commit adopts it"
    LOST_COMMIT = "lost commit", "branch {d.xid}: the commit that adopted it did not survive"
    DAMAGED_VOTE = "damaged vote", "{d.cause}; either its vote was never acknowledged, or the disk lost bytes of it"
    COMMITTED = "committed", "it is committed"
    REFUSED = "rolled back by an administrator", "an administrator rolled it back"
    UNDECIDED = "undecided", "{waits} for a decision of its coordinator, or by spool-admin transaction"
    COORDINATOR_DIED = "coordinator died", "its coordinator ended without a decision"
    COORDINATOR_LIVES = "coordinator lives", "its coordinator works on it"
    OWNER_DIED = "owner died", "its owner died before it voted"
    OWNER_LIVES = "owner lives", "its owner works on it"
    HOLDER_DIED = "holder died", "the process that worked on these messages died"
    NO_ATTEMPT = "no attempt", "the process that died worked on no message"
    UNFINISHED_COPY = "unfinished copy", "an unfinished copy"
    INTAKE_DIED = "intake died", "dropped files; the next spool-intake finishes them"
    INTAKE_LIVES = "intake lives", "an intake works on it"
    FOREIGN = "foreign", "no file of a queue space"
    FUTURE_NUMBER = "future number", "no commit has this number yet"
    UNREADABLE = "unreadable", "{d.cause}"
    OTHER_NUMBER = "other number", "it carries the number {d.count}"
    DAMAGED_NUMBER = "damaged number", "{d.cause}"
    DAMAGED_TABLE = "damaged table", "{d.cause}: the messages it lists cannot be read"
    DAMAGED_BODY = "damaged body", "{d.cause}"
    DAMAGED_BRANCH = "damaged branch", "{d.cause}"
    OTHER_BRANCH = "other branch", "it is another branch's file"
    SURPLUS_BYTES = "surplus bytes", "{surplus} its end; all before is whole"
    MISSING_COMMIT = "missing commit", "{missing}, and reclaim has not removed {them}"
    RESTORED_COMMIT = "restored commit", "{restored} reclaimed, and consumed messages were put back"
    MISSING_QUEUE = "missing queue", "queue {d.queue}, in which {waits}, is missing from it: create the queue"
    MISSING_DIRECTORY = "missing directory", "the directory is missing"
    EXPOSED = "exposed", "other users may use it (mode {d.count:04o})"
    UNPROTECTED = "unprotected", "users who drop files there may remove files of other users (mode {d.count:04o})"


@dataclass(frozen=True)
class Decision:
    """A decision about one file, or about messages or a queue in that file.

    name: the path of the file, relative to the space.
    xid, number, positions, queue: the branch, the commit, the messages or the queue that the step changes in addition
        to the file.
    count: the number that `detail` contains: a number of messages, bytes or files, or a file mode.
    cause: the state of the file as its reader reports it, e.g. why the file is unreadable.
    """

    kind: Kind
    name: str
    reason: Reason
    step: Step = Step.NONE
    xid: Xid | None = None
    number: int = 0
    positions: tuple[Position, ...] = ()
    queue: str = ""
    count: int = 0
    cause: str = ""

    @property
    def is_told(self) -> bool:
        """Return whether a report has this decision. A report leaves out work in progress, and unneeded files of
        processes that died without work."""
        return self.kind is not Kind.ALIVE and self.reason is not Reason.NO_ATTEMPT

    @property
    def detail(self) -> str:
        """Return the finding as a sentence."""
        return self.reason.detail.format(
            d=self,
            waits=plural(self.count, "message waits", "messages wait") if self.count else "it waits",
            surplus=plural(self.count, "byte follows", "bytes follow"),
            missing=_some(self, "it is missing", "file is missing", "files are missing"),
            restored=_some(self, "it was", "file was", "files were"),
            them="it" if self.count == 1 else "them",
        )

    def file_reason(self, otherwise: FileCause = FileCause.FOREIGN) -> FileReason:
        """Return the reason that is kept with the file in quarantine. ``otherwise``: the cause without damage."""
        return FileReason(self.detail, FileCause.DAMAGED if self.kind is Kind.DAMAGED else otherwise)

    def finding(self, done: str | None = None) -> Finding:
        """Return the finding that a report shows.

        Args:
            done: the action that was taken; None for the usual action of the step.
        """
        position = self.positions[0] if self.positions else None
        action = _ACTIONS.get(self.step, "") if done is None else done
        return Finding(self.kind, self.name, self.detail, action, self.reason.value, position)


def _some(decision: Decision, it: str, one: str, many: str) -> str:
    """Return ``it`` if the decision is about one known commit; otherwise return the number of files in words."""
    if decision.number:
        return it
    return plural(decision.count, one, many) if decision.count else f"others {many.partition(' ')[2]}"


_ACTIONS = {
    Step.NAME: "given its name",
    Step.FINISH: "made durable and published",
    Step.DISCARD: "moved to quarantine; its number becomes an empty commit",
    Step.FILL: "becomes an empty commit",
    Step.RETURN: "put back into prepared/",
    Step.QUARANTINE: "moved to quarantine",
    Step.MOVE: "moved to its committed name",
    Step.ROLL_BACK: "rolled back",
    Step.COUNT: "an attempt counted for each",
    Step.REMOVE: "removed",
    Step.LEAVE: LEFT_ALONE,
}


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each kind and file, damage first. Each queue that space.toml has lost has a separate
    finding."""

    def key(finding: Finding) -> tuple[str, ...]:
        return (finding.kind, finding.name, finding.detail if finding.name == layout.SETTINGS else "")

    unique = {key(finding): finding for finding in reversed(list(findings))}
    return sorted(unique.values(), key=lambda finding: (finding.kind is not Kind.DAMAGED, finding.name))
