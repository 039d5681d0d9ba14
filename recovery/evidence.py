"""Read what a crash has left in a space, and decide what to do about each file.

`read` collects the evidence and changes nothing; `decide` is a pure function of the evidence.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spool.admin.findings import LEFT_ALONE, Kind
from spool.coordination.counters import CounterPage, Counters
from spool.coordination.locks import LockFile, capture_byte, coordinator_byte, xid_byte
from spool.disk.disk import Disk
from spool.disk.recycler import consumed_number
from spool.errors import CorruptedFile, NewerFormat
from spool.format.reader import FileContents, contents_of, open_file, prove, read_header
from spool.format.schema import ADDRESSING
from spool.log.visibility import is_branch_file
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.text import plural
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.policies.claim_journal import all_journals, read_journal
from spool.store.parts import Shared

# Sequence numbers are issued one after the other, so a crash leaves only a few without a file. A file with a number
# farther ahead was put there by another program; the numbers up to it are not filled.
MAX_GAP = 100_000


class Condition(enum.Enum):
    """The state of a numbered file above the highest published number."""

    WHOLE = "whole"
    TORN = "torn"
    MISSING = "missing, or empty"


@dataclass
class Evidence:
    """What lies in the space. Names are relative to the space.

    alone: no other process has the space open.
    unnamed: where each commit lies that has lost its name in a power cut, by its number (Rule 13).
    same_life: no power was cut since a process had the space open; known by a process that is alone.
    issued, published: the highest sequence numbers issued and published.
    unpublished: the state of each number between them, with the reason or the content in words.
    adoptions: for each adopted file, its branch (None if it is damaged) and what is wrong.
    adopted_by: the branches that each commit adopts.
    prepared: for each file in prepared/, what is wrong, or "".
    active: the branches that have a file in active/.
    journals: the branches that have a claim journal in active/.
    copies: unfinished copies in active/.
    captured: directories of dropped files that an intake captured.
    strays: entries that are no files of a space.
    locked: the branches whose lock a live process holds.
    live_coordinators: the gtrids whose coordinator lives.
    busy_intakes: those of `captured` that a live intake works on.
    named: the highest number that a branch in prepared/, or a claim journal, names.
    """

    alone: bool
    unnamed: dict[int, str] = field(default_factory=dict)
    same_life: bool = False
    issued: int = 0
    published: int = 0
    unpublished: dict[int, tuple[Condition, str]] = field(default_factory=dict)
    adoptions: dict[CommittedName, tuple[Xid | None, str]] = field(default_factory=dict)
    adopted_by: dict[int, tuple[Xid, ...]] = field(default_factory=dict)
    prepared: dict[Xid, str] = field(default_factory=dict)
    active: list[Xid] = field(default_factory=list)
    journals: list[Xid] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    captured: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    locked: set[Xid] = field(default_factory=set)
    live_coordinators: set[bytes] = field(default_factory=set)
    busy_intakes: set[str] = field(default_factory=set)
    named: int = 0


class Step(enum.Enum):
    """What is done about a file; the value says it in words, for a report."""

    NAME = "given its name"
    FINISH = "made durable and published"
    QUARANTINE_NUMBER = "moved to quarantine; its number becomes an empty commit"
    FILL = "becomes an empty commit"
    RETURN = "put back into prepared/"
    QUARANTINE = "moved to quarantine"
    MOVE = "moved to its committed name"
    ROLL_BACK = "rolled back"
    REMOVE = "removed"
    COUNT = "an attempt counted for each"
    NOTHING = LEFT_ALONE


@dataclass(frozen=True)
class Decision:
    """What to do about one file: a report says `kind`, `name` and `detail`; the step works on `xid` or `number`."""

    step: Step
    kind: Kind
    name: str
    detail: str
    xid: Xid | None = None
    number: CommittedName | None = None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(disk: Disk, shared: Shared, *, alone: bool) -> Evidence:
    """Read every directory. A process that is not alone leaves unpublished numbers to their writers."""
    evidence = Evidence(alone)
    names = sorted(disk.names(layout.COMMITTED))
    _read_prepared(disk, shared.xids, evidence)
    evidence.journals = all_journals(disk)
    if alone:
        evidence.named = max([evidence.named, *_numbers_in_journals(disk, evidence.journals)])
        _read_numbers(disk, shared.counters, evidence, names)
    else:
        evidence.issued, evidence.published = (
            shared.counters.read().issued,
            shared.counters.read().check().published,
        )
    if alone:
        _read_adoptions(disk, shared.xids, evidence, names)
    evidence.strays += [f"{layout.COMMITTED}/{name}" for name in names if _is_stray(name, evidence)]
    _read_active(disk, shared.xids, evidence)
    return evidence


def _is_stray(name: str, evidence: Evidence) -> bool:
    """Tell whether a name in committed/ is that of no commit, or of a number that is not issued yet.

    Only a process that is alone knows which numbers are issued.
    """
    parsed = layout.parse_committed(name)
    return parsed is None or (evidence.alone and parsed.number > evidence.issued)


def _read_numbers(disk: Disk, counters: Counters, evidence: Evidence, names: Iterable[str]) -> None:
    parsed = [p for p in map(layout.parse_committed, names) if p is not None]
    numbers = {p.number for p in parsed if not p.adoption}
    page = counters.read()
    newest, mark = _newest_whole(disk, sorted(numbers, reverse=True))
    _read_lost_names(disk, evidence, last_in_reach({p.number for p in parsed}, newest))
    # A commit that was not flushed may be lost, and what names it not: its number is not given to another one.
    seen = {*(p.number for p in parsed), *_quarantined_numbers(disk), page.issued, evidence.named}
    issued = last_in_reach(seen - {0}, newest)
    evidence.issued = issued
    evidence.published = min(mark, issued)
    evidence.same_life = _is_same_life(disk, page, numbers)
    if page.boot_id == disk.boot_id():  # after a failed flush, only what was durable before counts
        believed = page.published if evidence.same_life and not page.is_stopped else page.durable
        evidence.published = min(issued, max(mark, believed))
    for number in range(evidence.published + 1, issued + 1):
        evidence.unpublished[number] = _condition(disk, number) if number in numbers else (Condition.MISSING, "no file")


def _is_same_life(disk: Disk, page: CounterPage, numbers: set[int]) -> bool:
    """Whether no power was cut since the counters were written: the same boot, and every published commit is whole.

    The boot id alone does not tell: within one boot a snapshot of the disk can be mounted, or the disk after it was
    unplugged. Then ``run/`` is as old as the other files, and may tell of commits whose files were not flushed.
    """
    if page.boot_id != disk.boot_id():
        return False
    unflushed = range(page.durable + 1, page.published + 1)
    return all(number in numbers and _condition(disk, number)[0] is Condition.WHOLE for number in unflushed)


def _read_lost_names(disk: Disk, evidence: Evidence, highest: int) -> None:
    """Find the commits above the highest number that has a name, where they lay before they got theirs.

    Whether their bytes are whole is asked of them as of any number that is not published.
    """
    places = [f"{layout.ACTIVE}/{name}" for name in disk.names(layout.ACTIVE) if layout.parse_xid(name) is not None]
    places += [f"{layout.FREE}/{name}" for name in disk.names(layout.FREE)]
    for place in sorted(places):
        number = _stamped_number(disk, place)
        if highest < number <= highest + MAX_GAP and number != consumed_number(place.rpartition("/")[2]):
            evidence.unnamed[number] = place


def _stamped_number(disk: Disk, name: str) -> int:
    """Return the number in a file's header; 0 if there is none, or -1."""
    try:
        handle = open_file(disk, name)
    except CorruptedFile:
        return 0
    try:
        return read_header(disk, handle).number
    except NewerFormat as error:
        raise NewerFormat(f"{disk.root}: {name}: {error}") from None
    except CorruptedFile:
        return 0
    finally:
        disk.close(handle)


