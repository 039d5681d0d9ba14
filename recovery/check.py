"""fsck for a space: read every byte, name what is wrong, and say what would mend it. Also the tests' oracle.

``look`` reads and changes nothing; ``recovery.repair`` does what the problems ask for.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from recovery.proof import Proof, examine
from spool.admin.findings import LEFT_ALONE, Finding, Kind
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE
from spool.disk.quarantine import MAX_REASON_BYTES, REASON_SUFFIX, kept
from spool.errors import CorruptedFile
from spool.format.reader import open_file
from spool.format.schema import TOTALS_FACT
from spool.index import Index
from spool.log.replay import being_reclaimed
from spool.log.sequence import highest_issued
from spool.log.visibility import carries, catch_up
from spool.maintenance.account import difference
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.message import Position
from spool.model.xid import Xid
from spool.names import plural
from spool.store.store import Store


class Mend(enum.Enum):
    """What makes a problem go away. Nothing is deleted: what cannot be mended lies in quarantine afterwards."""

    NOTHING = enum.auto()
    CUT = enum.auto()  # the bytes behind the file's end
    STAMP = enum.auto()  # write the number again, which is known from the name
    EMPTY = enum.auto()  # quarantine a numbered file; its number becomes an empty commit
    KEEP_COPY = enum.auto()  # a copy to quarantine, while the file goes on to serve what is whole
    RECORD = enum.auto()  # nothing is left of the file: say so in quarantine
    QUARANTINE = enum.auto()  # move it there
    SET_ASIDE = enum.auto()  # messages whose bodies are damaged
    BALANCE = enum.auto()  # begin a new account of what is gone
    MAKE_QUEUE = enum.auto()
    MAKE_DIRECTORY = enum.auto()
    CLOSE = enum.auto()  # to others: owner's access only


@dataclass(frozen=True)
class Problem:
    """A finding, and what mends it: the file that it names, or these messages, queue or numbers."""

    finding: Finding
    mend: Mend = Mend.NOTHING
    number: int = 0
    xid: Xid | None = None
    positions: tuple[Position, ...] = ()
    queue: str = ""


def check(store: Store, *, repair: bool = False) -> list[Finding]:
    """Every finding, worst first. ``repair``: each with what was done about it."""
    if repair:
        from recovery.repair import repair as mended

        return told(mended(store))
    return told([problem.finding for problem in look(store)])


def told(findings: list[Finding]) -> list[Finding]:
    """Each file once, the worst first; of the settings, each queue that they have lost."""

    def key(finding: Finding) -> tuple[str, ...]:
        return (finding.kind, finding.name, finding.detail if finding.name == layout.SETTINGS else "")

    unique = {key(finding): finding for finding in reversed(findings)}
    return sorted(unique.values(), key=lambda finding: (finding.kind is not Kind.DAMAGED, finding.name))


def look(store: Store, *, ours: bool | None = None) -> list[Problem]:
    """Everything that is wrong. ``ours``: whether reclaim is kept away by the caller; None: try it."""
    catch_up(store)
    with store.view.mutex:
        files = {number: state.adopted for number, state in store.view.index.files.items()}
        damage = list(store.view.index.damage)
    problems = [problem for number in sorted(files) for problem in _number(store, number)]
    problems += _prepared(store)
    problems += _strays(store)
    problems += _strangers(store)
    problems += lost_queues(store)
    problems += _directories(store)
    if ours is None:
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as nobody_reclaims:
            ours = nobody_reclaims
            problems += _account_now(store) if ours else []
    elif ours:
        problems += _account_now(store)
    named = {problem.finding.name for problem in problems}
    return problems + [
        Problem(_damaged(name, wrong))
        for name, wrong in damage
        if name not in named and not kept(store.files.disk, name)
    ]


def _damaged(name: str, wrong: str) -> Finding:
    return Finding(Kind.DAMAGED, name, wrong)


# -- committed files --------------------------------------------------------------------------------------------------


def _number(store: Store, number: int) -> Iterator[Problem]:
    """A numbered file and what it adopts. A number that is reclaimed while we look is no problem."""
    name = layout.committed(number)
    proof = examine(store.files.disk, name)
    found = list(_numbered(store, number, name, proof))
    header = proof.header
    for place, adoption in enumerate(header.adopts if header is not None else (), 1):
        found += _adopted(store, CommittedName(number, place), adoption.xid, adoption.checksum, adoption.first)
    if found and _still_there(store, number):
        yield from found


def _numbered(store: Store, number: int, name: str, proof: Proof) -> Iterator[Problem]:
    header = proof.header
    if header is None or header.number not in (number, -1):
        wrong = f"it carries the number {header.number}" if header is not None else proof.wrong
        yield Problem(_damaged(name, wrong), Mend.NOTHING if proof.missing else Mend.EMPTY, number)
        return
    if header.number == -1:
        yield Problem(_damaged(name, "its number does not match its checksum"), Mend.STAMP, number)
    yield from _content(store, name, proof, number, 0)
    if proof.bad_tables and not kept(store.files.disk, name):
        yield Problem(_damaged(name, f"{proof.bad_tables[0]}: the messages it lists cannot be read"), Mend.KEEP_COPY)


def _adopted(store: Store, place: CommittedName, xid: Xid, checksum: int, first: int) -> Iterator[Problem]:
    name = layout.committed(*place)
    proof = examine(store.files.disk, name)
    if proof.missing and store.files.disk.exists(layout.prepared(xid)):
        name = layout.prepared(xid)
        proof = examine(store.files.disk, name)
    if proof.missing:
        if not kept(store.files.disk, name):
            yield Problem(_damaged(name, f"{proof.wrong} (branch {xid})"), Mend.RECORD)
        return
    wrong = proof.wrong or next(iter(proof.bad_tables), "")
    if proof.header is not None and proof.header.checksum != checksum:
        wrong = "it is not the branch that was committed"
    if wrong:
        yield Problem(_damaged(name, f"{wrong} (branch {xid})"), Mend.QUARANTINE)
        return
    yield from _content(store, name, proof, place.number, first)
    if proof.header is not None and proof.header.number != 0:
        yield Problem(_damaged(name, f"a branch has no number (branch {xid})"), Mend.STAMP)


def _content(store: Store, name: str, proof: Proof, number: int, first: int) -> Iterator[Problem]:
    """Bodies that are damaged, of messages that are still there; and what follows the file's end."""
    with store.view.mutex:
        live = [
            (position, wrong)
            for ordinal, wrong in proof.bad_bodies
            if store.view.index.messages.find(position := Position(number, first + ordinal)) is not None
        ]
    if live:
        positions = tuple(position for position, _ in live)
        yield Problem(_damaged(name, live[0][1]), Mend.SET_ASIDE, positions=positions)
    if proof.surplus:
        yield Problem(_damaged(name, _surplus(proof)), Mend.CUT)


