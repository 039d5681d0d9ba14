"""The settings of a space: ``space.toml``, its versions, and the newest version that this process has read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from shlex import quote
from typing import NamedTuple

from spool.coordination.counters import CounterPage, Counters
from spool.disk import Disk
from spool.disk.content import read_start, replace, replacement, unlink_if_there
from spool.errors import InvalidArgument, NotASpace, SpoolError
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse
from spool.model.settings_text import SettingsParser


class Settings(NamedTuple):
    """The immutable settings of one version.

    A function that checks options or limits and then acts takes the settings as an argument. Otherwise another thread
    could read newer settings between two readings of ``SettingsReader.known``.

    version: the version of the file according to the counters; -1 if the file was read before the counters were open.
    """

    config: SpaceConfig
    version: int


class SettingsReader:
    """Reads ``space.toml`` again when its version changes. ``known``: the newest settings that were read."""

    __slots__ = ("_counters", "_disk", "_parser", "_renewing", "_seen", "known")

    def __init__(self, disk: Disk, counters: Counters, config: SpaceConfig, parser: SettingsParser) -> None:
        """``config``: the settings that ``parser`` read before the counters were open."""
        self._disk = disk
        self._counters = counters
        self._parser = parser
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
        read = Settings(self.parse(read_settings_text(self._disk)), page.settings)
        with self._renewing:
            if read.version >= self.known.version:
                self.known = read
            return self.known

    def parse(self, text: str) -> SpaceConfig:
        """Return the settings in a text of the file. The work grows only with the queues that have changed."""
        return self._parser.parse(text, self._disk.path(layout.SETTINGS))

    def is_replaced(self) -> bool:
        """Return whether the file was replaced or written since the last call, e.g. by a manual edit."""
        if (identity := self._disk.identity(layout.SETTINGS)) is None:
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

    One process at a time may call this. Raises InvalidArgument if no program could read the text; nothing is written.
    """
    with new_settings(disk, text) as publish:
        publish()


@contextmanager
def new_settings(disk: Disk, text: str) -> Iterator[Callable[[], None]]:
    """Write a new text of the settings durably. Once the body calls the yielded function, the new text replaces the old
    text.

    Raises InvalidArgument if no program could read the text; nothing is written.
    """
    size = len(data := text.encode())
    if size > MAX_SETTINGS_BYTES:
        raise InvalidArgument(
            f"{disk.path(layout.SETTINGS)} would have {size:,} bytes, and programs read at most "
            f"{MAX_SETTINGS_BYTES:,}: nothing was changed. Delete queues that are not needed, or move options that "
            "most queues have into [defaults]"
        )
    unlink_if_there(disk, _TEMPORARY)
    try:
        with replacement(disk, [data], _TEMPORARY) as take_name:
            yield partial(take_name, layout.SETTINGS)
    except SpoolError:  # the body refuses the change
        unlink_if_there(disk, _TEMPORARY)
        raise


_TEMPORARY = f"{layout.SETTINGS}.tmp"


def replace_text(disk: Disk, name: str, text: str) -> None:
    """Replace a small file of a mirror atomically; the file is durable when this returns."""
    temporary = f"{name}.tmp"
    unlink_if_there(disk, temporary)
    replace(disk, name, [text.encode()], temporary)


def _no_settings(disk: Disk) -> str:
    """Return an error text for a directory without ``space.toml``. The text names the remedy."""
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