def last_in_reach(seen: Iterable[int], newest: int) -> int:
    """Return the highest issued number: the last of `seen` that is not far ahead of the one before it.

    Args:
        newest: the newest number whose file is whole; 0 if none is, then the lowest number is trusted.
    """
    numbers = sorted(number for number in seen if number > newest)
    last = newest or (numbers[0] if numbers else 0)
    for number in numbers:
        if number > last + MAX_GAP:
            break
        last = number
    return last


def _quarantined_numbers(disk: Disk) -> list[int]:
    prefix = f"{layout.COMMITTED}."
    numbers = []
    for name in disk.names(layout.QUARANTINE):
        digits = name.removeprefix(prefix)[:16]
        parsed = layout.parse_committed(f"{digits}{layout.SUFFIX}")
        if name.startswith(prefix) and parsed is not None:
            numbers.append(parsed.number)
    return numbers


def _newest_whole(disk: Disk, numbers: Iterable[int]) -> tuple[int, int]:
    """Return the number of the newest whole file, and the highest number that a whole file calls durable; 0 for none.

    The newest file may name an older mark than one before it: its writer read the counters before it waited for the
    number lock. So each file above the mark is asked.

    Args:
        numbers: of the files in committed/, falling.
    """
    newest = mark = 0
    for number in numbers:
        if number <= mark:
            break
        contents = _contents(disk, layout.committed(number))
        if contents is not None and contents.header.number == number:
            newest, mark = newest or number, max(mark, contents.header.durable_mark)
    return newest, mark


