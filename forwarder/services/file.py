"""A directory as a service. Each message becomes a file, which is whole and flushed before the message is done.

The service writes a file under a temporary name, flushes and renames the file, and flushes the directory. The file's
name contains the message's id. If a killed forwarder writes a message again, the second file replaces the first.

The directory belongs to the user. The service refuses a directory that is a mirror of a space. The service also refuses
a directory in a space, because only ``spool.disk`` may change its files. Each directory is checked at the start and
before each file. For a drop folder, use the service ``queue:NAME@SPACE`` instead.

The service opens the directory and asks the kernel for the path of the descriptor. So a symbolic link that changes
after the opening has no effect. The service cannot recognize a bind mount of a space's directory, because the path of
the mount is outside the space.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from forwarder.services.service import FIELD_NAMES, Caller, Request, Service, ServiceError, field_of, is_field
from spool.engine.remote import space_of
from spool.model import layout
from spool.model.message import Message
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, describe

THREADS = 8
"""The number of files that one task writes at a time. Concurrent flushes share the file system's journal."""

_FIELD = re.compile(r"{([^{}]*)}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{8}\.tmp")
_ABANDONED_SECONDS = 86400.0  # every file is written in a shorter time

_IN_NAMES = "-_.,=@+ "  # allowed in names, besides letters and digits


@dataclass(frozen=True)
class FileService(Caller, Service):
    """`file:directory` or `file:directory?name={correlation_id}-{id}.json`, service and caller in one.

    target: the URL without the scheme. threads: the number of files that one task writes at a time.
    """

    target: str
    threads: int = THREADS

    @property
    def shown_name(self) -> str:
        return f"file:{self.directory}"

    @property
    def directory(self) -> str:
        path = self.target.partition("?name=")[0]
        return path[2:] if path.startswith("///") else path

    @property
    def name(self) -> str:
        """The pattern of file names. In the pattern, names of message fields are in braces."""
        return self.target.partition("?name=")[2] or "{id}"

    def open(self) -> "FileService":
        self.check()
        with suppress(OSError):
            _remove_abandoned(self.directory)
        return self

    def check(self) -> None:
        directory, name = self.directory, self.name
        if not directory:
            raise ServiceError("'file:' names no directory: write file:directory")
        if not os.path.isdir(directory):
            raise ServiceError(f"there is no directory {directory!r}: make it, or correct the service")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ServiceError(f"no file can be made in {directory!r}: allow this user to write there")
        for field in _FIELD.findall(name):
            if not is_field(field):
                raise ServiceError(f"{name!r}: a message has no field {field!r} for a name; there are {FIELD_NAMES}")
        if "{id}" not in name:
            raise ServiceError(f"{name!r} lacks {{id}}: two messages could have one name, and one file be lost")
        if "/" in name or "\0" in name or name.startswith("."):
            raise ServiceError(f"{name!r} is no plain name of a file: it begins with no dot, and has no /")
        try:
            with _opened(directory):
                pass
        except OSError as error:
            raise ServiceError(f"{directory!r} cannot be used: {describe(error)}") from None

    def __call__(self, request: Request) -> Outcome:
        name = file_name(self.name, request.message)
        try:
            _write(self.directory, name, request.raw, f".{request.message.id}.{secrets.token_hex(4)}.tmp")
        except ServiceError as error:  # the directory has become a space after the start
            return Retried(str(error), counted=False)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return Rejected(f"the name of its file is too long: {name}"[:200])
            return Retried(describe(error), counted=False)  # the directory is wrong, and not the message
        return Replied(name.encode(), "text/plain; charset=utf-8", "text")


def file_name(pattern: str, message: Message) -> str:
    """Return the name of a message's file. Special characters in the values of fields are percent-encoded."""

    def value(field: re.Match[str]) -> str:
        return quote(field_of(message, field[1]) or "", safe=_IN_NAMES, errors="replace")

    name = _FIELD.sub(value, pattern)
    return f"%2E{name[1:]}" if name.startswith(".") else name  # only unfinished files have hidden names


def _write(directory: str, name: str, body: bytes, temporary: str) -> None:
    """Write a whole file durably, or no file."""
    with _opened(directory) as place:
        file = open(temporary, "xb", opener=partial(os.open, mode=0o666, dir_fd=place))  # noqa: SIM115 (closed below)
        try:
            with file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=place)
            raise
        os.fsync(place)


def _remove_abandoned(directory: str) -> None:
    """Remove unfinished files of killed processes."""
    with _opened(directory) as place, os.scandir(place) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with suppress(OSError):  # another task may remove the same file
                    if entry.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                        os.unlink(entry.name, dir_fd=place)


@contextmanager
def _opened(directory: str) -> Iterator[int]:
    """Open a directory in order to create or remove files.

    Raises:
        ServiceError: the resolved path is in a space, or the directory is a mirror. Files in a mirror would be lost,
            because mirroring removes every file that the space does not have.
    """
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if (space := space_of(os.readlink(f"/proc/self/fd/{place}"))) is not None:
            raise ServiceError(
                f"{directory!r} is inside the queue space {space}: name another directory, or queue:NAME@{space}"
            )
        with suppress(FileNotFoundError):
            os.stat(layout.MIRROR_ID, dir_fd=place, follow_symlinks=False)
            raise ServiceError(f"{directory!r} is the mirror of a queue space: name another directory")
        yield place
    finally:
        os.close(place)
