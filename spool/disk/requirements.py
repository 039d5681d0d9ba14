"""What a space needs of its file system: ``spool.open`` refuses what is seen to lack it, and ``examine`` proves it.

The proof is done in a directory of its own, which is removed again, so a space may be in use meanwhile, and a directory
need not be a space yet. Only its last part renames an empty file between the space's own stages.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, PASSAGE_MODE, Disk
from spool.disk.identity import FileIdentity
from spool.disk.kernel import Unsupported
from spool.errors import SpoolError, UnsafeFileSystem
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse
from spool.names import quoted
from spool.runtime.clock import Clock

# Nothing is renamed between these and the others, so they may lie on another device.
_APART = (layout.DROP, layout.RUN)

_LITTLE_ROOM_BYTES, _FEW_INODES = 64 << 20, 1000
_FIRST_COMMIT = 1_700_000_000.0  # no clock that is right is behind this
_CLOCKS_APART_SECONDS = 5.0


# -- while a space is created or opened -------------------------------------------------------------------------------


def check_kind(disk: Disk, asked_for: str | None) -> None:
    """UnsafeFileSystem on a network file system that was not ``asked_for`` by name."""
    kind = disk.network_file_system()
    if kind is not None and kind != asked_for:
        raise UnsafeFileSystem(
            f"{disk.root} lies on {kind}, a network file system, where locks and renames can fail silently: "
            f"choose a local directory, or insist with network_file_system = {kind!r}"
        )


def check_stages(disk: Disk) -> None:
    """UnsafeFileSystem if one of the space's directories lies elsewhere, as far as that can be seen; missing ones are
    no concern here."""
    for name in layout.DIRECTORIES:
        wrong = _lies_elsewhere(disk, name)
        if wrong:
            raise UnsafeFileSystem(f"{disk.path(name)} {wrong}")


def _lies_elsewhere(disk: Disk, name: str) -> str:
    here, found = disk.identity(""), disk.identity(name)
    if found is None or here is None:
        return ""
    if not found.is_directory:
        what = "a symlink" if found.is_symlink else "a file"
        return f"is {what}: it has to be a directory of the space's own; move it away, with what it points to"
    if found.device != here.device and name not in _APART:
        return "lies on another device than the space, so nothing can be renamed into it: unmount what is mounted there"
    return ""


def unsafe(disk: Disk, doing: str, error: Unsupported) -> UnsafeFileSystem:
    """The error of who meets what the file system cannot do."""
    what = {
        errno.EXDEV: "a part of the space lies on another device, or is mounted on its own",
        errno.ENOLCK: "it has no locks that keep processes apart",
    }.get(error.errno or 0, "it cannot do what a queue space stands on")
    return UnsafeFileSystem(
        f"{doing}: the file system of {disk.root} will not do: {what} ({error.strerror}); nothing was lost: "
        f"look with spool-admin doctor {quoted(disk.root)}, and choose another directory"
    )


# -- examining --------------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """What one proof came to."""

    FINE = "fine"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True)
class Proof:
    """``what`` was looked at, and what was found; unless it is fine, ``detail`` says what to do."""

    what: str
    outcome: Outcome
    detail: str


class _Doubt(Exception):
    """Good enough, but worth knowing."""


class _Refusal(Exception):
    """Not good enough."""


def examine(disk: Disk, clock: Clock) -> list[Proof]:
    """Everything that a space needs of this directory's file system, proven where it lies."""
    config = _settings(disk)
    proofs = [
        _proof("kind", lambda: _kind(disk, config)),
        _proof("room", lambda: _room(disk)),
        _proof("owner", lambda: _owner(disk)),
    ]
    try:
        with _bench(disk) as bench:
            proofs += [_proof(what, partial(prove, disk, clock, bench)) for what, prove in _ON_THE_BENCH]
            there = [name for name in layout.DIRECTORIES if disk.exists(name)]
            proofs += [_proof(f"{name}/", partial(_stage, disk, bench, name)) for name in there]
    except OSError as error:
        proofs.append(Proof("writing", Outcome.REFUSED, _reason(error)))
    return proofs


def examine_kind(disk: Disk) -> Proof:
    """What kind of file system it is, which is known without trying anything out."""
    return _proof("kind", lambda: _kind(disk, _settings(disk)))