def _condition(disk: Disk, number: int) -> tuple[Condition, str]:
    identity = disk.identity(layout.committed(number))
    if identity is not None and identity.is_regular and not identity.size:
        return Condition.MISSING, "an empty file"
    try:
        handle = open_file(disk, layout.committed(number))
    except CorruptedFile as error:
        return Condition.TORN, str(error)
    try:
        header = prove(disk, handle).header
    except CorruptedFile as error:
        return Condition.TORN, str(error)
    finally:
        disk.close(handle)
    if header.number != number:
        return Condition.TORN, f"it carries the number {header.number}"
    return Condition.WHOLE, plural(header.messages, "message")


def _read_prepared(disk: Disk, xids: LockFile, evidence: Evidence) -> None:
    for name in sorted(disk.names(layout.PREPARED)):
        xid = layout.parse_xid(name)
        if xid is None:
            evidence.strays.append(f"{layout.PREPARED}/{name}")
            continue
        contents = _contents(disk, f"{layout.PREPARED}/{name}")
        if contents is None and not disk.exists(f"{layout.PREPARED}/{name}"):
            continue  # it was decided and moved since it was listed
        whole = contents is not None and is_branch_file(contents.header, xid)
        if contents is not None and whole:
            commands = [command for table in contents.tables for command in table.commands]
            evidence.named = max([evidence.named, *(one[1] for one in commands if one[0] in ADDRESSING)])
        evidence.prepared[xid] = "" if whole else "it is damaged, or another branch's file"
        _read_locks(xids, evidence, xid)


def _numbers_in_journals(disk: Disk, journals: Iterable[Xid]) -> Iterator[int]:
    for xid in journals:
        yield from (number for number, _, _ in read_journal(disk, xid).ranges)


def _read_locks(xids: LockFile, evidence: Evidence, xid: Xid) -> None:
    if not xids.is_free(xid_byte(xid)):
        evidence.locked.add(xid)
    if not xids.is_free(coordinator_byte(xid.gtrid)):
        evidence.live_coordinators.add(xid.gtrid)


