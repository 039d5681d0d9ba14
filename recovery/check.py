"""Check a space as fsck checks a file system: read every byte, name what is wrong, and choose a remedy.

Nothing is changed here: `recovery.repair` applies the remedies. The tests use the check as their oracle.
"""

from collections.abc import Iterator

from spool.admin.findings import LEFT_ALONE, Finding, Kind
from spool.coordination.counters import Counters
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, Disk
from spool.disk.quarantine import is_quarantined
from spool.format.schema import TOTALS_FACT
from spool.index import Index
from spool.log.replay import is_being_reclaimed
from spool.log.sequence import highest_number
from spool.log.visibility import catch_up, is_branch_file
from spool.maintenance.reclaim import digest_mismatch
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.position import Position
from spool.model.text import plural
from spool.model.xid import Xid
from spool.store.parts import View
from spool.store.store import Store

from .problem import Problem, Remedy, distinct
from .proof import Proof, examine


def check(store: Store) -> list[Finding]:
    """Return every finding of a space, damage first. Nothing is changed."""
    return distinct([problem.finding for problem in find_problems(store)])


def find_problems(store: Store, *, reclaim_locked: bool = False) -> list[Problem]:
    """Return everything that is wrong, and the remedy of each problem.

    Args:
        reclaim_locked: the caller holds the reclaim lock. Otherwise it is taken for the comparison of the files with
            their digest; if another process holds it, that comparison is left out.
    """
    store.files.disk.check_stages_in_place()
    catch_up(store)
    with store.view.mutex:
        files = {number: state.adopted for number, state in store.view.index.files.items()}
        damage = list(store.view.index.damage)
    problems = [problem for number in sorted(files) for problem in _commit_problems(store, number)]
    problems += _prepared_branches(store.files.disk, store.view)
    problems += _strays(store.files.disk, store.shared.counters)
    problems += _foreign_files(store.files.disk)
    problems += lost_queues(store)
    problems += _directories(store)
    if reclaim_locked:
        problems += _missing_files_now(store)
    else:
        with store.files.disk.exclusively(layout.RECLAIM_LOCK) as locked:
            problems += _missing_files_now(store) if locked else []
    named = {problem.finding.name for problem in problems}
    return problems + [
        Problem(_damaged(name, wrong))
        for name, wrong in damage
        if name not in named and not is_quarantined(store.files.disk, name)
    ]


def _damaged(name: str, wrong: str) -> Finding:
    return Finding(Kind.DAMAGED, name, wrong)


# -- committed files --------------------------------------------------------------------------------------------------


def _commit_problems(store: Store, number: int) -> Iterator[Problem]:
    """Check a numbered file and the branches that it adopts.

    A number that is reclaimed during the check is no problem.
    """
    name = layout.committed(number)
    proof = examine(store.files.disk, name)
    problems = list(_numbered_file(store.files.disk, store.view, number, name, proof))
    header = proof.header
    for ordinal, adoption in enumerate(header.adopts if header is not None else (), 1):
        branch = CommittedName(number, ordinal)
        problems += _adopted_branch(
            store.files.disk, store.view, branch, adoption.xid, adoption.checksum, adoption.first
        )
    if problems and _still_needed(store, number):
        yield from problems


def _numbered_file(disk: Disk, view: View, number: int, name: str, proof: Proof) -> Iterator[Problem]:
    header = proof.header
    if header is None or header.number not in (number, -1):
        wrong = f"it carries the number {header.number}" if header is not None else proof.wrong
        yield Problem(_damaged(name, wrong), Remedy.NONE if proof.missing else Remedy.REPLACE_BY_EMPTY, number)
        return
    if header.number == -1:
        yield Problem(_damaged(name, "its number does not match its checksum"), Remedy.WRITE_NUMBER, number)
    yield from _content(view, name, proof, number, 0)
    if proof.bad_tables and not is_quarantined(disk, name):
        yield Problem(_damaged(name, f"{proof.bad_tables[0]}: the messages it lists cannot be read"), Remedy.KEEP_COPY)