def _proof(what: str, prove: Callable[[], str]) -> Proof:
    try:
        return Proof(what, Outcome.FINE, prove())
    except _Doubt as doubt:
        return Proof(what, Outcome.WARNING, str(doubt))
    except _Refusal as refusal:
        return Proof(what, Outcome.REFUSED, str(refusal))
    except SpoolError as error:
        return Proof(what, Outcome.REFUSED, str(error))
    except OSError as error:
        return Proof(what, Outcome.REFUSED, _reason(error))


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}: " + {
        errno.EROFS: "mount the file system writable",
        errno.EACCES: "let this user write there",
        errno.EPERM: "let this user do so, or choose another file system",
        errno.ENOSPC: "free space or inodes",
        errno.EDQUOT: "raise the quota",
        errno.EXDEV: "unmount what is mounted there, or make it a directory of the space's own",
        errno.EIO: "look at the disk (dmesg tells more)",
    }.get(error.errno or 0, "choose another file system")


def _settings(disk: Disk) -> SpaceConfig:
    """Of the space, or, where there is none, of a new one."""
    try:
        handle = disk.open(layout.SETTINGS)
    except OSError:
        return SpaceConfig()
    try:
        return parse(disk.read_at(handle, 0, MAX_SETTINGS_BYTES).decode("utf-8", "replace"), layout.SETTINGS)
    except SpoolError:
        return SpaceConfig()  # whoever opens it is told
    finally:
        disk.close(handle)


def _kind(disk: Disk, config: SpaceConfig) -> str:
    check_kind(disk, config.network_file_system)
    kind = disk.file_system().kind
    ordered = disk.ordered if config.flush == "auto" else config.flush == "ordered"
    mode = "flush mode ordered: one flush a commit" if ordered else "flush mode strict: two flushes a commit"
    if not ordered and config.flush == "auto" and disk.flush_carries_name:
        mode = "flush mode strict: one flush a commit, which here makes a new file's name durable, too"
    if ordered and not disk.ordered:
        raise _Doubt(f"{kind}; {mode}, as space.toml insists, although this file system is not known to order renames")
    if kind in ("fuse", "overlay") or kind.startswith("unknown"):
        raise _Doubt(f"{kind}; {mode}; whether a flush reaches the disk depends on what lies beneath: find out")
    if kind in ("tmpfs", "ramfs"):
        raise _Doubt(f"{kind} is memory: no message on it survives a power cut or a restart of the machine")
    return f"{kind}; {mode}"


def _room(disk: Disk) -> str:
    found = disk.file_system()
    if found.read_only:
        raise _Refusal("the file system is mounted read-only: mount it writable")
    inodes = "" if found.free_inodes is None else f", {found.free_inodes:,} inodes free"
    text = f"{found.free_bytes >> 20:,} MiB{inodes}"
    if not found.free_bytes or found.free_inodes == 0:
        raise _Refusal(f"{text}: free some")
    if found.free_bytes < _LITTLE_ROOM_BYTES or (found.free_inodes or _FEW_INODES) < _FEW_INODES:
        raise _Doubt(f"{text}: that is little; free some")
    return text


def _owner(disk: Disk) -> str:
    """Of the directory and, if it is a space, of everything in it, but for what was dropped."""
    found = disk.identity("")
    if found is None or not found.is_directory:
        raise _Refusal("it is no directory: choose another path")
    if found.owner != os.geteuid():
        raise _Doubt(f"it belongs to user {found.owner}, and this is user {os.geteuid()}: run as its owner")
    if disk.exists(layout.SETTINGS) and found.permissions & ~PASSAGE_MODE:
        raise _Doubt(f"others may look into it (mode {found.permissions:04o}): chmod 700 {quoted(disk.root)}")
    wrong = list(_open_to_others(disk))
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise _Doubt(f"{wrong[0]} may be read or written by others{more}: chmod -R go= {quoted(disk.root)}")
    return f"user {found.owner}, mode {found.permissions:04o}"


def _open_to_others(disk: Disk) -> Iterator[str]:
    for directory in layout.DIRECTORIES:
        with suppress(OSError):
            names = [] if directory == layout.DROP else disk.names(directory)
            for path in (directory, *(f"{directory}/{name}" for name in names)):
                found = disk.identity(path)
                if found is not None and (found.permissions & 0o077) and not found.is_symlink and path != layout.DROP:
                    yield path


# -- on the bench -----------------------------------------------------------------------------------------------------


@contextmanager
def _bench(disk: Disk) -> Iterator[str]:
    """A directory of its own, with two stages, that is gone afterwards."""
    bench = f".spool-doctor.{os.urandom(8).hex()}"
    disk.make_directory(bench)
    try:
        for stage in ("one", "two"):
            disk.make_directory(f"{bench}/{stage}")
        yield bench
    finally:
        for stage in ("one", "two"):
            with suppress(OSError):
                for name in disk.names(f"{bench}/{stage}"):
                    disk.unlink(f"{bench}/{stage}/{name}")
                disk.remove_directory(f"{bench}/{stage}")
        disk.remove_directory(bench)


