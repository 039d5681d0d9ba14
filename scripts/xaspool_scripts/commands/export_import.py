"""``spool-admin export`` and ``import``: write a space into one file, verify the file, and read it back."""

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from xaspool_scripts.terminal.exit_codes import DAMAGE_LEFT, FAILED, WRONG_USAGE
from xaspool_scripts.terminal.output import flush_directory, write_bytes
from xaspool_scripts.terminal.program import Failure, SpaceCommand, new_space_path, note, opened
from xaspool_scripts.terminal.shared_options import fail, progress
from xaspool_scripts.terminal.wording import plural, printable

if TYPE_CHECKING:
    from spool import ExportReport

_STANDARD = "-"
_SUFFIXES = {
    ".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.bz2": "bz2", ".tbz2": "bz2", ".tar.xz": "xz", ".txz": "xz",
}  # fmt: skip
_MOST_NAMED = 20


@click.command("export", cls=SpaceCommand)
@click.argument("file", type=click.Path())
@click.option("--replace", is_flag=True, help="FILE may exist: it is replaced when the new export is complete.")
@click.option("--verify", is_flag=True, help="FILE is read back from the disk and proven before it gets its name.")
def export(file: str, replace: bool, verify: bool) -> None:
    """Write the state of the whole space at one moment into FILE, a tar; - is standard output.

    Everything is kept except claims: a message that a program holds is ready in the copy. Dropped files that wait in
    drop/ are kept as well. An incomplete dropped file is left out, and the command names it. Programs may use the space
    meanwhile.

    The suffix of FILE chooses the compression: .tar, .tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz or .txz. With --verify,
    the exit code is 4 if the written bytes cannot be read back; FILE is not created then.

    \b
    Examples:
      spool-admin export --verify --replace /backup/shop.tar.gz
      spool-admin export - | ssh elsewhere spool-admin import - -s /var/spool/shop
    """
    from spool.engine.remote import space_of

    if file == _STANDARD:
        for option, is_given in (("replace", replace), ("verify", verify)):
            if is_given:
                raise click.UsageError(f"--{option} is for a FILE, not for standard output")
        with opened() as space, _bar("exporting") as set_progress:
            report = space.export(cast(BinaryIO, SimpleNamespace(write=write_bytes)), progress=set_progress)
    else:
        compress = _compression(file)
        if (inside := space_of(os.path.realpath(file))) is not None:
            raise Failure(f"{printable(file)} is inside the queue space {inside}: name a file elsewhere", WRONG_USAGE)
        with opened() as space, _NewFile(file, replace=replace) as target:
            with _bar("exporting") as set_progress:
                report = space.export(cast(BinaryIO, target), compress=compress, progress=set_progress)
            target.make_durable()
            if verify:
                _verify_written(file, target)
            target.publish()
    for name, reason in sorted(report.left_out.items())[:_MOST_NAMED]:
        note(f"left out: {printable(name)}: {reason}")
    if len(report.left_out) > _MOST_NAMED:
        note(f"left out: {len(report.left_out) - _MOST_NAMED:,} more, which the manifest in the export names")
    where = "standard output" if file == _STANDARD else printable(file)
    note(f"exported {_contents(report)} to {where}{', and proved it' if verify else ''}")


@click.command("import", cls=SpaceCommand)
@click.argument("file", type=click.Path())
@click.option("--verify", is_flag=True, help="FILE is proven, and nothing is made.")
@click.option("--new-id", is_flag=True, help="The new space gets a new id: the exported space remains in use.")
def import_(file: str, verify: bool, new_id: bool) -> None:
    """Make a new space from FILE, which export wrote; - is standard input. -s names the directory, which must be empty.

    The new space has the id of the exported space, unless you give --new-id.

    The command creates no space from a damaged export, and the exit code is 4. The exit code is also 4 if the space was
    damaged when it was exported. The new space then has every message that was not damaged.

    \b
    Examples:
      spool-admin import /backup/shop.tar.gz -s /var/spool/copy
      spool-admin import --verify /backup/shop.tar.gz
    """
    import spool

    if verify:
        with _read(file) as stream, _bar("verifying") as set_progress:
            report = spool.verify_export(stream, progress=set_progress)
        note(f"{printable(file)} is a whole export of {_contents(report)}")
        return
    path = new_space_path()
    with _read(file) as stream, _bar("importing") as set_progress:
        made = spool.import_space(path, stream, progress=set_progress, new_id=new_id)
    with made as space:
        findings = {str(finding): None for finding in space.recovery.damaged}
        findings.update((str(finding), None) for finding in space.check() if finding.kind == "damaged")
        queues = ", ".join(sorted(space.queues())) or "none"
        note(f"made a queue space in {printable(space.path)}; its queues: {queues}")
    fail([*findings], " (the space was damaged when it was exported; every other message is served)", DAMAGE_LEFT)


