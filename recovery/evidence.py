"""Reading what a space holds, and deciding what to do about each thing: a table, as values.

``read`` looks and changes nothing; ``decide`` is a pure function of what was seen.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from spool.admin.findings import LEFT_ALONE, Kind
from spool.coordination.locks import capture_byte, coordinator_byte, xid_byte
from spool.errors import CorruptedFile, NewerFormat
from spool.format.reader import FileContents, image_of, open_file, prove
from spool.log.visibility import carries
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.names import plural
from spool.policies.claim_journal import all_journals
from spool.store.store import Store

# Numbers are given out one after the other, so not even a crash leaves more than a few without a file. What lies
# farther ahead was put there from outside, and is not filled up to.
_MAX_GAP = 100_000


class Condition(enum.Enum):
    """A numbered file above the highest published number, as found."""

    WHOLE = "whole"
    TORN = "torn"
    MISSING = "missing"


@dataclass
class Evidence:
    """What was seen. Names are relative to the space."""

    alone: bool
    issued: int = 0
    published: int = 0
    unpublished: dict[int, tuple[Condition, str]] = field(default_factory=dict)
    adoptions: dict[CommittedName, tuple[Xid | None, str]] = field(default_factory=dict)
    heads: dict[int, tuple[Xid, ...]] = field(default_factory=dict)
    prepared: dict[Xid, str] = field(default_factory=dict)
    active: list[Xid] = field(default_factory=list)
    notes: list[Xid] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    locked: set[Xid] = field(default_factory=set)
    living: set[bytes] = field(default_factory=set)
    busy_intakes: set[str] = field(default_factory=set)


class Do(enum.Enum):
    """What the third step will do."""

    FINISH = "made durable and published"
    QUARANTINE_NUMBER = "moved to quarantine; its number becomes an empty commit"
    FILL = "becomes an empty commit"
    RETURN = "put back into prepared/"
    QUARANTINE = "moved to quarantine"
    MOVE = "moved to its committed name"
    ROLL_BACK = "rolled back"
    REMOVE = "removed"
    COUNT = "a try counted for each"
    NOTHING = LEFT_ALONE


@dataclass(frozen=True)
class Decision:
    """``kind``, ``name`` and ``detail`` are what a report says; ``xid`` or ``number`` is what ``do`` works on."""

    do: Do
    kind: Kind
    name: str
    detail: str
    xid: Xid | None = None
    number: CommittedName | None = None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(store: Store, *, alone: bool) -> Evidence:
    """Look at every stage. A process that is not alone leaves numbers that are not published to their writers."""
    evidence = Evidence(alone)
    names = sorted(store.files.disk.names(layout.COMMITTED))
    if alone:
        _read_numbers(store, evidence, names)
    else:
        evidence.issued, evidence.published = (
            store.shared.counters.read().issued,
            store.shared.counters.read().check().published,
        )
    _read_prepared(store, evidence)
    if alone:
        _read_adoptions(store, evidence, names)
    evidence.strays += [f"{layout.COMMITTED}/{name}" for name in names if _is_stray(name, evidence)]
    _read_active(store, evidence)
    return evidence


def _is_stray(name: str, evidence: Evidence) -> bool:
    """No name of a commit, or of one that is still to come (of which only a process that is alone can be sure)."""
    parsed = layout.parse_committed(name)
    return parsed is None or (evidence.alone and parsed.number > evidence.issued)


def _read_numbers(store: Store, evidence: Evidence, names: Iterable[str]) -> None:
    parsed = [p for p in map(layout.parse_committed, names) if p is not None]
    numbers = {p.number for p in parsed if not p.adoption}
    page = store.shared.counters.read()
    newest, mark = _newest_whole(store, sorted(numbers, reverse=True))
    seen = {*(p.number for p in parsed), *_quarantined_numbers(store), page.issued}
    issued = last_in_reach(seen - {0}, newest)
    evidence.issued = issued
    evidence.published = min(mark, issued)
    if page.boot_id == store.files.disk.boot_id():  # after a failed flush, what was not flushed before is written anew
        evidence.published = min(issued, max(mark, page.durable if page.stopped else page.published))
    for number in range(evidence.published + 1, issued + 1):
        evidence.unpublished[number] = _condition(store, number) if number in numbers else (Condition.MISSING, "")


def last_in_reach(seen: Iterable[int], newest: int) -> int:
    """The highest number given out: of those seen, the last that is no long way behind the one before it.

    ``newest``: the newest number whose file is whole, 0 if none is: then the lowest is believed.
    """
    numbers = sorted(number for number in seen if number > newest)
    last = newest or (numbers[0] if numbers else 0)
    for number in numbers:
        if number > last + _MAX_GAP:
            break
        last = number
    return last


def _quarantined_numbers(store: Store) -> list[int]:
    prefix = f"{layout.COMMITTED}."
    found = []
    for name in store.files.disk.names(layout.QUARANTINE):
        digits = name.removeprefix(prefix)[:16]
        parsed = layout.parse_committed(f"{digits}{layout.SUFFIX}")
        if name.startswith(prefix) and parsed is not None:
            found.append(parsed.number)
    return found


def _newest_whole(store: Store, numbers: Iterable[int]) -> tuple[int, int]:
    """(number, durable mark) of the newest whole file: marks only grow, so it has the highest. (0, 0) if none is."""
    for number in numbers:
        image = _image(store, layout.committed(number))
        if image is not None and image.header.number == number:
            return number, image.header.durable_mark
    return 0, 0


def _condition(store: Store, number: int) -> tuple[Condition, str]:
    try:
        handle = open_file(store.files.disk, layout.committed(number))
    except CorruptedFile as error:
        return Condition.TORN, str(error)
    try:
        header = prove(store.files.disk, handle).header
    except CorruptedFile as error:
        return Condition.TORN, str(error)
    finally:
        store.files.disk.close(handle)
    if header.number != number:
        return Condition.TORN, f"it carries the number {header.number}"
    return Condition.WHOLE, plural(header.messages, "message")


def _read_prepared(store: Store, evidence: Evidence) -> None:
    for name in sorted(store.files.disk.names(layout.PREPARED)):
        xid = layout.parse_xid(name)
        if xid is None:
            evidence.strays.append(f"{layout.PREPARED}/{name}")
            continue
        image = _image(store, f"{layout.PREPARED}/{name}")
        if image is None and not store.files.disk.exists(f"{layout.PREPARED}/{name}"):
            continue  # it was decided, and moved, since we looked
        whole = image is not None and carries(image.header, xid)
        evidence.prepared[xid] = "" if whole else "it is damaged, or another branch's file"
        _look_at_locks(store, evidence, xid)


def _look_at_locks(store: Store, evidence: Evidence, xid: Xid) -> None:
    if not store.shared.xids.is_free(xid_byte(xid)):
        evidence.locked.add(xid)
    if not store.shared.xids.is_free(coordinator_byte(xid.gtrid)):
        evidence.living.add(xid.gtrid)


def _read_adoptions(store: Store, evidence: Evidence, names: Iterable[str]) -> None:
    """Adopted branches, and what their heads say of them; a head above published counts if it is whole."""
    for name in names:
        parsed = layout.parse_committed(name)
        if parsed is None or not parsed.adoption or parsed.number > evidence.issued:
            continue
        image = _image(store, f"{layout.COMMITTED}/{name}")
        branches = image.header.branches if image is not None else ()
        evidence.adoptions[parsed] = (branches[0].xid, "") if len(branches) == 1 else (None, "it is damaged")
    numbers = {parsed.number for parsed in evidence.adoptions} | set(evidence.unpublished)
    for number in sorted(numbers):
        condition = evidence.unpublished.get(number, (Condition.WHOLE, ""))[0]
        head = _image(store, layout.committed(number)) if condition is Condition.WHOLE else None
        if head is not None and head.header.number == number:
            evidence.heads[number] = tuple(adoption.xid for adoption in head.header.adopts)


def _image(store: Store, name: str) -> FileContents | None:
    try:
        return image_of(store.files.disk, name)
    except NewerFormat as error:
        raise NewerFormat(f"{store.files.disk.root}: {name}: {error}") from None
    except CorruptedFile:
        return None


def _is_irregular(store: Store, name: str) -> bool:
    """A directory, a symlink or the like, which is never ours to remove."""
    identity = store.files.disk.identity(name)
    return identity is not None and not identity.is_regular


def _read_active(store: Store, evidence: Evidence) -> None:
    evidence.notes = all_journals(store)
    for name in sorted(store.files.disk.names(layout.ACTIVE)):
        path = f"{layout.ACTIVE}/{name}"
        xid = layout.parse_xid(name)
        if xid is not None and not _is_irregular(store, path):
            evidence.active.append(xid)
            _look_at_locks(store, evidence, xid)
        elif name.startswith(layout.CAPTURE_PREFIX):
            evidence.taken.append(name)
            if not store.shared.xids.is_free(capture_byte(name)):
                evidence.busy_intakes.add(name)
        elif name.endswith(layout.COPY_SUFFIX):
            evidence.copies.append(path)
        elif not name.endswith(layout.NOTE_SUFFIX) or _is_irregular(store, path):
            evidence.strays.append(path)
    for xid in evidence.notes:
        _look_at_locks(store, evidence, xid)


# -- deciding ---------------------------------------------------------------------------------------------------------


def decide(
    evidence: Evidence, adopted: frozenset[Xid] = frozenset(), refused: frozenset[Xid] = frozenset()
) -> list[Decision]:
    """What to do about each thing, in the order in which it must be done. ``adopted``: branches that are committed;
    ``refused``: branches that an administrator rolled back."""
    decisions = [_about_number(number, *found) for number, found in evidence.unpublished.items()]
    decisions += [d for name, found in evidence.adoptions.items() if (d := _about_adoption(evidence, name, *found))]
    committed = adopted | {xid for xids in evidence.heads.values() for xid in xids}
    for xid, wrong in evidence.prepared.items():
        if xid in refused and not wrong and xid not in committed:
            why = "an administrator rolled it back"
            decisions.append(Decision(Do.ROLL_BACK, Kind.ROLLED_BACK, layout.prepared(xid), why, xid))
        else:
            decisions.append(_about_prepared(evidence, xid, wrong, committed))
    decisions += [_about_note(evidence, xid) for xid in evidence.notes]
    decisions += [_about_active(evidence, xid) for xid in evidence.active]
    if evidence.alone:
        decisions += [Decision(Do.REMOVE, Kind.TORN, name, "half of a copy") for name in evidence.copies]
    decisions += [_about_taken(evidence, name) for name in evidence.taken]
    decisions += [Decision(Do.NOTHING, Kind.STRAY, name, "no file of a queue space") for name in evidence.strays]
    return decisions


def _about_number(number: int, condition: Condition, detail: str) -> Decision:
    place, name = CommittedName(number, 0), layout.committed(number)
    if condition is Condition.WHOLE:
        return Decision(
            Do.FINISH, Kind.FINISHED, name, f"its writer ended before it was visible ({detail})", number=place
        )
    if condition is Condition.TORN:
        return Decision(Do.QUARANTINE_NUMBER, Kind.TORN, name, f"it was never acknowledged: {detail}", number=place)
    return Decision(Do.FILL, Kind.EMPTY_NUMBER, name, "the number was given out and has no file", number=place)


def _about_adoption(evidence: Evidence, name: CommittedName, xid: Xid | None, wrong: str) -> Decision | None:
    path = layout.committed(*name)
    head = evidence.heads.get(name.number)
    if head is not None and name.adoption <= len(head) and (xid is None or head[name.adoption - 1] == xid):
        return None  # as it should be; a damaged one is named when the index is built
    if xid is None:
        return Decision(Do.QUARANTINE, Kind.TORN, path, f"{wrong}, and no commit adopts it", number=name)
    return Decision(
        Do.RETURN, Kind.RETURNED, path, f"branch {xid}: the commit that adopted it did not survive", xid, name
    )


def _about_prepared(evidence: Evidence, xid: Xid, wrong: str, committed: frozenset[Xid] | set[Xid]) -> Decision:
    name = layout.prepared(xid)
    if xid in committed:
        return Decision(Do.MOVE, Kind.MOVED, name, "it is committed", xid)
    if xid in evidence.locked:
        return Decision(Do.NOTHING, Kind.ALIVE, name, "its owner is at it", xid)
    if wrong:
        return Decision(
            Do.QUARANTINE, Kind.TORN, name, f"{wrong}; either its vote was never told, or the disk lost it", xid
        )
    if xid.format_id in FORMATS_BOUND_TO_A_LIFE:
        if xid.gtrid in evidence.living:
            return Decision(Do.NOTHING, Kind.ALIVE, name, "its coordinator is at it", xid)
        return Decision(Do.ROLL_BACK, Kind.ROLLED_BACK, name, "its coordinator is gone and decided nothing", xid)
    return Decision(
        Do.NOTHING, Kind.IN_DOUBT, name, "it waits for its coordinator, or for spool-admin transaction", xid
    )


def _about_note(evidence: Evidence, xid: Xid) -> Decision:
    if xid in evidence.locked:
        return Decision(Do.NOTHING, Kind.ALIVE, layout.note(xid), "its owner is at it", xid)
    return Decision(Do.COUNT, Kind.COUNTED, layout.note(xid), "the process that held these messages died", xid)


def _about_active(evidence: Evidence, xid: Xid) -> Decision:
    if xid in evidence.locked:
        return Decision(Do.NOTHING, Kind.ALIVE, layout.active(xid), "its owner is at it", xid)
    return Decision(Do.REMOVE, Kind.ROLLED_BACK, layout.active(xid), "its owner died before it voted", xid)


def _about_taken(evidence: Evidence, name: str) -> Decision:
    if name in evidence.busy_intakes:
        return Decision(Do.NOTHING, Kind.ALIVE, f"{layout.ACTIVE}/{name}", "an intake is at it")
    return Decision(
        Do.NOTHING, Kind.TAKEN, f"{layout.ACTIVE}/{name}", "dropped files; the next spool-intake finishes them"
    )
