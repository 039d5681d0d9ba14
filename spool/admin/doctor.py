"""Trials that prove whether the file system of a directory is good enough for a queue space.

The trials run in a separate directory, which is removed afterwards. A space in the tested directory may be in use, or
may not exist yet. Only the last trials use the directories of the space: they rename an empty file between these
directories.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from shlex import quote

from spool.disk.advice import advice, not_of_the_owner, of_another_user, user_name
from spool.disk.content import closed_at_end, new_file, read_start, write_new
from spool.disk.disk import DIRECTORY_MODE, FILE_MODE, PASSAGE_MODE, Disk, is_full
from spool.disk.kernel import Unsupported
from spool.disk.requirements import APART, check_kind, misplacement
from spool.disk.stat import FileIdentity
from spool.errors import SpoolError
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse

_LITTLE_ROOM_BYTES, _FEW_INODES = 64 << 20, 1000
_EARLIEST_TIME = 1_700_000_000.0  # in seconds since the epoch. A clock with an earlier time is wrong.
_CLOCK_TOLERANCE_SECONDS = 5.0
_ONE_HOLDER = "one descriptor or process at a time holds a lock, and its end frees the lock"


class Outcome(StrEnum):
    """The kind of a trial's result."""

    FINE = "fine"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True)
class TrialResult:
    """The result of one trial.

    what: the tested property. detail: the finding, and advice unless the outcome is fine.
    """

    what: str
    outcome: Outcome
    detail: str


class _Warning(Exception):
    """The file system is good enough for a space, with a limit that the administrator should know."""


class _Refused(Exception):
    """The file system is not good enough for a space."""


def _refuse_if(lacks: bool, text: str) -> None:
    if lacks:
        raise _Refused(f"{text}: choose another file system")


def examine(disk: Disk) -> list[TrialResult]:
    """Test every property of the directory's file system that a space needs. Return one result for each property."""
    first = (("space", _space), ("room", _room), ("owner", _owner))
    results = [examine_kind(disk)]
    try:
        results += [_result_of(what, partial(prove, disk)) for what, prove in first]
        with _trial_directory(disk) as trial:
            results += [_result_of(what, partial(prove, disk, trial)) for what, prove in _TRIALS]
            existing = [name for name in layout.DIRECTORIES if disk.exists(name)]
            results += [_result_of(f"{name}/", partial(_space_directory, disk, trial, name)) for name in existing]
    except OSError as error:
        results.append(TrialResult("writing", Outcome.REFUSED, _reason(error)))
    return results


def examine_kind(disk: Disk) -> TrialResult:
    """Return the result for the kind of file system. This result needs no trial."""
    return _result_of("kind", partial(_kind, disk))


def _result_of(what: str, prove: Callable[[], str]) -> TrialResult:
    try:
        return TrialResult(what, Outcome.FINE, prove())
    except _Warning as warning:
        return TrialResult(what, Outcome.WARNING, str(warning))
    except (_Refused, SpoolError) as refused:
        return TrialResult(what, Outcome.REFUSED, str(refused))
    except OSError as error:
        if is_full(error):
            raise  # (this tells nothing about the file system)
        return TrialResult(what, Outcome.REFUSED, _reason(error))


def _reason(error: OSError) -> str:
    what_to_do = {
        errno.EPERM: "let this user do so, or choose another file system",
        errno.EXDEV: "unmount the file system there, so that the directory is on the disk of the space",
    }.get(error.errno or 0) or advice(error, otherwise="choose another file system")
    return f"{error.strerror or error}: {what_to_do}"


def _settings(disk: Disk) -> SpaceConfig:
    """Return the settings of the space. If the directory has no readable settings, return the settings of a new
    space."""
    try:
        return parse(read_start(disk, layout.SETTINGS, MAX_SETTINGS_BYTES).decode("utf-8", "replace"), layout.SETTINGS)
    except (OSError, SpoolError):
        return SpaceConfig()  # the opening of the space reports wrong settings


def _kind(disk: Disk) -> str:
    config = _settings(disk)
    disk.use_sync_method(config.sync_method)
    check_kind(disk, config.network_file_system)
    kind = disk.file_system().kind
    mode = disk.durability.description
    if disk.durability.is_assumed:
        raise _Warning(f"{kind}; {mode}, as space.toml says, although this file system is not known to order renames")
    if kind in ("fuse", "overlay") or kind.startswith("unknown"):
        raise _Warning(f"{kind}; {mode}; whether a flush reaches the disk depends on the file system below: find out")
    if kind in ("tmpfs", "ramfs"):
        raise _Warning(f"{kind} is memory: no message on it survives a power cut or a restart of the machine")
    return f"{kind}; {mode}"