def _contents(report: "ExportReport") -> str:
    text = plural(report.files, "file")
    text += f" with {plural(sum(report.messages.values()), 'message')} in {plural(len(report.messages), 'queue')}"
    return text + (f" and {plural(len(report.dropped), 'dropped file')}" if report.dropped else "")


def _compression(file: str) -> str:
    name = os.path.basename(file).lower()
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return _SUFFIXES[suffix]
    raise Failure(f"{printable(file)}: the name of an export ends in one of {', '.join(_SUFFIXES)}", WRONG_USAGE)


class _NewFile:
    """The file of a new export. The file is locked and named FILE.part until it is complete and durable.

    The next export overwrites the FILE.part of a killed export.
    """

    def __init__(self, file: str, *, replace: bool) -> None:
        self._file = file
        self._may_replace = replace
        self._path = os.path.realpath(file)
        self.part = f"{self._path}.part"
        self._check_free()
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            raise self._failure(f"there is no directory {directory}")

    def _check_free(self) -> None:
        if not os.path.lexists(self._path):
            return
        if not self._may_replace:
            raise Failure(f"{printable(self._file)} exists already: choose another name, or replace it with --replace")
        if not stat.S_ISREG(os.lstat(self._path).st_mode):
            raise self._failure("it is no regular file, which --replace could replace")

    def __enter__(self) -> "_NewFile":
        with self._writing():
            handle = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._stream = os.fdopen(handle, "wb")
        if not self._is_ours(handle):
            self._stream.close()
            raise self._failure("another export writes it now")
        self._stream.truncate(0)
        return self

    def _is_ours(self, handle: int) -> bool:
        """Lock FILE.part. Return False if another export has locked FILE.part, or has just renamed it to FILE."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the file system has no locks
        try:
            return os.path.samestat(os.fstat(handle), os.lstat(self.part))
        except FileNotFoundError:
            return False

    def write(self, data: bytes) -> int:
        with self._writing():
            return self._stream.write(data)

    def make_durable(self) -> None:
        with self._writing():
            self._stream.flush()
            os.fsync(self._stream.fileno())
            os.posix_fadvise(self._stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that --verify reads the disk

    def publish(self) -> None:
        """Rename FILE.part to FILE. The new name is durable when this call returns."""
        self._check_free()
        with self._writing():
            os.rename(self.part, self._path)
            flush_directory(os.path.dirname(self._path))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            with suppress(OSError):
                os.unlink(self.part)
        with suppress(OSError):
            self._stream.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(str(error.strerror)) from None

    def _failure(self, reason: str) -> Failure:
        return Failure(f"{printable(self._file)} cannot be written: {reason}")


def _verify_written(file: str, target: _NewFile) -> None:
    import spool

    try:
        with open(target.part, "rb") as stream, _bar("verifying") as set_progress:
            spool.verify_export(stream, progress=set_progress)
    except spool.CorruptedFile as error:
        text = f"{printable(file)} was not made, because its bytes cannot be read back: {error}"
        raise Failure(text, DAMAGE_LEFT) from error


@contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    """Open an export. If the export is damaged, the command fails and names the file."""
    import spool

    try:
        if file == _STANDARD:
            yield sys.stdin.buffer
            return
        with open(file, "rb") as stream:
            yield stream
    except (spool.CorruptedFile, spool.NewerFormat) as error:
        code = DAMAGE_LEFT if isinstance(error, spool.CorruptedFile) else FAILED
        raise Failure(f"{printable(file)}: {error}", code) from error


@contextmanager
def _bar(doing: str) -> Iterator["Callable[[Any], None]"]:
    with progress(doing, 1) as set_progress:
        yield lambda done: set_progress(done.files / max(1, done.of))
