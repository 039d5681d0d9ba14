"""Create and open queue spaces."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, Unpack

from spool.admin.findings import Finding, Kind, RecoveryReport
from spool.coordination.locks import OpenLock
from spool.disk.advice import is_directory, translated, user_name
from spool.disk.content import ensure_directory, unlink_if_there, write_new
from spool.disk.disk import DIRECTORY_MODE, Disk
from spool.disk.kernel import Unsupported
from spool.disk.requirements import check_kind, check_stages, unsafe
from spool.errors import Argument, DiskFailure, NotASpace, SpaceExists, SpoolError
from spool.model import layout
from spool.model.options import SpaceOptions
from spool.model.paths import local_path
from spool.model.settings import SpaceConfig, differences, space_config
from spool.model.settings_file import render_new
from spool.runtime import call_guard
from spool.runtime.clock import Deadline
from spool.runtime.greenlets import check_threads
from spool.space import Space
from spool.store.identity import ensure_id, find_id, write_id
from spool.store.identity import new_id as random_id
from spool.store.mirror import begin_mirror, check_elsewhere
from spool.store.settings_reader import read_settings, write_settings
from spool.store.store import WAIT_SECONDS, Store, inspect_store, log, open_store
from spool.tracing import instrument
from spool.transactions.core import Core

if TYPE_CHECKING:
    from spool.admin.manifest import Progress


def create(path: str | os.PathLike[str], *, exist_ok: bool = False, **options: Unpack[SpaceOptions]) -> Space:
    """Create a new, empty queue space in a directory; returns the open space. A missing directory is created.

    Several processes may call this for one directory at the same time: one of them creates the space.

    Args:
        path: the directory.
        exist_ok: whether to open the space that the directory holds already, if any. The options of this call must then
            equal the options of the space. Options that the call leaves out are not compared.
        options: see ``spool.SpaceOptions``.

    Raises:
        SpaceExists: the directory holds a queue space; with ``exist_ok``: a queue space with other options.
        UnsafeFileSystem: the file system of the directory lacks a feature that a space needs.
        ProtocolError: gevent or eventlet has replaced the threads of this process.
        InvalidArgument: an option has a value that is not allowed.
    """
    config = space_config(options, {})
    with space_directory(path) as disk, call_guard.deferred(disk.close_all), translated("making the queue space"):
        _check_no_import(disk)
        with _one_process(disk) as alone:
            if not disk.exists(layout.SETTINGS):
                _make(disk, config)
            elif alone and find_id(disk) is None:
                log.warning("%s had lost its %s, and has a new id now", disk.root, layout.SPACE_ID)
                ensure_id(disk)
            elif not exist_ok:
                raise _exists(disk, ", pass ", Argument("exist_ok=True"))
            else:
                check_same(disk.root, read_settings(disk), options)
        return open_space(disk)


def check_same(root: str, present: SpaceConfig, options: SpaceOptions) -> None:
    """Raise SpaceExists if an option differs from the option of the present space."""
    if different := differences(present, space_config(options, {}), options):
        raise SpaceExists(
            f"{root} holds a queue space with other options (",
            *different,
            f"): give the same options, leave them out, or change the space's in {layout.SETTINGS}",
        )


def _check_no_import(disk: Disk) -> None:
    if disk.exists(layout.IMPORTING) and not disk.exists(layout.SETTINGS):
        raise SpaceExists(f"an import into {disk.root} is not complete: import again, or choose another directory")


def _exists(disk: Disk, *otherwise: str) -> SpaceExists:
    return SpaceExists(f"{disk.root} holds a queue space already: open it", *otherwise, ", or choose another directory")


@contextmanager
def _one_process(disk: Disk) -> Iterator[bool]:
    """Lock the space's directory, as an opener of a space does, so that only one process creates the space.

    Yields whether no process has the space open.
    """
    lock = OpenLock(disk)
    try:
        yield lock.enter(Deadline(disk.clock, WAIT_SECONDS, disk.clock.monotonic() + WAIT_SECONDS))
        disk.funlock(lock.handle)
    except Unsupported as error:
        raise unsafe(disk, "making the queue space", error) from error
    finally:
        lock.close()


def _make(disk: Disk, config: SpaceConfig) -> None:
    """Create the files of a new space. ``space.toml`` is the last file, because it makes the directory a space.

    A directory that has lost its ``space.toml`` keeps its ``space.id``.
    """
    if disk.exists(layout.RESTORING):
        text = f"a restore of {disk.root} from a mirror was interrupted: run it again, or choose another directory"
        raise SpaceExists(text)
    _check_no_import(disk)
    if config.mirror is not None:
        check_elsewhere(config.mirror, disk.root)
    check_kind(disk, config.network_file_system)
    check_stages(disk)
    _tell_what_is_there(disk)
    for name in layout.DIRECTORIES:
        ensure_directory(disk, name)
    had_id = disk.exists(layout.SPACE_ID)
    ensure_id(disk)
    try:
        text = render_new(config)
        if config.mirror is not None:
            begin_mirror(disk, disk.sibling(config.mirror), text)
        write_settings(disk, text)
    except (OSError, SpoolError):
        if not had_id and not disk.exists(layout.SETTINGS):  # (the caller removes the directories that it has created)
            with suppress(OSError):
                disk.unlink(layout.SPACE_ID)
        raise


def import_space(
    path: str | os.PathLike[str],
    file: BinaryIO,
    *,
    progress: "Callable[[Progress], None] | None" = None,
    new_id: bool = False,
) -> Space:
    """Create a new space from an export (``Space.export``); returns the open space.

    A missing directory is created; an existing directory must be empty. The directory becomes a space once the whole
    export is checked and all files are durable. An import that fails leaves no file. The next import removes the files
    of an import that was killed.

    Args:
        path: the directory.
        file: the export, as a binary file that is open for reading. The import recognises the compression of the file.
        progress: called with the number of files that were created so far.
        new_id: whether the space gets a new id, because the exported space remains in use. By default the space keeps
            the id of the exported space.

    Raises:
        SpaceExists: the directory is not empty.
        CorruptedFile: the file is damaged, or is not an export.
        NewerFormat: a later version of the library wrote the export.
    """
    from spool.admin import export, unpack  # (imported here: few programs need these modules)

    export.check_stream(file, "read")
    with space_directory(path) as disk, call_guard.deferred(disk.close_all), translated("importing the queue space"):
        with _importing(disk):
            check_stages(disk)
            for name in layout.DIRECTORIES:
                ensure_directory(disk, name)
            found = unpack.unpack(disk, file, progress)
            check_kind(disk, found.config.network_file_system)
            write_id(disk, random_id() if new_id else found.id)
            write_settings(disk, found.settings)
        return open_space(disk, partial(unpack.differences, report=found.report))


@contextmanager
def _importing(disk: Disk) -> Iterator[None]:
    """Reserve an empty directory for an import; empty the directory after a failure.

    The settings are the last file of an import. ``IMPORTING`` is created before any other file, so the next import
    recognises the files of a killed import.
    """
    directory = disk.open_directory("")
    try:
        if disk.exists(layout.SETTINGS):
            raise _exists(disk)
        if not disk.flock(directory):
            raise SpaceExists(f"another process makes or imports a space in {disk.root}: choose another directory")
        names = layout.in_use(disk.names(""))
        if layout.IMPORTING in names and layout.SETTINGS not in names:
            _clear(disk)  # an import was killed
        elif names:
            raise SpaceExists(f"{disk.root} is not empty: choose another directory")
        try:
            write_new(disk, layout.IMPORTING, b"", durable=True)
            yield
        except BaseException:
            with suppress(OSError):  # the first error says more
                _clear(disk)
            raise
        disk.unlink(layout.IMPORTING)
    except Unsupported as error:
        raise unsafe(disk, "importing the queue space", error) from error
    finally:
        disk.close(directory)


def _clear(disk: Disk) -> None:
    """Remove all files of an import. ``IMPORTING`` is removed last, because it allows the next import to begin here."""
    for name in (layout.SETTINGS, layout.SETTINGS_TEMPORARY, layout.SPACE_ID, layout.SPACE_ID_TEMPORARY):
        unlink_if_there(disk, name)
    for directory in layout.DIRECTORIES:
        if disk.exists(directory):
            _remove_tree(disk, directory)
    disk.unlink(layout.IMPORTING)


def _remove_tree(disk: Disk, directory: str) -> None:
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        identity = disk.identity(path)
        if identity is not None and identity.is_directory:
            _remove_tree(disk, path)
        else:
            disk.unlink(path)
    disk.remove_directory(directory)


def _record(store: Store, report: RecoveryReport) -> None:
    """Record the findings, so that people can read them later. A failure does not prevent the opening."""
    if report.findings or store.files.disk.exists(layout.RECOVERY):
        from spool.watch.last_recovery import record_recovery  # (imported here: most openings find nothing)

        try:
            record_recovery(store.files.disk, report, store.clock.now())
        except Exception as error:
            log.warning("the findings of the recovery could not be kept for spool-admin top: %s", error)


@contextmanager
def space_directory(path: str | os.PathLike[str]) -> Iterator[Disk]:
    """Create the directory of a new space if it is missing.

    If the directory does not become a space, the directories that this call created are removed again.
    """
    check_threads()
    if isinstance(path, Disk):
        yield path
        return
    root = local_path(path)
    missing = [root]
    with translated("making the queue space"):
        while not os.path.lexists(missing[-1]):
            missing.append(os.path.dirname(missing[-1].rstrip(os.sep)) or os.curdir)
        try:
            os.makedirs(root, mode=DIRECTORY_MODE, exist_ok=True)
            if len(missing) > 1 or not os.listdir(root):  # (otherwise the directory also has another use)
                with suppress(PermissionError):
                    os.chmod(root, DIRECTORY_MODE)  # (even if the umask is narrower)
        except FileExistsError:
            raise NotASpace(f"{root} is a file: a queue space is a directory, choose another path") from None
        except PermissionError as error:
            raise _no_directory(root, os.path.abspath(missing[-1]), error) from error
        disk = Disk(root)
        new = [disk.path(name) for name in layout.DIRECTORIES if not disk.exists(name)]
    try:
        yield disk
    except BaseException:
        if not disk.exists(layout.SETTINGS):
            for directory in new + missing[:-1]:  # the innermost first
                with suppress(OSError):  # the directory is not empty, or was not created
                    os.rmdir(directory)
        raise


def _no_directory(root: str, above: str, error: PermissionError) -> OSError:
    """Return the error for a directory that this user may not create, because ``above`` belongs to another user.

    ``above`` may be a system directory, so the text does not advise a change of its owner.
    """
    owner, user = os.stat(above).st_uid, os.geteuid()
    if owner == user:
        return error
    name = user_name(user)
    return DiskFailure(
        error.errno or 0,
        f"user {name} may not make {root}, because {above} belongs to user {user_name(owner)}: choose another path, or "
        f"make the directory for this user, sudo install -d -m 700 -o {name} {quote(os.path.abspath(root))}",
    )


def _tell_what_is_there(disk: Disk) -> None:
    """Warn of files in a directory that becomes a space: kept messages of an earlier space, and other files."""
    commits = disk.names(layout.COMMITTED) if disk.exists(layout.COMMITTED) else ()
    if any(map(layout.parse_committed, commits)):
        log.warning(
            "%s has the messages of an earlier space, which had lost its space.toml: they are kept, and can be taken "
            "once their queues are created again", disk.root,
        )  # fmt: skip
    if layout.foreign(disk.names("")):
        log.warning("%s is not empty: the space's files lie beside other files", disk.root)


def open(path: str | os.PathLike[str]) -> Space:
    """Open an existing queue space; the first opener recovers it after a crash.

    Ctrl-C waits until the space is open, and then closes it; a second Ctrl-C does not wait.

    Args:
        path: the directory. The URL ``file:///p`` means ``/p``.

    Raises:
        InvalidArgument: the path is another URL.
        NotASpace: the directory holds no queue space.
        NewerFormat: a later version of the library wrote the space.
        UnsafeFileSystem: the file system of the space lacks a feature that a space needs.
        ProtocolError: gevent or eventlet has replaced the threads of this process.
    """
    with translated("opening the queue space"):
        disk = path if isinstance(path, Disk) else Disk(_existing(path))
    with call_guard.deferred(disk.close_all), translated("opening the queue space"):
        return open_space(disk)


def plan_recovery(path: str | os.PathLike[str]) -> RecoveryReport:
    """Return the report that ``open`` would give now, with the damaged files in ``quarantine/``.

    Nothing is changed, and other processes may have the space open.

    Args:
        path: the directory.

    Raises:
        NotASpace, NewerFormat, UnsafeFileSystem: see ``open``.
        DiskFailure: a file cannot be read.
    """
    from spool.admin.quarantined import findings
    from spool.recovery import scan

    with inspected(path) as (store, alone):
        begun = store.clock.monotonic()
        report = scan.plan(store, alone=alone)
        report.seconds = store.clock.monotonic() - begun
        if alone and not store.shared.open_lock.is_alone():
            report.alone = False  # a process has opened the space meanwhile, and has carried out the plan
        report.findings += [finding for finding in findings(store.files.disk) if finding.kind is Kind.DAMAGED]
        report.others = [] if report.alone else store.shared.open_lock.others()
        return report


@contextmanager
def inspected(path: str | os.PathLike[str]) -> Iterator[tuple[Store, bool]]:
    """Open a space only to inspect it, with a disk that refuses every change.

    Yields the store, and whether no process has the space open.
    """
    from spool.disk.read_only import ReadOnlyDisk

    disk = ReadOnlyDisk(_existing(path))
    try:
        with translated("inspecting the queue space"):
            yield inspect_store(disk)
    finally:
        disk.close_all()


def _existing(path: str | os.PathLike[str]) -> str:
    root = local_path(path)
    if not is_directory(root):
        raise NotASpace(f"{root} is not a directory: make a queue space there with: spool-admin init {quote(root)}")
    return root


def open_space(disk: Disk, look: Callable[[Store], list[Finding]] | None = None) -> Space:
    """Open a space: the first opener recovers it. If this fails, the caller closes the disk.

    ``look``: a function that returns further findings for the report; only the first opener calls ``look``.
    """
    from spool.recovery import scan  # (that package imports this one)

    check_threads()
    store, alone = open_store(disk)
    try:
        core = Core.of(store)
        try:
            report = scan.scan(store, alone=alone)
            if alone:
                for mark in (layout.IMPORTING, layout.RESTORING):  # left by a process that died after its last flush
                    unlink_if_there(disk, mark)
                try:
                    store.files.recycler.stock()
                except OSError as error:
                    log.warning("no room for the files that a full disk will need: %s", error)
                if look is not None:
                    report.findings += look(store)
                _record(store, report)
            store.shared.open_lock.finish_opening()
        except OSError as error:
            store.fail("opening the space", error)
        instrument()
        return Space(core, report, scan.check, scan.repair)
    except BaseException:
        store.guard.end()  # this also closes the mirror
        raise