def _space(disk: Disk) -> str:
    """Prove that the settings of the space are right; if the space does not exist, name the command that creates it."""
    if disk.exists(layout.SETTINGS):
        parse(read_start(disk, layout.SETTINGS, MAX_SETTINGS_BYTES).decode("utf-8", "replace"), layout.SETTINGS)
        return "a queue space is here"
    if layout.in_use(disk.names("")):
        below = quote(f"{disk.root}/NAME")
        return f"none here, and the directory is not empty: spool-admin init {below} makes one below it"
    return f"none here; spool-admin init {quote(disk.root)} makes one"


def _room(disk: Disk) -> str:
    system = disk.file_system()
    if system.read_only:
        raise _Refused("the file system is mounted read-only: mount it writable")
    inodes = "" if system.free_inodes is None else f", {system.free_inodes:,} inodes free"
    text = f"{system.free_bytes >> 20:,} MiB{inodes}"
    if not system.free_bytes or system.free_inodes == 0:
        raise _Refused(f"{text}: free some")
    if system.free_bytes < _LITTLE_ROOM_BYTES or (system.free_inodes or _FEW_INODES) < _FEW_INODES:
        raise _Warning(f"{text}: that is little; free some")
    return text


def _owner(disk: Disk) -> str:
    """Prove that the directory belongs to this user, and that no other user may read a space's own files.

    Dropped files are not tested: they may belong to other users.
    """
    directory = disk.identity("")
    if directory is None or not directory.is_directory:
        raise _Refused("it is no directory: choose another path")
    if directory.owner != _maker(disk):
        raise _Warning(of_another_user("it", disk.root, directory.owner))
    if disk.exists(layout.SETTINGS) and directory.permissions & ~PASSAGE_MODE:
        raise _Warning(f"other users may open it (mode {directory.permissions:04o}): chmod 700 {quote(disk.root)}")
    foreign = [
        (path, file.owner)
        for path, file in (*_own_files(disk), *_closed_folders(disk))
        if file.owner != directory.owner and not file.is_symlink
    ]
    if foreign:
        path, owner = foreign[0]
        name = f"{path}, one of {len(foreign)} files," if len(foreign) > 1 else path
        raise _Refused(f"{name} {not_of_the_owner(disk.root, owner, directory.owner)}")
    if closed := [path for path, file in _own_files(disk) if not _is_usable(file)]:
        more = f", and {len(closed) - 1} more files" if len(closed) > 1 else ""
        raise _Refused(f"its owner may not read and write {closed[0]}{more}: chmod -R u+rwX {quote(disk.root)}")
    exposed = [path for path, file in _own_files(disk) if file.permissions & 0o077 and not file.is_symlink]
    if exposed:
        more = f", and {len(exposed) - 1} more" if len(exposed) > 1 else ""
        raise _Warning(f"{exposed[0]} may be read or written by other users{more}: chmod -R go= {quote(disk.root)}")
    of_others = "" if directory.owner == os.geteuid() else ", in whose name root makes files"
    return f"user {user_name(directory.owner)}{of_others}, mode {directory.permissions:04o}"


def _maker(disk: Disk) -> int:
    """Return the owner of the files that this process creates. A process of root gives its files to the directory's
    owner."""
    directory, user = disk.identity(""), os.geteuid()
    return user if user or directory is None else directory.owner


def _own_files(disk: Disk) -> Iterator[tuple[str, FileIdentity]]:
    """Yield the directories and files of the space, without dropped files and files in quarantine."""
    roots = disk.names("")
    foreign = layout.foreign(roots)
    for name in roots:
        file = disk.identity(name)
        if file is not None and not file.is_directory and name not in foreign:
            yield name, file
    for directory in layout.DIRECTORIES:
        if directory != layout.DROP:  # (a dropped file keeps its owner and mode in quarantine, too)
            yield from islice(_with_files(disk, directory), 1 if directory == layout.QUARANTINE else None)


def _with_files(disk: Disk, directory: str) -> Iterator[tuple[str, FileIdentity]]:
    """Yield the directory, and the files in it."""
    names: Sequence[str] = ()
    with suppress(OSError):  # (the permissions of the directory show the reason)
        names = disk.names(directory)
    for path in (directory, *(f"{directory}/{name}" for name in names)):
        with suppress(OSError):
            if (file := disk.identity(path)) is not None:
                yield path, file


def _closed_folders(disk: Disk) -> Iterator[tuple[str, FileIdentity]]:
    """Yield the folders for dropped files, if only the owner may use the folder."""
    return ((path, file) for path, file in _with_files(disk, layout.DROP) if file.is_directory and not _is_open(file))