def _file(disk: Disk, name: str, data: bytes = b"") -> str:
    handle = disk.create(name)
    try:
        if data:
            disk.write_at(handle, 0, data)
    finally:
        disk.close(handle)
    return name


def _content(disk: Disk, name: str) -> bytes:
    handle = disk.open(name)
    try:
        return disk.read_at(handle, 0, 100)
    finally:
        disk.close(handle)


def _names(disk: Disk, clock: Clock, bench: str) -> str:
    long = "n" * 200
    _file(disk, f"{bench}/one/{long}")
    _file(disk, f"{bench}/one/Case")
    if disk.exists(f"{bench}/one/cASE"):
        raise _Refusal("names that differ in case are the same file here: choose another file system")
    if long not in disk.names(f"{bench}/one"):
        raise _Refusal("a file that was made is not listed: choose another file system")
    return "names of 200 bytes are kept, and upper and lower case are different names"


def _modes(disk: Disk, clock: Clock, bench: str) -> str:
    file, directory = disk.identity(_file(disk, f"{bench}/one/mode")), disk.identity(f"{bench}/one")
    if file is None or directory is None:
        raise _Refusal("what was made is gone: choose another file system")
    if (file.permissions, directory.permissions) != (FILE_MODE, DIRECTORY_MODE):
        modes = f"a file got mode {file.permissions:04o}, a directory {directory.permissions:04o}"
        raise _Doubt(f"{modes}, whatever was asked for: others may read messages")
    if file.owner != os.geteuid():
        raise _Doubt(f"new files belong to user {file.owner}, not {os.geteuid()}: others may read messages")
    return "modes 0600 and 0700 are kept"


def _renames(disk: Disk, clock: Clock, bench: str) -> str:
    old, new = _file(disk, f"{bench}/one/rename", b"new"), _file(disk, f"{bench}/two/rename", b"old")
    before = disk.identity(old)
    disk.rename(old, new)
    after = disk.identity(new)
    if disk.exists(old) or before is None or not before.same_file(after) or _content(disk, new) != b"new":
        raise _Refusal("a file that was renamed is not the one that is found: choose another file system")
    return "a file can be renamed to another directory, and replaces one of that name"


def _renames_new(disk: Disk, clock: Clock, bench: str) -> str:
    old, new = _file(disk, f"{bench}/one/new", b"new"), _file(disk, f"{bench}/two/new", b"old")
    with suppress(FileExistsError):
        disk.rename_new(old, new)
    if not disk.exists(old) or _content(disk, new) != b"old":
        raise _Refusal("a rename replaced a file that it should not: choose another file system")
    disk.unlink(new)
    disk.rename_new(old, new)
    if disk.exists(old) or _content(disk, new) != b"new":
        raise _Refusal("a file that was renamed is not the one that is found: choose another file system")
    return "a rename to a name that is taken is refused where that is asked for"


def _links(disk: Disk, clock: Clock, bench: str) -> str:
    first, second = _file(disk, f"{bench}/one/link"), f"{bench}/two/link"
    try:
        disk.link(first, second)
    except OSError as error:
        if disk.ordered:
            raise _Doubt(f"there are none ({error.strerror}), and they are not needed here") from None
        raise
    found = disk.identity(second)
    if found is None or found.links != 2:
        raise _Refusal("two names of one file look like two files: choose another file system")
    return "a file can have two names"


def _flushes(disk: Disk, clock: Clock, bench: str) -> str:
    handle = disk.create(f"{bench}/one/flush")
    try:
        disk.write_at(handle, 0, b"flush")
        disk.flush(handle)
        disk.rename(f"{bench}/one/flush", f"{bench}/two/flush")
        disk.make_durable(handle, f"{bench}/two")
        disk.flush_directory(f"{bench}/one")
    finally:
        disk.close(handle)
    return "files and directories can be flushed"


def _byte_locks(disk: Disk, clock: Clock, bench: str) -> str:
    name = _file(disk, f"{bench}/one/bytes")
    _keep_apart(disk, lambda: disk.open(name, write=True), disk.lock, "a locked byte was locked again")
    ours, others = disk.open(name, write=True), disk.open(name, write=True)
    try:
        if not all(disk.lock(handle, 1, shared=True) for handle in (ours, others)):
            raise _Refusal("a lock cannot be shared: choose another file system")
        if not disk.lock(others, 2**62):
            raise _Refusal("a byte far behind the end cannot be locked: choose another file system")
        if disk.some_lock(ours, 2**62, 1) != (2**62, 1):
            raise _Refusal("a byte that is locked looks free: choose another file system")
    finally:
        disk.close(ours)
        disk.close(others)
    return "one descriptor or process at a time holds a lock, and its end frees the lock"