def _read_adoptions(disk: Disk, xids: LockFile, evidence: Evidence, names: Iterable[str]) -> None:
    """Read the adopted branches, and the commits that adopt them; an unpublished commit counts if it is whole."""
    for name in names:
        parsed = layout.parse_committed(name)
        if parsed is None or not parsed.adoption or parsed.number > evidence.issued:
            continue
        contents = _contents(disk, f"{layout.COMMITTED}/{name}")
        branches = contents.header.branches if contents is not None else ()
        evidence.adoptions[parsed] = (branches[0].xid, "") if len(branches) == 1 else (None, "it is damaged")
        if len(branches) == 1:
            _read_locks(xids, evidence, branches[0].xid)  # it may have to be put back, and decided
    numbers = {parsed.number for parsed in evidence.adoptions} | set(evidence.unpublished)
    for number in sorted(numbers):
        condition = evidence.unpublished.get(number, (Condition.WHOLE, ""))[0]
        commit = _contents(disk, layout.committed(number)) if condition is Condition.WHOLE else None
        if commit is not None and commit.header.number == number:
            evidence.adopted_by[number] = tuple(adoption.xid for adoption in commit.header.adopts)


def _contents(disk: Disk, name: str) -> FileContents | None:
    try:
        return contents_of(disk, name)
    except NewerFormat as error:
        raise NewerFormat(f"{disk.root}: {name}: {error}") from None
    except CorruptedFile:
        return None


def _is_irregular(disk: Disk, name: str) -> bool:
    """Tell whether it is a directory, a symlink or the like, which recovery never removes."""
    identity = disk.identity(name)
    return identity is not None and not identity.is_regular


def _read_active(disk: Disk, xids: LockFile, evidence: Evidence) -> None:
    for name in sorted(disk.names(layout.ACTIVE)):
        path = f"{layout.ACTIVE}/{name}"
        xid = layout.parse_xid(name)
        if path in evidence.unnamed.values():
            continue
        if xid is not None and not _is_irregular(disk, path):
            evidence.active.append(xid)
            _read_locks(xids, evidence, xid)
        elif name.startswith(layout.CAPTURE_PREFIX):
            evidence.captured.append(name)
            if not xids.is_free(capture_byte(name)):
                evidence.busy_intakes.add(name)
        elif name.endswith(layout.COPY_SUFFIX):
            evidence.copies.append(path)
        elif not name.endswith(layout.JOURNAL_SUFFIX) or _is_irregular(disk, path):
            evidence.strays.append(path)
    for xid in evidence.journals:
        _read_locks(xids, evidence, xid)


# -- deciding ---------------------------------------------------------------------------------------------------------


def decide(
    evidence: Evidence, adopted: frozenset[Xid] = frozenset(), refused: frozenset[Xid] = frozenset()
) -> list[Decision]:
    """Decide what to do about each file, in the order in which it must be done.

    Args:
        adopted: the branches that are committed.
        refused: the branches that an administrator rolled back.
    """
    decisions = [_about_lost_name(*commit) for commit in sorted(evidence.unnamed.items())]
    decisions += [_about_number(number, *state) for number, state in evidence.unpublished.items()]
    decisions += [d for name, state in evidence.adoptions.items() if (d := _about_adoption(evidence, name, *state))]
    committed = adopted | {xid for xids in evidence.adopted_by.values() for xid in xids}
    returned = [d.xid for d in decisions if d.step is Step.RETURN and d.xid is not None]
    # (What is put back into prepared/ is decided on like what lies there: its coordinator may be gone as well.)
    for xid, wrong in {**dict.fromkeys(returned, ""), **evidence.prepared}.items():
        if xid in refused and not wrong and xid not in committed:
            why = "an administrator rolled it back"
            decisions.append(Decision(Step.ROLL_BACK, Kind.ROLLED_BACK, layout.prepared(xid), why, xid))
        else:
            decisions.append(_about_prepared(evidence, xid, wrong, committed))
    decisions += [_about_journal(evidence, xid) for xid in evidence.journals]
    decisions += [_about_active(evidence, xid) for xid in evidence.active]
    if evidence.alone:
        decisions += [Decision(Step.REMOVE, Kind.TORN, name, "an unfinished copy") for name in evidence.copies]
    decisions += [_about_captured(evidence, name) for name in evidence.captured]
    decisions += [Decision(Step.NOTHING, Kind.STRAY, name, "no file of a queue space") for name in evidence.strays]
    return decisions


