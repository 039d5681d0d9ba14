"""Branches of transactions: files in ``prepared/``, and files in ``committed/`` that a commit adopted.

`decide_files` decides about files: a branch whose commit did not survive is moved back to ``prepared/``, and a damaged
branch is moved to quarantine. After the index is built, `decide_votes` decides about votes: whether a prepared branch
is committed, is in doubt, or lost its coordinator.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from spool.admin.findings import Kind
from spool.coordination.locks import LockFile, coordinator_byte, xid_byte
from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.format.commands import addressing
from spool.format.header import VOTE, Header
from spool.log.visibility import is_branch_file
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid

from .decision import Decision, Reason, Step
from .numbers import Condition, Numbers, contents_or_none


@dataclass(frozen=True)
class LiveOwners:
    """The live owners of branches at the time when the branch files were read.

    branches: the branches whose lock a live process holds.
    coordinators: the gtrids of transactions whose coordinator lives.
    """

    branches: frozenset[Xid]
    coordinators: frozenset[bytes]

    @classmethod
    def read(cls, xids: LockFile, branches: Collection[Xid]) -> "LiveOwners":
        return cls(
            frozenset(xid for xid in branches if not xids.is_free(xid_byte(xid))),
            frozenset(xid.gtrid for xid in branches if not xids.is_free(coordinator_byte(xid.gtrid))),
        )


@dataclass(frozen=True)
class PreparedFiles:
    """The entries of ``prepared/``.

    whole: for each branch, whether its file is whole.
    foreign: the paths of entries that are not branches.
    named: the highest sequence number in the commands of all whole branches.
    half_marked: the whole branches with a damaged number, because a power cut interrupted the write of the mark.
    """

    whole: Mapping[Xid, bool]
    foreign: tuple[str, ...]
    owners: LiveOwners
    named: int
    half_marked: tuple[Xid, ...] = ()


@dataclass(frozen=True)
class AdoptedFiles:
    """The branches in ``committed/``, and the commits that adopt branches.

    branches: the branch in each file; None if the file is damaged.
    adopters: the adopted branches of each commit that adopts branches, by the number of the commit. An unpublished
        commit is included if its file is whole.
    """

    branches: Mapping[CommittedName, Xid | None]
    adopters: Mapping[int, tuple[Xid, ...]]
    owners: LiveOwners

    @property
    def committed(self) -> set[Xid]:
        return {xid for xids in self.adopters.values() for xid in xids}


NONE_ADOPTED = AdoptedFiles({}, {}, LiveOwners(frozenset(), frozenset()))


# -- reading ----------------------------------------------------------------------------------------------------------


def unnamed_votes(disk: Disk, stamped: Mapping[str, Header]) -> dict[Xid, str]:
    """Find votes that lost their name in a power cut: return the path of each file, by its xid. Rule 13.

    A vote in ``free/`` is marked with the origin in the name of its file. An older vote has another mark. Another file
    in ``prepared/`` with the same xid is older, and was rolled back. On btrfs, a renamed file may have both names.
    """
    if disk.durability.needs_links:  # renames are not ordered, so the name of each vote was flushed
        return {}
    votes = {}
    for place, header in stamped.items():
        if header.number >= VOTE and len(header.branches) == 1:
            xid, name = header.branches[0].xid, place.rpartition("/")[2]
            free = layout.parse_free(name)
            if layout.parse_xid(name) == xid or (free is not None and header.number == VOTE | free.origin):
                here, there = disk.identity(place), disk.identity(layout.prepared(xid))
                if here is not None and not here.same_file(there):
                    votes[xid] = place
    return votes


def read_prepared(disk: Disk, xids: LockFile, unnamed: Mapping[Xid, str] = MappingProxyType({})) -> PreparedFiles:
    """Read every branch in ``prepared/``. ``unnamed``: votes that will get their name."""
    whole, named, half_marked = {}, 0, list[Xid]()
    names = {f"{layout.PREPARED}/{name}": layout.parse_xid(name) for name in disk.names(layout.PREPARED)}
    foreign = sorted(path for path, xid in names.items() if xid is None)
    branches = {xid: path for path, xid in names.items() if xid is not None} | {**unnamed}
    for xid, path in sorted(branches.items()):
        contents = contents_or_none(disk, path)
        if contents is None and not disk.exists(path):
            continue  # after the directory was listed, another process committed the branch or rolled it back
        whole[xid] = contents is not None and is_branch_file(contents.header, xid)
        if contents is not None and whole[xid]:
            commands = [command for table in contents.tables for command in addressing(table.commands)]
            named = max([named, *(command.number for command in commands)])
            half_marked += [xid] if contents.header.is_numbered else []
    return PreparedFiles(whole, tuple(foreign), LiveOwners.read(xids, whole), named, tuple(half_marked))


def read_adopted(disk: Disk, xids: LockFile, names: Iterable[str], numbers: Numbers) -> AdoptedFiles:
    """Read the adopted branches, and the commits that adopt them. Only this process has the space open.

    Args:
        names: the names of the entries in ``committed/``.
    """
    branches: dict[CommittedName, Xid | None] = {}
    for name in names:
        parsed = layout.parse_committed(name)
        if parsed is not None and parsed.adoption and parsed.number <= numbers.issued:
            contents = contents_or_none(disk, f"{layout.COMMITTED}/{name}")
            found = contents.header.branches if contents is not None else ()
            branches[parsed] = found[0].xid if len(found) == 1 else None
    adopters = {n: file.adopts for n, file in numbers.unpublished.items() if file.condition is Condition.WHOLE}
    for number in sorted({parsed.number for parsed in branches} - numbers.unpublished.keys()):
        commit = contents_or_none(disk, layout.committed(number))
        if commit is not None and commit.header.number == number:
            adopters[number] = tuple(adoption.xid for adoption in commit.header.adopts)
    # (`decide_votes` needs the locks of branches that are moved back to prepared/.)
    return AdoptedFiles(
        branches, adopters, LiveOwners.read(xids, {xid for xid in branches.values() if xid is not None})
    )


# -- deciding ---------------------------------------------------------------------------------------------------------


def decide_names(unnamed: Mapping[Xid, str]) -> list[Decision]:
    """Decide that each vote without a name gets its name."""
    return [Decision(Kind.MOVED, place, Reason.LOST_VOTE, Step.NAME, xid=xid) for xid, place in unnamed.items()]


def decide_marks(prepared: PreparedFiles) -> list[Decision]:
    """Decide about each vote whose mark was not written completely. Its name is durable, so it needs no mark. Only the
    first opener carries this out, because other processes may be writing marks."""
    return [
        Decision(Kind.TORN, layout.prepared(xid), Reason.HALF_MARKED, Step.WRITE_NUMBER, xid=xid)
        for xid in prepared.half_marked
    ]


def decide_files(prepared: PreparedFiles, adopted: AdoptedFiles, *, proven: bool = False) -> list[Decision]:
    """Decide about each file that lies in the wrong directory, or is damaged.

    ``proven``: whether no power cut and no failed flush can have torn a file in ``prepared/``. Such a file is whole
    before it gets its name there.
    """
    kind = Kind.DAMAGED if proven else Kind.TORN
    decisions = [_about_adopted(adopted, *found) for found in adopted.branches.items()]
    settled = adopted.committed | prepared.owners.branches
    cause = "it is damaged, or another branch's file"
    decisions += [
        Decision(kind, layout.prepared(xid), Reason.DAMAGED_VOTE, Step.QUARANTINE, xid=xid, cause=cause)
        for xid, whole in prepared.whole.items()
        if not whole and xid not in settled
    ]
    return [decision for decision in decisions if decision is not None]


def _about_adopted(adopted: AdoptedFiles, name: CommittedName, xid: Xid | None) -> Decision | None:
    path = layout.committed(*name)
    xids = adopted.adopters.get(name.number)
    if xids is not None and name.adoption <= len(xids) and xid in (None, xids[name.adoption - 1]):
        return None  # the file is in the right directory; if it is damaged, building the index reports the damage
    if xid is None:
        return Decision(Kind.TORN, path, Reason.UNADOPTED, Step.QUARANTINE)
    return Decision(Kind.RETURNED, path, Reason.LOST_COMMIT, Step.RETURN, xid=xid)


def decide_votes(
    prepared: PreparedFiles,
    adopted: AdoptedFiles,
    files: Iterable[Decision],
    committed: Collection[Xid],
    refused: Collection[Xid],
) -> list[Decision]:
    """Decide about each branch that will be in ``prepared/`` after the decisions about files are carried out.

    Args:
        files: the decisions about files.
        committed: the branches that the index knows as committed.
        refused: the branches that an administrator rolled back.
    """
    moved = {decision.xid for decision in files if decision.step is Step.QUARANTINE}
    returned = [decision.xid for decision in files if decision.step is Step.RETURN and decision.xid is not None]
    known = adopted.committed.union(committed)
    owned = prepared.owners.branches | adopted.owners.branches
    coordinated = prepared.owners.coordinators | adopted.owners.coordinators
    decisions = []
    for xid, whole in {**dict.fromkeys(returned, True), **prepared.whole}.items():
        if xid in moved:
            continue
        if xid in known:
            about = Kind.MOVED, Reason.COMMITTED, Step.MOVE
        elif xid in refused and whole:
            about = Kind.ROLLED_BACK, Reason.REFUSED, Step.ROLL_BACK
        elif xid in owned:
            about = Kind.ALIVE, Reason.OWNER_LIVES, Step.LEAVE
        elif xid.format_id not in FORMATS_BOUND_TO_A_LIFE:
            about = Kind.IN_DOUBT, Reason.UNDECIDED, Step.LEAVE
        elif xid.gtrid in coordinated:
            about = Kind.ALIVE, Reason.COORDINATOR_LIVES, Step.LEAVE
        else:
            about = Kind.ROLLED_BACK, Reason.COORDINATOR_DIED, Step.ROLL_BACK
        kind, reason, step = about
        decisions.append(Decision(kind, layout.prepared(xid), reason, step, xid=xid))
    return decisions


# -- applying ---------------------------------------------------------------------------------------------------------


def return_to_prepared(disk: Disk, name: str, xid: Xid) -> None:
    """Put a branch back into ``prepared/``. The change is durable when this call returns."""
    target = layout.prepared(xid)
    if disk.exists(target):  # the target is the same file under a second name, or the file with the vote
        disk.unlink(name)
        return
    disk.rename(name, target)
    with opened(disk, target, write=True) as handle:
        disk.make_durable(handle, layout.PREPARED)