def _is_open(folder: FileIdentity) -> bool:
    """Return whether users other than the owner may list the folder and remove files."""
    return any(folder.permissions & rights == rights for rights in (0o070, 0o007))


def _is_usable(file: FileIdentity) -> bool:
    """Return whether the owner may read and write the file. The owner of a directory must also be able to search it."""
    needed = 0o700 if file.is_directory else 0o600
    return file.is_symlink or file.permissions & needed == needed


@contextmanager
def _trial_directory(disk: Disk) -> Iterator[str]:
    trial = f".spool-doctor.{os.urandom(8).hex()}"
    disk.make_directory(trial)
    try:
        for stage in ("one", "two"):
            disk.make_directory(f"{trial}/{stage}")
        yield trial
    finally:
        for stage in ("one", "two"):
            with suppress(OSError):
                for name in disk.names(f"{trial}/{stage}"):
                    disk.unlink(f"{trial}/{stage}/{name}")
                disk.remove_directory(f"{trial}/{stage}")
        disk.remove_directory(trial)


def _file(disk: Disk, name: str, data: bytes = b"") -> str:
    write_new(disk, name, data, durable=False)
    return name


def _names(disk: Disk, trial: str) -> str:
    long = "n" * 200
    _file(disk, f"{trial}/one/{long}")
    _file(disk, f"{trial}/one/Case")
    _refuse_if(disk.exists(f"{trial}/one/cASE"), "names that differ in case are the same file here")
    _refuse_if(long not in disk.names(f"{trial}/one"), "a file that was made is not listed")
    return "names of 200 bytes are kept, and upper and lower case are different names"


def _modes(disk: Disk, trial: str) -> str:
    file, directory = disk.identity(_file(disk, f"{trial}/one/mode")), disk.identity(f"{trial}/one")
    if file is None or directory is None:
        raise _Refused("a file that was made does not exist: choose another file system")
    if (file.permissions, directory.permissions) != (FILE_MODE, DIRECTORY_MODE):
        modes = f"a file got mode {file.permissions:04o}, a directory {directory.permissions:04o}"
        raise _Warning(f"{modes}, not {FILE_MODE:04o} and {DIRECTORY_MODE:04o}: other users may read messages")
    if file.owner != _maker(disk):
        owners = f"{user_name(file.owner)}, not {user_name(_maker(disk))}"
        raise _Warning(f"new files belong to user {owners}: other users may read messages")
    return "modes 0600 and 0700 are kept"


def _renames(disk: Disk, trial: str) -> str:
    old, new = _file(disk, f"{trial}/one/rename", b"new"), _file(disk, f"{trial}/two/rename", b"old")
    _prove_rename(disk, disk.rename, old, new)
    return "a file can be renamed to another directory, and replaces one of that name"


def _renames_new(disk: Disk, trial: str) -> str:
    old, new = _file(disk, f"{trial}/one/new", b"new"), _file(disk, f"{trial}/two/new", b"old")
    with suppress(FileExistsError):
        disk.rename_new(old, new)
    is_kept = disk.exists(old) and read_start(disk, new, 100) == b"old"
    _refuse_if(not is_kept, "a rename replaced a file that it should not")
    disk.unlink(new)
    _prove_rename(disk, disk.rename_new, old, new)
    return "a rename to a name that is taken is refused where that is asked for"


def _prove_rename(disk: Disk, rename: Callable[[str, str], None], old: str, new: str) -> None:
    before = disk.identity(old)
    rename(old, new)
    is_same = before is not None and before.same_file(disk.identity(new)) and read_start(disk, new, 100) == b"new"
    _refuse_if(disk.exists(old) or not is_same, "a file that was renamed is not the one that is found")


def _links(disk: Disk, trial: str) -> str:
    first, second = _file(disk, f"{trial}/one/link"), f"{trial}/two/link"
    try:
        disk.link(first, second)
    except OSError as error:
        if not disk.durability.needs_links:
            raise _Warning(f"there are none ({error.strerror}), and they are not needed here") from None
        raise
    linked = disk.identity(second)
    _refuse_if(linked is None or linked.links != 2, "two names of one file look like two files")
    return "a file can have two names"


def _flushes(disk: Disk, trial: str) -> str:
    with new_file(disk, f"{trial}/one/flush") as handle:
        disk.write_at(handle, 0, b"flush")
        disk.rename(f"{trial}/one/flush", f"{trial}/two/flush")
        disk.make_durable(handle, f"{trial}/two")
        disk.flush_directory(f"{trial}/one")
    return "files and directories can be flushed"


