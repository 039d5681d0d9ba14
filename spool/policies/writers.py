"""Decide whether a dropped file is complete, or a program may still be writing it.

Only the file's owner and root can ask the kernel whether a program has the file open for writing (a lease, fcntl(2)).
For another user's file, the evidence is weaker. Either the writer renamed the file into place (``arrivals``), or the
file has not changed for ``drop_settle`` seconds.

A writer may pause for more than ``drop_settle`` seconds. So the intake also watches an unchanged file after it has
taken the file (``late_writes``). Without evidence that a file is complete, the file remains where it was dropped.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple

from spool.disk.advice import user_name
from spool.disk.stat import FileIdentity
from spool.store.store import Store


class Evidence(enum.Enum):
    """The evidence that a file is complete."""

    NO_WRITER = enum.auto()  # the kernel said that no program has the file open for writing
    RENAMED = enum.auto()  # the writer renamed the file into place
    UNCHANGED = enum.auto()  # the file has not changed for ``drop_settle`` seconds


class Complete(NamedTuple):
    """A complete file: the evidence of its completeness, and the file's identity at the time of the judgement."""

    evidence: Evidence
    identity: FileIdentity

    def is_still(self, identity: FileIdentity | None) -> bool:
        """Return whether ``identity`` belongs to the same file, and the file is unchanged."""
        mine = self.identity
        return (
            identity is not None
            and mine.same_file(identity)
            and (mine.size, mine.modified_ns) == (identity.size, identity.modified_ns)
        )


class Writers:
    """Judges whether dropped files are complete.

    ``waits`` is called with the name of each incomplete file and the reason. ``report`` is called with the name of each
    unreadable file and the reason.
    """

    def __init__(self, store: Store, waits: Callable[[str, str], None], report: Callable[[str, str], None]) -> None:
        self._store = store
        self._disk = store.files.disk
        self._waits = waits
        self._report = report

    def judge(self, path: str, identity: FileIdentity, name: str, renamed: Callable[[], bool]) -> Complete | None:
        """Return the evidence that a regular file is complete, or None if the file may be incomplete.

        Args:
            path: the present name of the file.
            identity: the identity of the file, which the caller has just read from ``path``.
            name: the name under which the file was dropped, for reports.
            renamed: a function that returns whether the file was renamed into place.
        """
        try:
            writer = self._disk.has_writer(path)
        except FileNotFoundError:
            return None
        except PermissionError:
            self._report(name, _unreadable(identity))
            return None
        except OSError as error:
            self._report(name, f"it cannot be read ({error.strerror}), and is left alone")
            return None
        if writer is False:
            return Complete(Evidence.NO_WRITER, identity)
        if writer is None and renamed():
            return Complete(Evidence.RENAMED, identity)
        if writer is None and self._is_unchanged(identity):
            return Complete(Evidence.UNCHANGED, identity)
        self._waits(name, "a program has it open for writing: it waits" if writer else self._unsure(identity))
        return None

    def _is_unchanged(self, identity: FileIdentity) -> bool:
        """Return whether the file has not changed for ``drop_settle`` seconds. (If the time of the
        change is in the future, the clock was set back after the change.)"""
        since = abs(self._store.clock.now() - identity.changed_ns / 1e9)
        return since >= self._store.settings.known.config.drop_settle

    def _unsure(self, identity: FileIdentity) -> str:
        return (
            f"user {identity.owner} may still be writing it: it waits until it has not changed for "
            f"{self._store.settings.known.config.drop_settle:g} s (drop_settle)"
        )


def _unreadable(identity: FileIdentity) -> str:
    return (
        f"it belongs to user {user_name(identity.owner)}, and this user may not read it: let its group read "
        "it (chmod g+r, or a umask of 027 or 022 for the program that drops files)"
    )
