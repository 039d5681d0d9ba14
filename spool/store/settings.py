"""The settings of a space: ``space.toml``, its versions, and the newest version that this process has read."""

import threading
from contextlib import suppress
from shlex import quote
from typing import NamedTuple

from spool.coordination.counters import CounterPage, Counters
from spool.disk import Disk
from spool.disk.content import read_start, replace, unlink_if_there
from spool.errors import InvalidArgument, NotASpace
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse


class Settings(NamedTuple):
    """The immutable settings of one version.

    A function that checks options or limits and then acts takes the settings as an argument: between two readings of
    ``SettingsReader.known`` another thread may have read newer settings.

    version: the version of the file according to the counters; -1 if the file was read before the counters were open.
    """

    config: SpaceConfig
    version: int


class SettingsReader:
    """Reads ``space.toml`` again when its version changes. ``known``: the newest settings that were read."""

    __slots__ = ("_counters", "_disk", "_renewing", "_seen", "known")

    def __init__(self, disk: Disk, counters: Counters, config: SpaceConfig) -> None:
        """``config``: the settings that were read before the counters were open."""
        self._disk = disk
        self._counters = counters
        self.known = Settings(config, -1)
        self._renewing = threading.Lock()
        self._seen: tuple[int, int, int] | None = None  # inode, size, time

    def current(self, page: CounterPage | None = None) -> Settings:
        """Return the settings of the version that the counters name, or of a newer version.

        Args:
            page: the counters, if they have just been read.

        Raises:
            NotASpace, InvalidArgument, NewerFormat: the file is not valid; ``known`` is unchanged.
        """
        known = self.known
        page = page or self._counters.read()
        if page.settings <= known.version:
            return known
        read = Settings(read_settings(self._disk), page.settings)
        with self._renewing:
            if read.version >= self.known.version:
                self.known = read
            return self.known

    def is_replaced(self) -> bool:
        """Return whether the file was replaced or written since the last call, perhaps by an edit by hand."""
        identity = self._disk.identity(layout.SETTINGS)
        if identity is None:
            return False
        last, self._seen = self._seen, (identity.inode, identity.size, identity.modified_ns)
        return last != self._seen


# -- the file ----------------------------------------------------------------------------------------------------------


def read_settings(disk: Disk) -> SpaceConfig:
    """Read the settings. Raises NotASpace without a file, and InvalidArgument or NewerFormat for an invalid file."""
    return parse(read_settings_text(disk), disk.path(layout.SETTINGS))


def read_settings_text(disk: Disk) -> str:
    """Read the text of the settings.

    Raises NotASpace if the file is missing, and InvalidArgument if the file is no text.
    """
    try:
        data = read_start(disk, layout.SETTINGS, MAX_SETTINGS_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotASpace(_no_settings(disk)) from None
    try:
        if len(data) > MAX_SETTINGS_BYTES:
            raise ValueError(f"it has more than {MAX_SETTINGS_BYTES} bytes")
        return data.decode("utf-8")
    except ValueError as error:
        path = disk.path(layout.SETTINGS)
        raise InvalidArgument(f"{path}: {error}: fix the file, or take it from a backup") from None


def write_settings(disk: Disk, text: str) -> None:
    """Replace the text of the settings atomically; the change is durable when this returns.

    One process at a time may call this.
    """
    replace_text(disk, layout.SETTINGS, text)


def replace_text(disk: Disk, name: str, text: str) -> None:
    """Replace a small file of a space or a mirror atomically; the file is durable when this returns."""
    temporary = f"{name}.tmp"
    unlink_if_there(disk, temporary)
    replace(disk, name, [text.encode()], temporary)


def _no_settings(disk: Disk) -> str:
    """Return an error text for a directory without ``space.toml``. The text says what to do."""
    if disk.exists(layout.RESTORING):
        return f"{disk.root} is not a queue space yet: its restore from a mirror was interrupted; run the restore again"
    if disk.exists(layout.IMPORTING):
        return f"an import into {disk.root} is not complete: import again, which begins from the start"
    make = f"spool-admin init {quote(disk.root)}"
    commits = disk.names(layout.COMMITTED) if disk.exists(layout.COMMITTED) else ()
    if any(map(layout.parse_committed, commits)):
        return (
            f"{disk.root} has the messages of a queue space, and no space.toml: take that from a backup, "
            f"or make a new one with {make}, and create its queues again"
        )
    with suppress(OSError):
        if layout.foreign(disk.names("")):
            return (
                f"{disk.root} is not a queue space: it has no space.toml. Name a directory that has one, or make one "
                "in an empty directory: spool-admin init PATH"
            )
    return f"{disk.root} is not a queue space: it has no space.toml. Make one with: {make}"