def _surplus(proof: Proof) -> str:
    return f"{plural(proof.surplus, 'byte follows', 'bytes follow')} its end; all before is whole"


def _still_there(store: Store, number: int) -> bool:
    catch_up(store)
    with store.view.mutex:
        state = store.view.index.files.get(number)
        return state is not None and (state.live > 0 or not being_reclaimed(store, store.view.index, number))


def _account_now(store: Store) -> list[Problem]:
    catch_up(store)
    return account(store, store.view.index)


def account(store: Store, index: Index) -> list[Problem]:
    """Files that were deleted or put back from outside. The caller keeps reclaim away."""
    with store.view.mutex:
        applied = index.applied
        totals = index.facts.get(TOTALS_FACT, (0, None, None))[1]
    found = difference(applied, numbers_there(store), totals)
    if found is None:
        return []
    many, number = found
    name = f"{layout.COMMITTED}/" if number is None else layout.committed(number)
    if many > 0:
        text = "it is missing" if number is not None else f"{plural(many, 'file is', 'files are')} missing"
        wrong = f"{text}, and reclaim has not removed {'it' if many == 1 else 'them'}"
    else:
        text = "it was" if number is not None else plural(-many, "file was", "files were") if many else "others were"
        wrong = f"{text} reclaimed, and what had been consumed was put back"
    return [Problem(_damaged(name, wrong), Mend.BALANCE)]


def numbers_there(store: Store) -> list[int]:
    parsed = map(layout.parse_committed, store.files.disk.names(layout.COMMITTED))
    return [name.number for name in parsed if name is not None and not name.adoption]


# -- everything else --------------------------------------------------------------------------------------------------


def _prepared(store: Store) -> Iterator[Problem]:
    for entry in sorted(store.files.disk.names(layout.PREPARED)):
        xid, name = layout.parse_xid(entry), f"{layout.PREPARED}/{entry}"
        if xid is None or xid in store.view.index.adopted:
            continue
        proof = examine(store.files.disk, name)
        header = proof.header
        if proof.missing:
            continue  # decided meanwhile
        wrong = proof.wrong or next(iter((*proof.bad_tables, *(why for _, why in proof.bad_bodies))), "")
        if header is not None and not carries(header, xid):
            wrong = "it is another branch's file"
        if wrong or header is None:
            yield Problem(_damaged(name, wrong), Mend.QUARANTINE, xid=xid)
            continue
        waiting = plural(header.messages, "message waits", "messages wait")
        yield Problem(Finding(Kind.IN_DOUBT, name, f"{waiting} for a decision"))
        if header.number != 0:
            yield Problem(_damaged(name, "the bytes for its number are damaged; all others are whole"), Mend.STAMP)
        if proof.surplus:
            yield Problem(_damaged(name, _surplus(proof)), Mend.CUT)


