"""The record of an archive: a small file in the directory of the Parquet files. The record is replaced in one step."""

import fcntl
import json
import os
import re
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
    path: the file of the record.
    """

    def __init__(self, directory: str, subscription: str) -> None:
        self._directory = directory
        self.name = quote(subscription, safe="")[:_LONGEST_NAME]
        self.prefix = f".{self.name}."
        self.path = os.path.join(directory, f"_{self.name}.json")
        # The name of another archive in the directory may begin with this name, e.g. orders and orders-1.
        self._parts = re.compile(rf"\.{re.escape(self.name)}\.(json|\d+\.\d+)\.part")
        self._files = re.compile(rf"{re.escape(self.name)}-\d{{16,}}-\d{{16,}}(-\d+)?\.parquet")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory if it is missing, and keep other runs of this archive away."""
        os.makedirs(self._directory, exist_ok=True)
        with open(os.path.join(self._directory, f"{self.prefix}lock"), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidArgument(f"another run writes to {self._directory} now: wait for its end") from None
            yield

    def read(self) -> Record | None:
        """Return the record; None before the first run. CorruptedFile if the file is damaged."""
        try:
            found = json.loads(Path(self.path).read_bytes())
            files = tuple((str(temporary), str(final)) for temporary, final in found.pop("files"))
            return Record(**found, files=files)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptedFile(f"{self.path} is no record of an archive: {error}: restore it from a backup") from None

    def check_new(self) -> None:
        """Raise InvalidArgument if the directory has files of this archive, although it has no record."""
        for found in filter(lambda file: self._files.fullmatch(file.name), Path(self._directory).glob("date=*/*")):
            raise InvalidArgument(
                f"{self._directory} has files of this archive, e.g. {found.name}, but not its record, without which "
                f"messages would be archived again: restore {self.path} from a backup, or begin a second archive with "
                "another directory and --subscription"
            )

    def write(self, record: Record) -> None:
        """Replace the record. The new record is durable when this call returns."""
        part = os.path.join(self._directory, f"{self.prefix}json{PART}")
        Path(part).write_text(json.dumps(asdict(record)))
        flush(part)
        os.rename(part, self.path)
        flush(self._directory)

    def finish(self, record: Record | None) -> None:
        """Give the files of the record their final names, and remove the files of a run that was killed earlier."""
        folders = {self._directory}
        for temporary, final in () if record is None else record.files:
            source, target = os.path.join(self._directory, temporary), os.path.join(self._directory, final)
            if os.path.exists(source) and not os.path.exists(target):  # (otherwise the file has its final name already)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.rename(source, target)
                folders.add(os.path.dirname(target))
        for name in filter(self._parts.fullmatch, os.listdir(self._directory)):
            os.unlink(os.path.join(self._directory, name))
        for folder in sorted(folders, reverse=True):  # a partition before the directory that has its name
            flush(folder)


def flush(path: str) -> None:
    """Flush a file or a directory."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
