"""The id of a space, in the file ``space.id``: decision logs, decision rows and votes name the space by this id.

The id is random, and written before the space has its settings, so the id is durable before a log, a row or a vote can
name it. The id is not a setting, because ``space.toml`` may be copied as a template for another space, which needs
another id. A move or a copy of the space keeps the id. The mirror of a space has the same file, so a restored space
keeps the id.
"""

import os
import re
from shlex import quote

from spool.disk.content import read_start
from spool.disk.disk import Disk
from spool.errors import CorruptedFile, NotASpace
from spool.model import layout
from spool.store.settings_reader import replace_text

ID_BYTES = 16
MAX_TEXT_BYTES = 2 * ID_BYTES + 1
_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}\n")


def new_id() -> str:
    return os.urandom(ID_BYTES).hex()


def parse_id(text: bytes) -> str | None:
    """Return the id in the content of the file; None if it is no id."""
    found = text.decode("ascii", "replace")
    return found.strip() if _ID.fullmatch(found) else None


def find_id(disk: Disk) -> str | None:
    """Return the id of a space, or of a mirror's space; None if the file is missing. Raises CorruptedFile."""
    try:
        found = parse_id(read_start(disk, layout.SPACE_ID, MAX_TEXT_BYTES + 1))
    except FileNotFoundError:
        return None
    if found is None:
        raise CorruptedFile(
            f"{disk.path(layout.SPACE_ID)} is damaged: put it back from a backup or from the mirror, or move it away "
            f"and write a new id with: spool-admin init {quote(disk.root)}"
        )
    return found


def read_id(disk: Disk) -> str:
    """Return the id of a space. Raises NotASpace if the file is missing, and CorruptedFile if it is damaged."""
    if (found := find_id(disk)) is None:
        raise NotASpace(
            f"{disk.root} has a {layout.SETTINGS}, and no {layout.SPACE_ID}: put the file back from a backup or from "
            f"the mirror, or write a new id with: spool-admin init {quote(disk.root)}"
        )
    return found


def write_id(disk: Disk, id: str) -> None:
    """Give a space, or a mirror, its id; the id is durable when this returns."""
    replace_text(disk, layout.SPACE_ID, f"{id}\n")


def ensure_id(disk: Disk) -> str:
    """Return the id of a directory that becomes a space. Without an id, write a new one."""
    if (found := find_id(disk)) is None:
        found = new_id()
        write_id(disk, found)
    return found
