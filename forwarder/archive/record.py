"""The record of an archive: a small file in the directory of the Parquet files. The record is replaced in one step."""

import fcntl
import glob
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from spool.errors import CorruptedFile, InvalidArgument

PART = ".part"
_LONGEST_NAME = 150


@dataclass(frozen=True)
class Record:
    """The messages that an archive has.

    space, queue: the id of the space, and the name of the queue.
    since: the number of the commit that registered the subscription.
    number: the number of the last archived commit.
    files: the temporary and the final name of each file of the last run, relative to the directory.
    """

    space: str
    queue: str
    since: int
    number: int
    files: tuple[tuple[str, str], ...] = ()


class RecordFile:
    """The record of one archive in its directory. Readers of Parquet pass over names that begin with a dot or ``_``.

    name: the name of the archive, as a part of file names.
    prefix: the beginning of the names of the archive's temporary files.
    """

    def __init__(self, directory: str, subscription: str) -> None:
        self._directory = directory
        self.name = quote(subscription, safe="")[:_LONGEST_NAME]
        self.prefix = f".{self.name}."
        self._path = os.path.join(directory, f"_{self.name}.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory if it is missing, and keep other runs of this archive away."""
        os.makedirs(self._directory, exist_ok=True)
        handle = os.open(os.path.join(self._directory, f"{self.prefix}lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                where = f"to {self._directory} now: wait for its end"
                raise InvalidArgument(f"another run writes this archive {where}") from None
            yield
        finally:
            os.close(handle)

    def read(self) -> Record | None:
        """Return the record; None before the first run. CorruptedFile if the file is damaged."""
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            files = tuple((str(temporary), str(final)) for temporary, final in found.pop("files"))
            return Record(**found, files=files)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptedFile(f"{self._path} is no record of an archive: {error}: restore it from a backup") from None

    def check_new(self) -> None:
        """Raise InvalidArgument if the directory has files of this archive, although it has no record."""
        for found in Path(self._directory).glob(f"date=*/{glob.escape(self.name)}-*.parquet"):
            raise InvalidArgument(
                f"{self._directory} has files of this archive, e.g. {found.name}, but not its record, without which "
                f"messages would be archived again: restore {self._path} from a backup, or use another directory"
            )

    def write(self, record: Record) -> None:
        """Replace the record. The new record is durable when this call returns."""
        part = os.path.join(self._directory, f"{self.prefix}json{PART}")
        with open(part, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, self._path)
        flush_directory(self._directory)

    def finish(self, record: Record | None) -> None:
        """Give the files of the record their final names, and remove the files of a run that was killed earlier."""
        folders = {self._directory}
        for temporary, final in () if record is None else record.files:
            source, target = os.path.join(self._directory, temporary), os.path.join(self._directory, final)
            if os.path.exists(source):  # (otherwise the file has its final name already)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
                folders.add(os.path.dirname(target))
        for name in os.listdir(self._directory):
            if name.startswith(self.prefix) and name.endswith(PART):
                os.unlink(os.path.join(self._directory, name))
        for folder in sorted(folders, reverse=True):  # a partition before the directory that has its name
            flush_directory(folder)


def flush_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
