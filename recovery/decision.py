"""Decisions of recovery and of the check, as data, and the sentences that describe the decisions to people."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from spool.admin.findings import LEFT_ALONE, Finding, Kind
from spool.model import layout
from spool.model.position import Position
from spool.model.text import plural
from spool.model.xid import Xid


class Step(enum.Enum):
    """A step of recovery or repair. No step deletes messages; a file that cannot be repaired is kept in quarantine."""

    NONE = enum.auto()
    LEAVE = enum.auto()
    # Steps when the space opens.
    NAME = enum.auto()  # restore the name that a commit lost in a power cut
    FINISH = enum.auto()  # publish the commit of a dead writer
    DISCARD = enum.auto()  # move a numbered file that was not flushed to quarantine; the number becomes an empty commit
    FILL = enum.auto()  # create an empty commit for a number that has no file
    RETURN = enum.auto()  # put an adopted branch back into prepared/
    QUARANTINE = enum.auto()  # move the file to quarantine
    MOVE = enum.auto()  # move a committed branch to its committed name
    ROLL_BACK = enum.auto()
    COUNT = enum.auto()  # count an attempt for each message that a dead process held
    REMOVE = enum.auto()
    # Steps of a repair.
    TRUNCATE = enum.auto()  # remove the bytes after the file's proper end
    WRITE_NUMBER = enum.auto()  # write the sequence number of the file's name into the header again
    REPLACE_BY_EMPTY = enum.auto()  # move a published file to quarantine; its number becomes an empty commit
    KEEP_COPY = enum.auto()  # copy the file to quarantine; its undamaged messages are still served
    RECORD = enum.auto()  # the file is lost, so write only a reason file into quarantine
    QUARANTINE_MESSAGES = enum.auto()  # move messages with damaged bodies to quarantine
    RESET_DIGEST = enum.auto()  # compute the digest of retired numbers again
    CREATE_QUEUE = enum.auto()
    CREATE_DIRECTORY = enum.auto()
    RESTRICT = enum.auto()  # permit only the owner to use the file or directory


class Reason(enum.StrEnum):
    """The reason for a decision, for programs; `Decision.detail` states the reason for people."""

    LOST_NAME = "lost name"
    UNPUBLISHED = "unpublished"
    UNFLUSHED = "unflushed"
    NO_FILE = "no file"
    UNADOPTED = "unadopted"
    LOST_COMMIT = "lost commit"
    DAMAGED_VOTE = "damaged vote"
    COMMITTED = "committed"
    REFUSED = "rolled back by an administrator"
    UNDECIDED = "undecided"
    COORDINATOR_DIED = "coordinator died"
    COORDINATOR_LIVES = "coordinator lives"
    OWNER_DIED = "owner died"
    OWNER_LIVES = "owner lives"
    HOLDER_DIED = "holder died"
    UNFINISHED_COPY = "unfinished copy"
    INTAKE_DIED = "intake died"
    INTAKE_LIVES = "intake lives"
    FOREIGN = "foreign"
    FUTURE_NUMBER = "future number"
    UNREADABLE = "unreadable"
    OTHER_NUMBER = "other number"
    DAMAGED_NUMBER = "damaged number"
    DAMAGED_TABLE = "damaged table"
    DAMAGED_BODY = "damaged body"
    DAMAGED_BRANCH = "damaged branch"
    OTHER_BRANCH = "other branch"
    SURPLUS_BYTES = "surplus bytes"
    MISSING_COMMIT = "missing commit"
    RESTORED_COMMIT = "restored commit"
    MISSING_QUEUE = "missing queue"
    MISSING_DIRECTORY = "missing directory"
    EXPOSED = "exposed"


@dataclass(frozen=True)
class Decision:
    """A decision about one file, or about messages or a queue in that file.

    name: the path of the file, relative to the space.
    xid, number, positions, queue: the branch, commit, messages or queue that the step changes, besides the file.
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
    def detail(self) -> str:
        """Return the finding as a sentence."""
        return _DETAILS[self.reason].format(
            d=self,
            waits=plural(self.count, "message waits", "messages wait") if self.count else "it waits",
            surplus=plural(self.count, "byte follows", "bytes follow"),
            missing=_some(self, "it is missing", "file is missing", "files are missing"),
            restored=_some(self, "it was", "file was", "files were"),
            them="it" if self.count == 1 else "them",
        )

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


_DETAILS = {
    Reason.LOST_NAME: "a power cut took the name of commit {d.number}",
    Reason.UNPUBLISHED: "its writer ended before it was visible ({d.cause})",
    Reason.UNFLUSHED: "it was not flushed yet: {d.cause}",
    Reason.NO_FILE: "the number was issued and has {d.cause}",
    Reason.UNADOPTED: "it is damaged, and no commit adopts it",
    Reason.LOST_COMMIT: "branch {d.xid}: the commit that adopted it did not survive",
    Reason.DAMAGED_VOTE: "{d.cause}; either its vote was never acknowledged, or the disk lost it",
    Reason.COMMITTED: "it is committed",
    Reason.REFUSED: "an administrator rolled it back",
    Reason.UNDECIDED: "{waits} for a decision of its coordinator, or by spool-admin transaction",
    Reason.COORDINATOR_DIED: "its coordinator ended without a decision",
    Reason.COORDINATOR_LIVES: "its coordinator works on it",
    Reason.OWNER_DIED: "its owner died before it voted",
    Reason.OWNER_LIVES: "its owner works on it",
    Reason.HOLDER_DIED: "the process that worked on these messages died",
    Reason.UNFINISHED_COPY: "an unfinished copy",
    Reason.INTAKE_DIED: "dropped files; the next spool-intake finishes them",
    Reason.INTAKE_LIVES: "an intake works on it",
    Reason.FOREIGN: "no file of a queue space",
    Reason.FUTURE_NUMBER: "no commit has this number yet",
    Reason.UNREADABLE: "{d.cause}",
    Reason.OTHER_NUMBER: "it carries the number {d.count}",
    Reason.DAMAGED_NUMBER: "{d.cause}",
    Reason.DAMAGED_TABLE: "{d.cause}: the messages it lists cannot be read",
    Reason.DAMAGED_BODY: "{d.cause}",
    Reason.DAMAGED_BRANCH: "{d.cause}",
    Reason.OTHER_BRANCH: "it is another branch's file",
    Reason.SURPLUS_BYTES: "{surplus} its end; all before is whole",
    Reason.MISSING_COMMIT: "{missing}, and reclaim has not removed {them}",
    Reason.RESTORED_COMMIT: "{restored} reclaimed, and consumed messages were put back",
    Reason.MISSING_QUEUE: "queue {d.queue}, in which {waits}, is missing from it: create the queue",
    Reason.MISSING_DIRECTORY: "the directory is missing",
    Reason.EXPOSED: "other users may use it (mode {d.count:04o})",
}

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
    """Return one finding for each kind and file, damage first. Each lost queue in space.toml has a separate finding."""

    def key(finding: Finding) -> tuple[str, ...]:
        return (finding.kind, finding.name, finding.detail if finding.name == layout.SETTINGS else "")

    unique = {key(finding): finding for finding in reversed(list(findings))}
    return sorted(unique.values(), key=lambda finding: (finding.kind is not Kind.DAMAGED, finding.name))
