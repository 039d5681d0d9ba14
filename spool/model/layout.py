"""Build and parse the names of the files in a space's directory."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from spool.model.xid import Xid

SETTINGS = "space.toml"
SPACE_ID = "space.id"  # in the space, and in the space's mirror
MIRROR_ID = "mirror.id"  # in the space, and in the space's mirror
MIRROR_SETTINGS = "settings.toml"  # in a mirror, with the text of the space's space.toml
RESTORING = "restore.toml"  # in a new space, until all commits of the mirror are copied
ACTIVE, PREPARED, COMMITTED = "active", "prepared", "committed"
DROP, QUARANTINE, FREE, RUN = "drop", "quarantine", "free", "run"
DIRECTORIES = (ACTIVE, PREPARED, COMMITTED, DROP, QUARANTINE, FREE, RUN)

CONTROL, COUNTERS, FEED, NUMBERS, REQUESTS, XIDS, RECLAIM_LOCK, CHECKPOINT = (
    f"{RUN}/{name}"
    for name in ("control", "counters", "feed", "numbers", "requests", "xids", "reclaim.lock", "checkpoint")
)
CLAIM_FILES = 64
METERS_FILES = 96
STATUS = f"{RUN}/status"  # the data that a user of the space's monitoring group may read
RECOVERY = f"{RUN}/recovery"  # the findings of the last recovery
RESUMED = f"{RUN}/resumed"  # requests of administrators to end pauses

SUFFIX = ".msgpack"
JOURNAL_SUFFIX = ".claims"
COMMITTED_FILE = f"{COMMITTED}/%016d{SUFFIX}"  # % the number of a commit; the name of the commit's first file
COPY_SUFFIX = ".copy"
REASON_SUFFIX = ".reason.txt"  # of a file with the reason for the quarantine of another file
CAPTURE_PREFIX = "drop."
UNFINISHED_SUFFIXES = (".tmp", ".part")  # of unfinished dropped files, which their writers will rename
FIRST_PREFIX = ".first."  # of a file that was dropped during the capture of a file of the same name
IMPORTING = f"{SETTINGS}.import"  # an import creates this file first, and removes it when the space is complete
SETTINGS_TEMPORARY = f"{SETTINGS}.tmp"
SPACE_ID_TEMPORARY = f"{SPACE_ID}.tmp"

# A directory in the root directory of a new file system.
_LOST_AND_FOUND = "lost+found"

# A claim of a message locks the byte ``number << 24 | ordinal`` of a lock file, and file offsets have 63 bits.
MAX_NUMBER = 2**39 - 1
ORDINAL_BITS = 24
MAX_ORDINAL = 2**ORDINAL_BITS - 1

_QUEUE_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}"
is_queue_name = re.compile(_QUEUE_NAME).fullmatch  # a queue's folder in drop/ has the queue's name
_CAPTURE_NAME = re.compile(rf"{re.escape(CAPTURE_PREFIX)}{_QUEUE_NAME}\.[0-9a-f]{{16}}")
_NEW_SUFFIX, _ORIGIN_DIGITS = ".new", 16
_FREE_NAME = re.compile(rf"([0-9]{{1,10}})-([0-7][0-9a-f]{{15}})({re.escape(_NEW_SUFFIX)})?")
_COMMITTED_NAME = re.compile(r"([0-9]{16})(?:-([1-9][0-9]{0,7}))?\.msgpack")


def foreign(names: Iterable[str]) -> list[str]:
    """Return the sorted names that do not belong to a space."""
    return sorted(set(names) - {SETTINGS, SPACE_ID, IMPORTING, MIRROR_ID, *DIRECTORIES, _LOST_AND_FOUND})


def in_use(names: Iterable[str]) -> set[str]:
    """Return the names without ``lost+found``, because a directory that has only this name counts as empty."""
    return set(names) - {_LOST_AND_FOUND}


class CommittedName(NamedTuple):
    """The parts of the name of a committed file. ``adoption``: 0 for the commit's first file, k for the file of the
    commit's k-th adopted branch."""

    number: int
    adoption: int


def committed(number: int, adoption: int = 0) -> str:
    return COMMITTED_FILE % number if not adoption else f"{COMMITTED}/{number:016d}-{adoption}{SUFFIX}"