def _adopted_branch(
    disk: Disk, view: View, branch: CommittedName, xid: Xid, checksum: int, first: int
) -> Iterator[Problem]:
    name = layout.committed(*branch)
    proof = examine(disk, name)
    if proof.missing and disk.exists(layout.prepared(xid)):
        name = layout.prepared(xid)
        proof = examine(disk, name)
    if proof.missing:
        if not is_quarantined(disk, name):
            yield Problem(_damaged(name, f"{proof.wrong} (branch {xid})"), Remedy.RECORD)
        return
    wrong = proof.wrong or next(iter(proof.bad_tables), "")
    if proof.header is not None and proof.header.checksum != checksum:
        wrong = "it is not the branch that was committed"
    if wrong:
        yield Problem(_damaged(name, f"{wrong} (branch {xid})"), Remedy.QUARANTINE)
        return
    yield from _content(view, name, proof, branch.number, first)
    if proof.header is not None and proof.header.number != 0:
        yield Problem(_damaged(name, f"a branch has no number (branch {xid})"), Remedy.WRITE_NUMBER)


def _content(view: View, name: str, proof: Proof, number: int, first: int) -> Iterator[Problem]:
    """Check the bodies of messages that are still in a queue, and the file's length.

    Args:
        first: the ordinal of the file's first message within its commit.
    """
    with view.mutex:
        live = [
            (position, wrong)
            for ordinal, wrong in proof.bad_bodies
            if view.index.messages.find(position := Position(number, first + ordinal)) is not None
        ]
    if live:
        positions = tuple(position for position, _ in live)
        yield Problem(_damaged(name, live[0][1]), Remedy.SET_ASIDE, positions=positions)
    if proof.surplus:
        yield Problem(_damaged(name, _surplus(proof)), Remedy.TRUNCATE)


def _surplus(proof: Proof) -> str:
    return f"{plural(proof.surplus, 'byte follows', 'bytes follow')} its end; all before is whole"


def _still_needed(store: Store, number: int) -> bool:
    """Tell whether a commit has live messages, or is not being reclaimed."""
    catch_up(store)
    with store.view.mutex:
        state = store.view.index.files.get(number)
        return state is not None and (
            state.live > 0 or not is_being_reclaimed(store.files.disk, store.view.index, number)
        )


def _missing_files_now(store: Store) -> list[Problem]:
    catch_up(store)
    return missing_files(store.files.disk, store.view, store.view.index)


def missing_files(disk: Disk, view: View, index: Index) -> list[Problem]:
    """Find files that were deleted or put back by another program, by the digest of retired numbers.

    The caller holds the reclaim lock, or is alone.
    """
    with view.mutex:
        applied = index.applied
        totals = index.facts.get(TOTALS_FACT, (0, None, None))[1]
    change = digest_mismatch(applied, committed_numbers(disk), totals)
    if change is None:
        return []
    missing, number = change
    name = f"{layout.COMMITTED}/" if number is None else layout.committed(number)
    if missing > 0:
        text = "it is missing" if number is not None else f"{plural(missing, 'file is', 'files are')} missing"
        wrong = f"{text}, and reclaim has not removed {'it' if missing == 1 else 'them'}"
    else:
        others = plural(-missing, "file was", "files were") if missing else "others were"
        text = "it was" if number is not None else others
        wrong = f"{text} reclaimed, and what had been consumed was put back"
    return [Problem(_damaged(name, wrong), Remedy.RESET_DIGEST)]


def committed_numbers(disk: Disk) -> list[int]:
    """List the sequence numbers that have a file in committed/."""
    parsed = map(layout.parse_committed, disk.names(layout.COMMITTED))
    return [name.number for name in parsed if name is not None and not name.adoption]


# -- everything else --------------------------------------------------------------------------------------------------


def _prepared_branches(disk: Disk, view: View) -> Iterator[Problem]:
    for entry in sorted(disk.names(layout.PREPARED)):
        xid, name = layout.parse_xid(entry), f"{layout.PREPARED}/{entry}"
        if xid is None or xid in view.index.adopted:
            continue
        proof = examine(disk, name)
        header = proof.header
        if proof.missing:
            continue  # it was decided meanwhile
        wrong = proof.wrong or next(iter((*proof.bad_tables, *(why for _, why in proof.bad_bodies))), "")
        if header is not None and not is_branch_file(header, xid):
            wrong = "it is another branch's file"
        if wrong or header is None:
            yield Problem(_damaged(name, wrong), Remedy.QUARANTINE, xid=xid)
            continue
        waiting = plural(header.messages, "message waits", "messages wait")
        yield Problem(Finding(Kind.IN_DOUBT, name, f"{waiting} for a decision"))
        if header.number != 0:
            wrong = "the bytes for its number are damaged; all others are whole"
            yield Problem(_damaged(name, wrong), Remedy.WRITE_NUMBER)
        if proof.surplus:
            yield Problem(_damaged(name, _surplus(proof)), Remedy.TRUNCATE)


