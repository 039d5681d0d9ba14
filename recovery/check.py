"""fsck for a space: read every byte, name what is wrong. Also the tests' oracle (X11)."""

import errno

from recovery.evidence import NO_FILE
from recovery.report import Finding, Kind
from spool import layout
from spool.errors import CorruptedFile
from spool.quarantine import REASON_SUFFIX, quarantine
from spool.reader import FileImage, prove
from spool.store import Store
from spool.visibility import being_reclaimed, catch_up, list_prepared

_MAX_REASON_BYTES = 64 << 10
_UNREADABLE = (*NO_FILE, errno.EIO, errno.EACCES)


def check(store: Store, *, repair: bool = False) -> list[Finding]:
    """Every finding, worst first. ``repair``: what is damaged as a whole goes to quarantine."""
    catch_up(store)
    list_prepared(store)
    with store.mutex:
        findings = [Finding(Kind.DAMAGED, name, wrong) for name, wrong in store.index.damage]
        files = {number: state.adopted for number, state in store.index.files.items()}
    for number, adopted in sorted(files.items()):
        findings += _prove_number(store, number, len(adopted))
    findings += _prove_prepared(store, repair=repair)
    findings += _strays(store)
    unique = {(finding.kind, finding.name): finding for finding in findings}
    return sorted(unique.values(), key=lambda finding: (finding.kind is not Kind.DAMAGED, finding.name))


def _prove_number(store: Store, number: int, adopted: int) -> list[Finding]:
    found = []
    image, wrong = _proven(store, layout.committed(number))
    if image is not None and image.header.number != number:
        wrong = f"it carries the number {image.header.number}"
    if wrong and _still_there(store, number):
        found.append(Finding(Kind.DAMAGED, layout.committed(number), wrong))
    if image is None:
        return found
    for place, adoption in zip(range(1, adopted + 1), image.header.adopts, strict=False):
        name = layout.committed(number, place)
        branch, wrong = _proven(store, name)
        if branch is None and store.disk.exists(layout.prepared(adoption.xid)):
            name = layout.prepared(adoption.xid)
            branch, wrong = _proven(store, name)
        if branch is not None and branch.header.checksum != adoption.checksum:
            wrong = f"it is not the branch {adoption.xid} that was committed"
        if wrong and _still_there(store, number):
            found.append(Finding(Kind.DAMAGED, name, f"{wrong} (branch {adoption.xid})"))
    return found


def _still_there(store: Store, number: int) -> bool:
    """A number that was reclaimed while we looked, or is just being so, is no finding."""
    catch_up(store)
    with store.mutex:
        state = store.index.files.get(number)
        return state is not None and (state.live > 0 or not being_reclaimed(store, store.index, number))


def _proven(store: Store, name: str) -> tuple[FileImage | None, str]:
    try:
        handle = store.disk.open(name)
        try:
            return prove(store.disk, handle), ""
        finally:
            store.disk.close(handle)
    except FileNotFoundError:
        return None, "it is missing"
    except CorruptedFile as error:
        return None, str(error)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise  # of no file's making: too many are open, say
        return None, f"it cannot be read: {error.strerror}"


def _prove_prepared(store: Store, *, repair: bool) -> list[Finding]:
    found = []
    for name in sorted(store.disk.names(layout.PREPARED)):
        xid = layout.parse_xid(name)
        path = f"{layout.PREPARED}/{name}"
        if xid is None:
            found.append(Finding(Kind.STRAY, path, "no file of a queue space", "left alone"))
            continue
        image, wrong = _proven(store, path)
        if image is not None and xid not in store.index.adopted:
            found.append(Finding(Kind.IN_DOUBT, path, f"{image.header.messages} messages wait for a decision"))
        elif wrong and store.disk.exists(path):
            action = ""
            if repair:
                action = f"moved to {quarantine(store.disk, path, wrong)}"
            found.append(Finding(Kind.DAMAGED, path, wrong, action))
    return found


def _strays(store: Store) -> list[Finding]:
    names = sorted(store.disk.names(layout.COMMITTED))
    return [
        Finding(Kind.STRAY, f"{layout.COMMITTED}/{name}", "no file of a queue space", "left alone")
        for name in names
        if layout.parse_committed(name) is None
    ]


def quarantined(store: Store) -> list[Finding]:
    """What lies in quarantine, with the reasons."""
    names = sorted(store.disk.names(layout.QUARANTINE))
    found = []
    for name in names:
        if name.endswith(REASON_SUFFIX):
            continue
        reason = "no reason is recorded"
        if name + REASON_SUFFIX in names:
            handle = store.disk.open(f"{layout.QUARANTINE}/{name}{REASON_SUFFIX}")
            try:
                reason = store.disk.read_at(handle, 0, _MAX_REASON_BYTES).decode("utf-8", "replace").strip()
            finally:
                store.disk.close(handle)
        found.append(Finding(Kind.QUARANTINED, f"{layout.QUARANTINE}/{name}", reason))
    return found
