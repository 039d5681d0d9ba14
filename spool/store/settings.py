"""The settings of a space as its directory has them: ``space.toml``."""

from spool.disk import Disk
from spool.disk.content import replace, unlink_if_there
from spool.errors import InvalidArgument, NotASpace
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import MAX_SETTINGS_BYTES, parse
from spool.names import quoted


def read_settings(disk: Disk) -> SpaceConfig:
    """Read the settings. NotASpace without a file; InvalidArgument, NewerFormat for one that is not in order."""
    return parse(read_settings_text(disk), disk.path(layout.SETTINGS))


def read_settings_text(disk: Disk) -> str:
    """Read the text of the settings. NotASpace without a file; InvalidArgument if it is no text."""
    try:
        handle = disk.open(layout.SETTINGS)
    except (FileNotFoundError, NotADirectoryError):
        raise NotASpace(_no_settings(disk)) from None
    try:
        data = disk.read_at(handle, 0, MAX_SETTINGS_BYTES + 1)
    finally:
        disk.close(handle)
    try:
        if len(data) > MAX_SETTINGS_BYTES:
            raise ValueError(f"it has more than {MAX_SETTINGS_BYTES} bytes")
        return data.decode("utf-8")
    except ValueError as error:
        path = disk.path(layout.SETTINGS)
        raise InvalidArgument(f"{path}: {error}: mend the file, or take it from a backup") from None


def write_settings(disk: Disk, text: str) -> None:
    """Replace the text of the settings, all of it or none; durable when this returns. One process at a time."""
    temporary = f"{layout.SETTINGS}.tmp"
    unlink_if_there(disk, temporary)
    replace(disk, layout.SETTINGS, [text.encode()], temporary)


def _no_settings(disk: Disk) -> str:
    """What is wrong with a directory without ``space.toml``, and what to do."""
    make = f"spool-admin init {quoted(disk.root)}"
    commits = disk.names(layout.COMMITTED) if disk.exists(layout.COMMITTED) else ()
    if any(map(layout.parse_committed, commits)):
        return (
            f"{disk.root} has the messages of a queue space, and no space.toml: take that from a backup, "
            f"or make a new one with {make}, and create its queues again"
        )
    return f"{disk.root} is not a queue space: it has no space.toml. Make one with: {make}"