def _byte_locks(disk: Disk, trial: str) -> str:
    open_ = partial(disk.open, _file(disk, f"{trial}/one/bytes"), write=True)
    _prove_exclusion(disk, open_, disk.lock, "a locked byte was locked again")
    with closed_at_end(disk, open_()) as first, closed_at_end(disk, open_()) as second:
        _refuse_if(not all(disk.lock(handle, 1, shared=True) for handle in (first, second)), "a lock cannot be shared")
        _refuse_if(not disk.lock(second, 2**62), "a byte far after the end cannot be locked")
        _refuse_if(disk.some_lock(first, 2**62, 1) != (2**62, 1), "a byte that is locked looks free")
    return _ONE_HOLDER


def _directory_locks(disk: Disk, trial: str) -> str:
    open_ = partial(disk.open_directory, f"{trial}/one")
    _prove_exclusion(disk, open_, lambda handle, byte: disk.flock(handle), "a directory that was held was held again")
    with closed_at_end(disk, open_()) as first, closed_at_end(disk, open_()) as second:
        shared = all(disk.lock(handle, 0, shared=True) for handle in (first, second))
        _refuse_if(not shared, "a directory's byte cannot be locked by two")
        _refuse_if(disk.some_lock(first, 0, 1) is None, "a directory's byte that is locked looks free")
    return _ONE_HOLDER


def _prove_exclusion(disk: Disk, open_: Callable[[], int], take: Callable[[int, int], bool], wrong: str) -> None:
    """Prove that a lock excludes a second descriptor and a second process, and that a killed process holds no lock.

    ``take`` attempts to lock a byte of a handle. ``wrong``: the error text if a second holder gets the lock.
    """
    with closed_at_end(disk, open_()) as first, closed_at_end(disk, open_()) as second:
        _refuse_if(not take(first, 0), "a lock that was free was not granted")
        _refuse_if(take(second, 0), f"{wrong} by another descriptor")
        _refuse_if(_in_another_process(lambda: take(open_(), 0)), f"{wrong} by another process")
    _refuse_if(not _in_another_process(lambda: take(open_(), 0)), "a released lock is still held")
    with closed_at_end(disk, open_()) as first:
        _refuse_if(not take(first, 0), "a lock is still held although its process was killed")


def _in_another_process(attempt: Callable[[], bool]) -> bool:
    """Return the result of an attempt in a child process. The child is killed while it holds the lock."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        result = b"?"
        try:
            result = b"+" if attempt() else b"-"
        finally:
            os.write(writer, result)
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = pipe.read(1)
    os.waitpid(child, 0)
    if result == b"?":
        raise OSError(errno.ENOLCK, "another process could not ask for a lock")
    return result == b"+"


def _clocks(disk: Disk, trial: str) -> str:
    now = disk.clock.now()
    file = disk.identity(_file(disk, f"{trial}/one/clock", b"now"))
    newest = 0.0
    with suppress(OSError):
        commits = [disk.identity(f"{layout.COMMITTED}/{name}") for name in disk.names(layout.COMMITTED)]
        newest = max((commit.modified_ns for commit in commits if commit is not None), default=0) / 1e9
    if now < _EARLIEST_TIME:
        raise _Warning("the machine's clock is years behind: set it, or delayed messages come late")
    if newest > now + _CLOCK_TOLERANCE_SECONDS:
        ahead = f"the newest commit is {newest - now:,.0f} s ahead of the clock"
        raise _Warning(f"{ahead}: set it, or delayed messages come late")
    if file is not None and abs(file.modified_ns / 1e9 - now) > _CLOCK_TOLERANCE_SECONDS:
        raise _Warning("the file system's clock is not the machine's: dropped files may be taken too early")
    return "the clocks of the machine and of the file system agree"


def _space_directory(disk: Disk, trial: str, name: str) -> str:
    if defect := misplacement(disk, name):
        raise _Refused(defect)
    if name == layout.RUN:
        return "is a directory"
    probe = f".spool-doctor.{os.urandom(8).hex()}"
    _file(disk, f"{trial}/one/{probe}")
    try:
        disk.rename(f"{trial}/one/{probe}", f"{name}/{probe}")
    except Unsupported as error:
        if name in APART:
            raise _Warning(f"lies elsewhere ({error.strerror}): files that are dropped there are not taken") from None
        raise
    disk.rename(f"{name}/{probe}", f"{trial}/one/{probe}")
    return "files can be renamed there and back"


_TRIALS: tuple[tuple[str, Callable[[Disk, str], str]], ...] = (
    ("names", _names),
    ("modes", _modes),
    ("renames", _renames),
    ("new names", _renames_new),
    ("hard links", _links),
    ("flushes", _flushes),
    ("byte locks", _byte_locks),
    ("directory locks", _directory_locks),
    ("clocks", _clocks),
)