def parse_committed(name: str) -> CommittedName | None:
    match = _COMMITTED_NAME.fullmatch(name)
    if match is None or not 0 < int(match[1]) <= MAX_NUMBER:
        return None
    return CommittedName(int(match[1]), int(match[2] or 0))


def committed_numbers(names: Iterable[str]) -> set[int]:
    """Return the numbers of the commits whose first files are among these names in ``committed/``."""
    return {name.number for name in map(parse_committed, names) if name is not None and not name.adoption}


class FreeName(NamedTuple):
    """The parts of the name of a consumed file.

    size: the file's size in bytes.
    origin: the former place of the file among all committed files: ``number << ORDINAL_BITS | adoption``. A file that
        was not committed has a random origin. No two files ever have the same origin.
    is_new: whether the name is perhaps not durable, so that no commit may use the file yet.
    """

    size: int
    origin: int
    is_new: bool = False

    def __str__(self) -> str:
        return f"{self.size}-{self.origin:016x}{_NEW_SUFFIX if self.is_new else ''}"


def parse_free(name: str) -> FreeName | None:
    match = _FREE_NAME.fullmatch(name)
    return None if match is None else FreeName(int(match[1]), int(match[2], 16), match[3] is not None)


def origin_in(name: str) -> int:
    """Return the origin in the name of a consumed file that is not new."""
    return int(name[-_ORIGIN_DIGITS:], 16)


@lru_cache(maxsize=256)
def prepared(xid: Xid) -> str:
    return f"{PREPARED}/{xid}{SUFFIX}"


@lru_cache(maxsize=256)  # (many calls ask for the same xid)
def active(xid: Xid) -> str:
    return f"{ACTIVE}/{xid}{SUFFIX}"


def attempt_journal(xid: Xid) -> str:
    """Return the name of a transaction's journal of claims."""
    return f"{ACTIVE}/{xid}{JOURNAL_SUFFIX}"


def copy(xid: Xid) -> str:
    """Return the temporary name of a new file that will replace another file."""
    return f"{ACTIVE}/{xid}{COPY_SUFFIX}"


def parse_xid(name: str, suffix: str = SUFFIX) -> Xid | None:
    """Return the xid in the name of a file in ``active/`` or ``prepared/``, or None if the name has another form."""
    if not name.endswith(suffix):
        return None
    try:
        return Xid.parse(name[: -len(suffix)])
    except ValueError:
        return None


def is_unfinished(name: str) -> bool:
    """Return whether a dropped file's name marks the file as incomplete. The writer will rename the file later."""
    return name.startswith(".") or name.lower().endswith(UNFINISHED_SUFFIXES)


def is_capture(name: str) -> bool:
    """Return whether this name in ``active/`` is the name of a directory of captured files."""
    return _CAPTURE_NAME.fullmatch(name) is not None


def is_captured(name: str) -> bool:
    """Return whether this name in a directory of captured files is the name of a captured file.

    Any other file in the directory was created by an intake.
    """
    return name.startswith(FIRST_PREFIX) or not name.startswith(".")


def queue_of_capture(directory: str) -> str:
    """Return the queue of a directory of captured files in ``active/``."""
    return directory.removeprefix(CAPTURE_PREFIX).rpartition(".")[0]


# For each directory, a function that returns whether a name is possible for a file of the space. In drop/ and
# quarantine/, all names are possible.
OWN_NAMES: dict[str, Callable[[str], object]] = {
    COMMITTED: parse_committed,
    PREPARED: parse_xid,
    ACTIVE: lambda name: (
        name.startswith(CAPTURE_PREFIX)
        or any(parse_xid(name, suffix) for suffix in (SUFFIX, JOURNAL_SUFFIX, COPY_SUFFIX))
    ),
    FREE: _FREE_NAME.fullmatch,
    RUN: re.compile(
        r"control|counters|feed|numbers|requests|resumed|xids|reclaim\.lock|claims-[0-9]{2}"
        r"|(checkpoint|status|recovery|meters-[0-9]{2})(\.tmp)?"
    ).fullmatch,
}


@lru_cache(maxsize=CLAIM_FILES)
def claim_file(index: int) -> str:
    return f"{RUN}/claims-{index:02d}"