def _holds(disk: Disk, clock: Clock, bench: str) -> str:
    _keep_apart(
        disk,
        lambda: disk.open_directory(f"{bench}/one"),
        lambda handle, byte: disk.flock(handle),
        "a directory that was held was held again",
    )
    ours, others = disk.open_directory(f"{bench}/one"), disk.open_directory(f"{bench}/one")
    try:
        if not all(disk.lock(handle, 0, shared=True) for handle in (ours, others)):
            raise _Refusal("a directory's byte cannot be locked by two: choose another file system")
        if disk.some_lock(ours, 0, 1) is None:
            raise _Refusal("a directory's byte that is locked looks free: choose another file system")
    finally:
        disk.close(ours)
        disk.close(others)
    return "one descriptor or process at a time holds a lock, and its end frees the lock"


def _keep_apart(disk: Disk, open_: Callable[[], int], take: Callable[[int, int], bool], wrong: str) -> None:
    """One holder at a time, of two descriptors and of two processes; and none once it is killed."""
    ours, others = open_(), open_()
    try:
        if not take(ours, 0):
            raise _Refusal("a lock that was free was not granted: choose another file system")
        if take(others, 0):
            raise _Refusal(f"{wrong} by another descriptor: choose another file system")
        if _in_another_process(lambda: take(open_(), 0)):
            raise _Refusal(f"{wrong} by another process: choose another file system")
    finally:
        disk.close(ours)
        disk.close(others)
    if not _in_another_process(lambda: take(open_(), 0)):
        raise _Refusal("a lock that was let go of stays: choose another file system")
    ours = open_()
    try:
        if not take(ours, 0):
            raise _Refusal("a lock stays although its process was killed: choose another file system")
    finally:
        disk.close(ours)


def _in_another_process(attempt: Callable[[], bool]) -> bool:
    """What it says there; that process is killed while it holds whatever it got."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"?"
        try:
            said = b"+" if attempt() else b"-"
        finally:
            os.write(writer, said)
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read(1)
    os.waitpid(child, 0)
    if said == b"?":
        raise OSError(errno.ENOLCK, "another process could not ask for a lock")
    return said == b"+"


def _clocks(disk: Disk, clock: Clock, bench: str) -> str:
    now = clock.now()
    file = disk.identity(_file(disk, f"{bench}/one/clock", b"now"))
    newest = max((found.modified_ns for found in _committed(disk)), default=0) / 1e9
    if now < _FIRST_COMMIT:
        raise _Doubt("the machine's clock is years behind: set it, or delayed messages come late")
    if newest > now + _CLOCKS_APART_SECONDS:
        ahead = f"the newest commit is {newest - now:,.0f} s ahead of the clock"
        raise _Doubt(f"{ahead}: set it, or delayed messages come late")
    if file is not None and abs(file.modified_ns / 1e9 - now) > _CLOCKS_APART_SECONDS:
        raise _Doubt("the file system's clock is not the machine's: dropped files may be taken too early")
    return "the clocks of the machine and of the file system agree"


def _committed(disk: Disk) -> Iterator[FileIdentity]:
    with suppress(OSError):
        for name in disk.names(layout.COMMITTED):
            found = disk.identity(f"{layout.COMMITTED}/{name}")
            if found is not None:
                yield found


def _stage(disk: Disk, bench: str, name: str) -> str:
    """A directory of the space: a file can be renamed there and back."""
    wrong = _lies_elsewhere(disk, name)
    if wrong:
        raise _Refusal(wrong)
    if name == layout.RUN:
        return "is a directory"
    probe = f".spool-doctor.{os.urandom(8).hex()}"
    _file(disk, f"{bench}/one/{probe}")
    try:
        disk.rename(f"{bench}/one/{probe}", f"{name}/{probe}")
    except Unsupported as error:
        if name in _APART:
            raise _Doubt(f"lies elsewhere ({error.strerror}): what is dropped there is left alone") from None
        raise
    disk.rename(f"{name}/{probe}", f"{bench}/one/{probe}")
    return "files can be renamed there and back"


_ON_THE_BENCH: tuple[tuple[str, Callable[[Disk, Clock, str], str]], ...] = (
    ("names", _names),
    ("modes", _modes),
    ("renames", _renames),
    ("new names", _renames_new),
    ("hard links", _links),
    ("flushes", _flushes),
    ("byte locks", _byte_locks),
    ("directory locks", _holds),
    ("clocks", _clocks),
)
