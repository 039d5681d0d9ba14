"""What a check finds: a finding together with its remedy, which `recovery.repair` applies."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from spool.admin.findings import Finding, Kind
from spool.model import layout
from spool.model.position import Position
from spool.model.xid import Xid


class Remedy(enum.Enum):
    """What makes a problem go away. No remedy deletes data: what cannot be repaired is kept in quarantine."""

    NONE = enum.auto()
    TRUNCATE = enum.auto()  # cut the bytes behind the file's end
    WRITE_NUMBER = enum.auto()  # write the sequence number again, which is known from the name
    REPLACE_BY_EMPTY = enum.auto()  # move a numbered file to quarantine; its number becomes an empty commit
    KEEP_COPY = enum.auto()  # copy the file to quarantine; what is whole in it is still served
    RECORD = enum.auto()  # nothing is left of the file: write a reason into quarantine
    QUARANTINE = enum.auto()  # move the file to quarantine
    SET_ASIDE = enum.auto()  # move messages with damaged bodies to quarantine
    RESET_DIGEST = enum.auto()  # compute the digest of retired numbers anew
    CREATE_QUEUE = enum.auto()
    CREATE_DIRECTORY = enum.auto()
    RESTRICT = enum.auto()  # give the mode back that only the owner can use


@dataclass(frozen=True)
class Problem:
    """A finding and its remedy.

    The remedy is applied to the file that the finding names, or to `positions`, `queue` or `number`.
    """

    finding: Finding
    remedy: Remedy = Remedy.NONE
    number: int = 0
    xid: Xid | None = None
    positions: tuple[Position, ...] = ()
    queue: str = ""


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each kind and file, damage first; of space.toml, one for each queue that is lost."""

    def key(finding: Finding) -> tuple[str, ...]:
        return (finding.kind, finding.name, finding.detail if finding.name == layout.SETTINGS else "")

    unique = {key(finding): finding for finding in reversed(list(findings))}
    return sorted(unique.values(), key=lambda finding: (finding.kind is not Kind.DAMAGED, finding.name))
