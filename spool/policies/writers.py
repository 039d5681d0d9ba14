"""Decide whether a dropped file may be taken now, or a program may still be writing it.

The name decides first (``standing``): a file may be ignored, be a marker, or wait for its marker. Then the evidence of
the file's completeness decides (``evidence``).

Only the file's owner and root can ask the kernel whether a program has the file open for writing (a lease, fcntl(2)).
For another user's file, the evidence is weaker. Either the writer declared the file complete, by a rename into place
(``arrivals``) or by a marker, or the file has not changed for ``drop_settle`` seconds. If the queue has a
``drop_settle``, each of its files must also be unchanged for this time.

A writer may pause for more than ``drop_settle`` seconds. So the intake also watches an unchanged file after it has
taken the file (``late_writes``). Without evidence that a file is complete, the file remains where it was dropped.
"""

import enum
import fnmatch
import re
from collections.abc import Callable, Container
from functools import lru_cache
from typing import NamedTuple

from spool.disk.advice import user_name
from spool.disk.stat import FileIdentity
from spool.model import layout
from spool.model.settings import QueueConfig
from spool.store.store import Store


class Standing(NamedTuple):
    """The standing of a name in a queue's folder. At most one attribute is set; the file may be taken if none is.

    ignored: the reason why the intake never takes a file of this name.
    waits: the reason why the file waits: its marker is missing; or the file is a marker, and its own file is missing.
    is_marker: whether the file is the marker of another file in the folder.
    """

    ignored: str = ""
    waits: str = ""
    is_marker: bool = False


def standing(name: str, names: Container[str], queue: QueueConfig) -> Standing:
    """Return the standing of a name in the folder of a queue. Pure.

    ``names``: all names in the folder. A marker that an intake has already captured counts as a name in the folder.
    """
    if layout.is_unfinished(name):
        return Standing("by its name, its writer has not completed it")
    marker = queue.drop_marker
    if marker is not None and name.endswith(marker):
        file = name.removesuffix(marker)
        return Standing(is_marker=True) if file in names else Standing(waits=f"it is a marker, and waits for {file}")
    if pattern := ignoring_pattern(name, queue.drop_ignore):
        return Standing(f"its name matches {pattern} (drop_ignore)")
    if marker is not None and name + marker not in names:
        return Standing(waits=f"it waits for its marker, {name}{marker}")
    return Standing()


def ignoring_pattern(name: str, patterns: tuple[str, ...]) -> str:
    """Return the pattern that a name matches, in upper or lower case; "" if the name matches none."""
    return next((pattern for pattern, match in _compiled(patterns) if match(name)), "")


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> list[tuple[str, Callable[[str], object]]]:
    return [(pattern, re.compile(fnmatch.translate(pattern), re.IGNORECASE).match) for pattern in patterns]


class Evidence(enum.Enum):
    """The evidence that a file is complete."""

    NO_WRITER = enum.auto()  # the kernel said that no program has the file open for writing
    DECLARED = enum.auto()  # the writer renamed the file into place, or created its marker
    UNCHANGED = enum.auto()  # the file has not changed for ``drop_settle`` seconds


def evidence(has_writer: bool | None, *, is_declared: bool, is_settled: bool) -> Evidence | None:
    """Return the evidence that a file is complete, or None if the file may be incomplete. Pure.

    Args:
        has_writer: whether a program has the file open for writing; None if this user may not ask the kernel.
        is_declared: whether the writer declared the file complete.
        is_settled: whether the file has not changed for ``drop_settle`` seconds.
    """
    if has_writer is not None:
        return None if has_writer else Evidence.NO_WRITER
    if is_declared:
        return Evidence.DECLARED
    return Evidence.UNCHANGED if is_settled else None


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

    def judge(
        self, path: str, identity: FileIdentity, first: str, declared: Callable[[], bool] | None = None
    ) -> Complete | None:
        """Return the evidence that a regular file is complete, or None if the file may be incomplete.

        Args:
            path: the present name of the file.
            identity: the identity of the file, which the caller has just read from ``path``.
            first: the name under which the file was dropped: ``drop/<queue>/<name>``.
            declared: for a file in its queue's folder, a function that returns whether the writer declared the file
                complete. None for a captured file: nobody can open the file by its name, so it need not settle again.
        """
        config = self._store.settings.known.config
        queue = config.queues.get(first.split("/")[1])
        of_queue = None if queue is None else queue.drop_settle
        settle = config.drop_settle if of_queue is None else of_queue
        # If the time of the change is in the future, the clock was set back after the change.
        is_settled = abs(self._store.clock.now() - identity.changed_ns / 1e9) >= settle
        if of_queue is not None and declared is not None and not is_settled:
            self._waits(first, f"it waits until it has not changed for {settle:g} s (drop_settle of the queue)")
            return None
        try:
            writer = self._disk.has_writer(path)
        except FileNotFoundError:
            return None
        except PermissionError:
            self._report(first, _unreadable(identity))
            return None
        except OSError as error:
            self._report(first, f"it cannot be read ({error.strerror}), and is left alone")
            return None
        is_declared = writer is None and declared is not None and declared()
        found = evidence(writer, is_declared=is_declared, is_settled=is_settled)
        if found is None:
            unsure = f"user {identity.owner} may still be writing it: it waits until it has not changed for "
            unsure += f"{settle:g} s (drop_settle)"
            self._waits(first, "a program has it open for writing: it waits" if writer else unsure)
            return None
        return Complete(found, identity)


def _unreadable(identity: FileIdentity) -> str:
    return (
        f"it belongs to user {user_name(identity.owner)}, and this user may not read it: let its group read "
        "it (chmod g+r, or a umask of 027 or 022 for the program that drops files)"
    )
