"""The directory that a caller names. Pure, except for one look at the directory."""

import os
import re
from urllib.parse import unquote

from spool.errors import InvalidArgument
from spool.model.text import shown

_FILE_URL = re.compile(r"file:(?://(?:localhost)?(?=/))?(/(?!/).*)", re.DOTALL)
# A URL, or a URL that another program took for a relative path and appended to its directory.
_URL = re.compile(r"(?:.*/)?[A-Za-z][A-Za-z0-9+.-]+:(?:/.*|$)|file:.*", re.DOTALL)


def local_path(path: str | os.PathLike[str], thing: str = "a space", example: str = "/var/spool/shop") -> str:
    """Return the path of a directory. The URLs ``file:///p``, ``file://localhost/p`` and ``file:/p`` mean the path
    ``/p``.

    Raises InvalidArgument for an empty path, and for any other URL, unless a directory has this name. The error says
    that ``thing`` is a directory, and names the ``example``.
    """
    text = os.fsdecode(path)
    if (found := _FILE_URL.fullmatch(text)) is not None:
        return unquote(found[1])
    if not text or (_URL.fullmatch(text) is not None and not os.path.isdir(text)):
        raise InvalidArgument(
            f"{shown(text)} is {'a URL' if text else 'an empty path'}, and {thing} is a directory of this machine: "
            f"write its path, e.g. {example} or file://{example}"
        )
    return text