def _about_lost_name(number: int, place: str) -> Decision:
    """In the order of the numbers: what an interrupted recovery leaves must be above the highest name again."""
    detail = f"a power cut took the name of commit {number}"
    return Decision(Step.NAME, Kind.MOVED, place, detail, number=CommittedName(number, 0))


def _about_number(number: int, condition: Condition, detail: str) -> Decision:
    place, name = CommittedName(number, 0), layout.committed(number)
    if condition is Condition.WHOLE:
        return Decision(
            Step.FINISH, Kind.FINISHED, name, f"its writer ended before it was visible ({detail})", number=place
        )
    if condition is Condition.TORN:
        return Decision(Step.QUARANTINE_NUMBER, Kind.TORN, name, f"it was not flushed yet: {detail}", number=place)
    return Decision(Step.FILL, Kind.EMPTY_NUMBER, name, f"the number was issued and has {detail}", number=place)


def _about_adoption(evidence: Evidence, name: CommittedName, xid: Xid | None, wrong: str) -> Decision | None:
    path = layout.committed(*name)
    xids = evidence.adopted_by.get(name.number)
    if xids is not None and name.adoption <= len(xids) and (xid is None or xids[name.adoption - 1] == xid):
        return None  # it is in its place; a damaged one is named when the index is built
    if xid is None:
        return Decision(Step.QUARANTINE, Kind.TORN, path, f"{wrong}, and no commit adopts it", number=name)
    return Decision(
        Step.RETURN, Kind.RETURNED, path, f"branch {xid}: the commit that adopted it did not survive", xid, name
    )


def _about_prepared(evidence: Evidence, xid: Xid, wrong: str, committed: frozenset[Xid] | set[Xid]) -> Decision:
    name = layout.prepared(xid)
    if xid in committed:
        return Decision(Step.MOVE, Kind.MOVED, name, "it is committed", xid)
    if xid in evidence.locked:
        return Decision(Step.NOTHING, Kind.ALIVE, name, "its owner works on it", xid)
    if wrong:
        return Decision(
            Step.QUARANTINE,
            Kind.TORN,
            name,
            f"{wrong}; either its vote was never acknowledged, or the disk lost it",
            xid,
        )
    if xid.format_id in FORMATS_BOUND_TO_A_LIFE:
        if xid.gtrid in evidence.live_coordinators:
            return Decision(Step.NOTHING, Kind.ALIVE, name, "its coordinator works on it", xid)
        return Decision(Step.ROLL_BACK, Kind.ROLLED_BACK, name, "its coordinator is gone and decided nothing", xid)
    return Decision(
        Step.NOTHING, Kind.IN_DOUBT, name, "it waits for its coordinator, or for spool-admin transaction", xid
    )


def _about_journal(evidence: Evidence, xid: Xid) -> Decision:
    if xid in evidence.locked:
        return Decision(Step.NOTHING, Kind.ALIVE, layout.claim_journal(xid), "its owner works on it", xid)
    return Decision(
        Step.COUNT, Kind.COUNTED, layout.claim_journal(xid), "the process that worked on these messages died", xid
    )


def _about_active(evidence: Evidence, xid: Xid) -> Decision:
    if xid in evidence.locked:
        return Decision(Step.NOTHING, Kind.ALIVE, layout.active(xid), "its owner works on it", xid)
    return Decision(Step.REMOVE, Kind.ROLLED_BACK, layout.active(xid), "its owner died before it voted", xid)


def _about_captured(evidence: Evidence, name: str) -> Decision:
    if name in evidence.busy_intakes:
        return Decision(Step.NOTHING, Kind.ALIVE, f"{layout.ACTIVE}/{name}", "an intake works on it")
    return Decision(
        Step.NOTHING, Kind.TAKEN, f"{layout.ACTIVE}/{name}", "dropped files; the next spool-intake finishes them"
    )