def _strays(disk: Disk, counters: Counters) -> Iterator[Problem]:
    """Find entries of the space's own directories that are none of its files."""
    for directory, is_ours in layout.OWN_NAMES.items():
        entries = sorted(disk.names(directory))
        last = highest_number(disk, counters.read())  # after the names: other processes commit meanwhile
        for entry in entries:
            name = f"{directory}/{entry}"
            identity = disk.identity(name)
            if identity is None:
                continue
            parsed = layout.parse_committed(entry) if directory == layout.COMMITTED else None
            irregular = not identity.is_regular and directory in (layout.FREE, layout.RUN, layout.ACTIVE)
            captured = entry.startswith(layout.CAPTURE_PREFIX)  # the name of a directory of dropped files
            is_capture = captured and directory == layout.ACTIVE and identity.is_directory
            if not is_ours(entry) or (irregular and not is_capture) or (captured and not is_capture):
                yield Problem(Finding(Kind.STRAY, name, "no file of a queue space", LEFT_ALONE), Remedy.QUARANTINE)
            elif parsed is not None and parsed.number > last:
                detail = "no commit has this number yet"
                yield Problem(Finding(Kind.STRAY, name, detail, LEFT_ALONE), Remedy.QUARANTINE, parsed.number)


_FILES = (layout.SETTINGS, layout.MIRROR_ID)  # of the space itself
_UNFINISHED = tuple(f"{name}.tmp" for name in _FILES)


def _foreign_files(disk: Disk) -> Iterator[Problem]:
    """Find what lies beside the space's directories, and reasons in quarantine that are no regular files.

    It is left alone. A crash leaves a half-written file of the space itself, or a reason without its file: no problem.
    """
    names = [name for name in disk.names("") if name not in (*_FILES, *layout.DIRECTORIES)]
    kept_names = set(disk.names(layout.QUARANTINE))
    reasons = {name for name in kept_names if name.endswith(layout.REASON_SUFFIX)}
    orphans = {reason for reason in reasons if reason.removesuffix(layout.REASON_SUFFIX) not in kept_names}
    for name in sorted([*names, *(f"{layout.QUARANTINE}/{name}" for name in orphans)]):
        identity = disk.identity(name)
        if identity is None or (name in _UNFINISHED and identity.is_regular):
            continue
        if not (name.endswith(layout.REASON_SUFFIX) and identity.is_plain):
            yield Problem(Finding(Kind.STRAY, name, "no file of a queue space", LEFT_ALONE))


def lost_queues(store: Store, index: Index | None = None) -> Iterator[Problem]:
    """Find messages that cannot be taken, because space.toml has lost their queue.

    Args:
        index: that of a process that is alone. Without it, other processes create and delete queues meanwhile, so
            messages and settings are read until both are of one moment.
    """
    for _ in store.deadline().polls():
        settings = store.settings.current()
        if index is None:
            catch_up(store)
        with store.view.mutex:
            queues = (store.view.index if index is None else index).messages.queues
            lost = {n: q.live for n, q in queues.items() if q.live and n not in settings.config.queues}
        if not lost or store.shared.counters.read().settings == settings.version:
            break
    for queue, live in sorted(lost.items()):
        waiting = plural(live, "message waits", "messages wait")
        text = f"queue {queue}, in which {waiting}, is missing from it: create the queue"
        yield Problem(Finding(Kind.DAMAGED, layout.SETTINGS, text), Remedy.CREATE_QUEUE, queue=queue)


def _directories(store: Store) -> Iterator[Problem]:
    """Find directories that are missing, and files and directories that other users may read or write."""
    for name in (*layout.DIRECTORIES, *(f"{layout.DROP}/{queue}" for queue in store.settings.known.config.queues)):
        identity = store.files.disk.identity(name)
        if identity is None:
            yield Problem(Finding(Kind.MISSING, name, "the directory is missing"), Remedy.CREATE_DIRECTORY)
        elif not name.startswith(layout.DROP) and identity.permissions & ~DIRECTORY_MODE:
            yield _exposed(name, identity.permissions)
    for directory in layout.OWN_NAMES:
        for entry in sorted(store.files.disk.names(directory)):
            identity = store.files.disk.identity(f"{directory}/{entry}")
            if identity is not None and identity.is_regular and identity.permissions & ~FILE_MODE:
                yield _exposed(f"{directory}/{entry}", identity.permissions)


def _exposed(name: str, permissions: int) -> Problem:
    return Problem(Finding(Kind.EXPOSED, name, f"other users may use it (mode {permissions:04o})"), Remedy.RESTRICT)
