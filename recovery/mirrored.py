"""Compare a space with its mirror before recovery changes anything, and bring both up to date afterwards.

After a power cut, the space may lack commits that the mirror has, and the mirror may lack commits that the space has. A
commit that only the mirror has may have been acknowledged, so the space gets that commit back.

A mirror is refused if its state is later than the state of the space. Each file names a mark: the highest number that
was durable in the space when the file's writer began. A power cut never removes a commit with a durable number. So if
the numbers of the space end below a mark, the space was restored from a backup. Reclaim and merges leave gaps among the
numbers of the mirror, but only below a mark. So if no mark is above the space's newest number, the mirror has every
commit that the space lacks.
"""

from dataclasses import dataclass
from shlex import quote

from spool.disk.disk import Disk
from spool.errors import MirrorMismatch
from spool.index import Index
from spool.log.visibility import is_branch_file
from spool.model import layout
from spool.store.mirror import Mirror, check_ids, forget_ids, keep_id, read_ids
from spool.store.parts import Files, Shared
from spool.store.settings_reader import read_settings_text

from .branch_files import PreparedFiles, read_prepared
from .numbers import MAX_GAP, NO_FILE, Condition, NumberedFiles, contents_or_none, count, read, read_stamped
from .unfinished import highest_named
from .unfinished import read as read_active


def check_mirror(files: Files, evidence: NumberedFiles | None) -> None:
    """Raise MirrorMismatch if the mirror belongs to another space, or if its state is later than the state of the
    space. If this error is raised, nothing was changed.

    When this call returns, this process holds the mirror, as do the other processes that have the space open.

    Args:
        evidence: the numbers of the space; None if other processes have the space open.
    """
    space, mirror = files.disk, files.mirror
    if mirror is None:
        if evidence is not None:
            forget_ids(space)
        elif read_ids(space):
            raise MirrorMismatch(
                f"processes have {space.root} open with a mirror, and its space.toml names none any more: write the "
                "line back, or close the space in every process first"
            )
        return
    check_ids(space, mirror.disk)
    mirror.hold(alone=evidence is not None)
    if evidence is not None:
        look_at_mirror(space, mirror, evidence)
        keep_id(space, mirror.disk)


def look_at_mirror(space: Disk, mirror: Mirror, evidence: NumberedFiles) -> None:
    """Raise MirrorMismatch if the mirror belongs to another space, or if its state is later than the state of the
    space. The call changes nothing."""
    check_ids(space, mirror.disk)
    newest, numbers = count(evidence).issued, mirror.numbers()
    durable, last, proof = 0, max(numbers, default=0), ""
    for number in sorted(number for number in numbers if number > newest):
        if mirror.is_whole(number):
            durable = max(durable, mirror.header(number).durable_mark)
        else:
            proof = proof or f"commit {number} in the mirror cannot be read, and the space does not have it"
    if not proof and (durable > newest or last > newest + MAX_GAP):
        proof = (
            f"the space ends with commit {newest}, the mirror with commit {last}, and the mirror records that the "
            f"space once had every commit up to {durable}"
        )
    if proof:
        raise MirrorMismatch(
            f"{space.root} is older than its mirror {mirror.disk.root}, as a space put back from a backup is: {proof}. "
            f"Nothing was changed. To get every message back, move {space.root} away, then type: spool-admin -s "
            f"{quote(space.root)} mirror restore {quote(mirror.disk.root)}. To go on with the older space, begin a "
            f"new mirror: spool-admin -s {quote(space.root)} mirror begin DIRECTORY"
        )


def with_mirrored(mirror: Mirror | None, evidence: NumberedFiles) -> NumberedFiles:
    """Return ``evidence`` plus the commits that the space lost in a power cut and whose files are whole in the
    mirror."""
    if mirror is None:
        return evidence
    numbers = count(evidence)
    missing = (
        number
        for number in mirror.numbers()
        if number > numbers.published and numbers.unpublished.get(number, NO_FILE).condition is not Condition.WHOLE
    )
    return evidence.with_mirrored({number: mirror.header(number) for number in filter(mirror.is_whole, missing)})


@dataclass(frozen=True)
class MirrorState:
    """The state of a space's mirror, as an opener would find the mirror.

    mirror: the directory of the mirror.
    state: ``fine`` or ``refused``.
    detail: why the mirror is refused, and what to do; "" if it is fine.
    commits, mirror_commits: how many commits the space has, and how many the mirror has.
    missing: how many commits of the space the mirror lacks; the next opener copies these commits.
    """

    mirror: str
    state: str
    detail: str
    commits: int
    mirror_commits: int
    missing: int


def describe(files: Files, shared: Shared, *, alone: bool) -> MirrorState | None:
    """Return the state of the mirror; None if the space has no mirror. The disk may be read-only."""
    space, mirror, detail = files.disk, files.mirror, ""
    if mirror is None:
        return None
    try:
        if alone:
            look_at_mirror(space, mirror, _numbers(space, shared))
        else:  # the first opener has already compared the numbers
            check_ids(space, mirror.disk)
    except MirrorMismatch as error:
        detail = str(error)
    here = layout.committed_numbers(space.names(layout.COMMITTED))
    there = mirror.numbers() if read_ids(mirror.disk) else set[int]()
    state = "refused" if detail else "fine"
    return MirrorState(mirror.disk.root, state, detail, len(here), len(there), len(here - there))


def _numbers(disk: Disk, shared: Shared) -> NumberedFiles:
    named = max(read_prepared(disk, shared.xids).named, highest_named(disk, read_active(disk, shared.xids)))
    return read(disk, shared.counters, disk.names(layout.COMMITTED), named, read_stamped(disk))


def give_back_votes(files: Files, prepared: PreparedFiles) -> bool:
    """Restore the votes that the space lost, or that are damaged in the space. Returns whether a vote was restored.

    If the mirror lacks a commit of the space, nothing is restored: the mirror may be an older copy, whose votes may be
    decided. A space that lacks a vote was restored from a backup, or the vote was rolled back. In the second case, the
    coordinator rolls the branch back again.
    """
    mirror, given = files.mirror, False
    if mirror is None or layout.committed_numbers(files.disk.names(layout.COMMITTED)) - mirror.numbers():
        return False
    for xid, name in mirror.votes().items():
        if not prepared.whole.get(xid, False):
            contents = contents_or_none(mirror.disk, name)
            if contents is not None and is_branch_file(contents.header, xid):
                mirror.give_back_vote(xid)
                given = True
    return given


def bring_up_to_date(files: Files, index: Index, *, agrees: bool) -> None:
    """Bring the mirror up to date: commits, votes, settings and id. Only this process has the space open.

    Args:
        agrees: see ``Mirror.catch_up``.
    """
    mirror = files.mirror
    if mirror is None:
        return
    mirror.keep_settings(read_settings_text(files.disk))
    mirror.keep_space_id(files.id)
    names = map(layout.parse_xid, files.disk.names(layout.PREPARED))
    undecided = {xid for xid in names if xid is not None and xid not in index.adopted}
    mirror.keep_votes(undecided)
    adopted = {number: len(state.adopted) for number, state in index.files.items() if state.adopted}
    mirror.catch_up(index.retired, adopted, agrees=agrees)
    mirror.drop_votes(undecided)