def _strays(store: Store) -> Iterator[Problem]:
    """What no rule knows, where only a space's own files belong."""
    for directory, is_ours in layout.OWN_NAMES.items():
        entries = sorted(store.files.disk.names(directory))
        last = highest_issued(store, store.shared.counters.read())  # after the names: others commit while we look
        for entry in entries:
            name = f"{directory}/{entry}"
            identity = store.files.disk.identity(name)
            if identity is None:
                continue
            parsed = layout.parse_committed(entry) if directory == layout.COMMITTED else None
            irregular = not identity.is_regular and directory in (layout.FREE, layout.RUN, layout.ACTIVE)
            taken = directory == layout.ACTIVE and identity.is_directory and entry.startswith(layout.TAKEN_PREFIX)
            if not is_ours(entry) or (irregular and not taken) or (entry.startswith(layout.TAKEN_PREFIX) and not taken):
                yield Problem(Finding(Kind.STRAY, name, "no file of a queue space", LEFT_ALONE), Mend.QUARANTINE)
            elif parsed is not None and parsed.number > last:
                detail = "no commit has this number yet"
                yield Problem(Finding(Kind.STRAY, name, detail, LEFT_ALONE), Mend.QUARANTINE, parsed.number)


def _strangers(store: Store) -> Iterator[Problem]:
    """What lies beside the stages, and what a reason in quarantine is not. It is left to its owner: our own
    crashes leave a half-written space.toml, and reasons without what they are about."""
    names = [name for name in store.files.disk.names("") if name not in (layout.SETTINGS, *layout.DIRECTORIES)]
    there = set(store.files.disk.names(layout.QUARANTINE))
    alone = {name for name in there if name.endswith(REASON_SUFFIX) and name.removesuffix(REASON_SUFFIX) not in there}
    for name in sorted([*names, *(f"{layout.QUARANTINE}/{name}" for name in alone)]):
        identity = store.files.disk.identity(name)
        if identity is None or (name == f"{layout.SETTINGS}.tmp" and identity.is_regular):
            continue
        if not (name.endswith(REASON_SUFFIX) and identity.is_plain):
            yield Problem(Finding(Kind.STRAY, name, "no file of a queue space", LEFT_ALONE))


def lost_queues(store: Store, index: Index | None = None) -> Iterator[Problem]:
    """Messages that cannot be taken, because space.toml has lost their queue. ``index``: of a process that is
    alone; else others make and delete queues meanwhile, so messages and settings are looked at until both are of one
    moment."""
    for _ in store.deadline().polls():
        store.refresh_settings()
        version = store.settings_version
        if index is None:
            catch_up(store)
        with store.view.mutex:
            queues = (store.view.index if index is None else index).messages.queues
            lost = {n: q.live for n, q in queues.items() if q.live and n not in store.config.queues}
        if not lost or store.shared.counters.read().settings == version:
            break
    for queue, live in sorted(lost.items()):
        lie = plural(live, "message lies", "messages lie")
        text = f"it does not have queue {queue}, in which {lie}: create the queue"
        yield Problem(Finding(Kind.DAMAGED, layout.SETTINGS, text), Mend.MAKE_QUEUE, queue=queue)


def _directories(store: Store) -> Iterator[Problem]:
    """Directories that are missing, and what others may read."""
    for name in (*layout.DIRECTORIES, *(f"{layout.DROP}/{queue}" for queue in store.config.queues)):
        identity = store.files.disk.identity(name)
        if identity is None:
            yield Problem(Finding(Kind.MISSING, name, "the directory is missing"), Mend.MAKE_DIRECTORY)
        elif not name.startswith(layout.DROP) and identity.permissions & ~DIRECTORY_MODE:
            yield _exposed(name, identity.permissions)
    for directory in layout.OWN_NAMES:
        for entry in sorted(store.files.disk.names(directory)):
            identity = store.files.disk.identity(f"{directory}/{entry}")
            if identity is not None and identity.is_regular and identity.permissions & ~FILE_MODE:
                yield _exposed(f"{directory}/{entry}", identity.permissions)


def _exposed(name: str, permissions: int) -> Problem:
    return Problem(Finding(Kind.EXPOSED, name, f"others may use it: its mode is {permissions:04o}"), Mend.CLOSE)


# -- quarantine -------------------------------------------------------------------------------------------------------


def quarantined(store: Store) -> list[Finding]:
    """What lies in quarantine, with the reasons."""
    names = sorted(store.files.disk.names(layout.QUARANTINE))
    return [
        Finding(Kind.QUARANTINED, f"{layout.QUARANTINE}/{name}", _reason(store, name, names))
        for name in names
        if not name.endswith(REASON_SUFFIX)
    ]


def _reason(store: Store, name: str, names: list[str]) -> str:
    if name + REASON_SUFFIX not in names:
        return "no reason is recorded"
    try:
        handle = open_file(store.files.disk, f"{layout.QUARANTINE}/{name}{REASON_SUFFIX}")
    except (FileNotFoundError, CorruptedFile):
        return "its reason cannot be read"
    try:
        return store.files.disk.read_at(handle, 0, MAX_REASON_BYTES).decode("utf-8", "replace").strip()
    finally:
        store.files.disk.close(handle)
