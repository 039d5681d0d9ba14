"""Keep a mirror, a second directory: each commit and vote is durable in both directories before its call returns.

The mirror holds the files of each commit under their names in ``committed/``, byte for byte, and the text of
``space.toml``. The mirror holds the votes of branches in doubt under their names in ``prepared/``. After the loss of
the space's disk a new space is created from these files. A failed mirror is a failed flush: the outcome of the commit
is unknown, and the space stops until the mirror is repaired or dropped. The first opener of a space compares the space
with its mirror (``recovery.mirrored``) and brings the mirror up to date.

Both directories hold the same random id, in a file ``mirror.id``. A directory without the id is no mirror. So an opener
writes nothing into a mount point whose disk is missing, and nothing into the mirror of another space. While a new
mirror is being created, ``mirror.id`` of the space has two lines: the id of the mirror in the settings, and the id of
the new mirror. The next opener keeps only one id: the id of the mirror that the settings name at the time of the
opening.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from shlex import quote

from spool.disk.content import chunks, new_file, open_first, opened, read_start, replace, unlink_if_there, write_chunks
from spool.disk.disk import Disk, FlushFailed
from spool.disk.durability import SingleCopy
from spool.errors import CorruptedFile, InvalidArgument, MirrorMismatch
from spool.format.header import Header
from spool.format.reader import prove, read_header
from spool.model import layout
from spool.model.settings_file import MAX_SETTINGS_BYTES
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid, new_local_xid
from spool.runtime.async_exceptions import raise_if_torn
from spool.store.identity import find_id, read_id, write_id
from spool.store.settings_reader import replace_text

log = logging.getLogger("spool")

_TEMPORARY = ".tmp"
_MAX_ID_BYTES = 4096

# Bytes of ``mirror.id`` in a mirror, on which processes take shared locks. A restore locks both bytes, then checks the
# first byte for another lock. An opener locks the first byte, then checks the second for a lock. So the restore or the
# opener sees the other's lock.
_IN_USE, _RESTORE = 0, 1


class Mirror(SingleCopy):
    """The mirror of the space on ``source``; ``disk`` is rooted at the mirror's directory."""

    source: Disk

    def __init__(self, source: Disk, disk: Disk) -> None:
        super().__init__(source)
        self.disk = disk

    def flush_commit(self, number: int, handle: int, *, stamped: bool) -> None:
        """Make a commit durable in the mirror and in the space at the same time. Raises FlushFailed if either fails."""
        flush = partial(self.source.make_durable, handle, layout.COMMITTED, new=True, stamped=stamped)
        self._flush_both(partial(self.copy, number), flush)

    def flush_vote(self, xid: Xid, handle: int, *, stamped: bool) -> None:
        """Make the vote of a branch durable in the mirror and in the space, as ``flush_commit`` does."""
        flush = partial(self.source.make_durable, handle, layout.PREPARED, new=True, stamped=stamped)
        if self.keeps_vote(xid):
            self._flush_both(partial(self.copy_vote, xid), flush)
        else:
            flush()

    def _flush_both(self, copy_there: Callable[[], None], flush: Callable[[], None]) -> None:
        failed: list[BaseException] = []
        done = threading.Event()

        def copy() -> None:
            try:
                copy_there()
            except BaseException as error:
                failed.append(error)
            done.set()

        if not self.source.run_beside("xaspool mirror", copy):
            copy()
        try:
            flush()
        finally:  # otherwise the copying thread could use a closed descriptor, and thereby another file
            done.wait()
        if failed:
            raise failed[0]

    def copy(self, number: int, *, retired: bool = False) -> None:
        """Copy a commit's numbered file and its adopted branches; the copies are durable when this returns.

        The numbered file is the head of the branches. A branch without its head is in doubt, so a branch is copied
        before its head. The branches of a ``retired`` commit were decided long ago. Reclaim removes these branches
        before their head, so they are copied after their head. Raises FlushFailed.
        """
        name = layout.committed(number)
        with self._taking(f"commit {number}"):
            with opened(self.source, name) as handle:
                adopts = read_header(self.source, handle).adopts
            branches = [(layout.prepared(one.xid), layout.committed(number, k)) for k, one in enumerate(adopts, 1)]
            steps: list[list[tuple[str, ...]]] = [[*branches], [(name,)]]
            for files in reversed(steps) if retired else steps:
                for names in files:
                    source = open_first(self.source, names)
                    if source is not None:  # otherwise reclaim has removed the branch, and will remove the head
                        self._write(source, names[-1])
                        self._name(names[-1])
                if files:
                    self.disk.flush_directory("")
            for one in adopts:
                self.forget_vote(one.xid)

    @contextmanager
    def _taking(self, copied: str) -> Iterator[None]:
        """Raise FlushFailed after any failure. Its number is not that of a full disk, because a purge does not help."""
        try:
            yield
        except (OSError, CorruptedFile) as error:
            raise_if_torn(error)
            raise FlushFailed(
                errno.EREMOTEIO,
                f"the mirror {self.disk.root} cannot take {copied}: {error} (to go on without the mirror: spool-admin "
                "mirror drop)",
            ) from error

    # -- votes --------------------------------------------------------------------------------------------------------

    def keeps_vote(self, xid: Xid) -> bool:
        """Return whether the mirror keeps the vote of a branch.

        A coordinator that is bound to one life of the space does not survive the loss of the space. So its undecided
        branches are rolled back.
        """
        return xid.format_id not in FORMATS_BOUND_TO_A_LIFE

    def copy_vote(self, xid: Xid) -> None:
        """Copy a prepared branch; the copy is durable when this returns. Raises FlushFailed.

        A branch that another process has decided meanwhile is not copied.
        """
        if self.write_vote(xid):
            self.name_vote(xid)

    def write_vote(self, xid: Xid) -> bool:
        """Copy a prepared branch under a temporary name; return False if another process has decided the branch, or if
        the mirror does not keep its vote.

        The bytes of the copy are durable when this returns. Raises FlushFailed. The caller holds the byte of the xid,
        and calls ``name_vote`` or ``drop_copy`` afterwards.
        """
        if not self.keeps_vote(xid):
            return False
        with self._taking(f"the vote of branch {xid}"):
            if (source := open_first(self.source, [layout.prepared(xid)])) is not None:
                self._write(source, layout.prepared(xid))
            return source is not None

    def name_vote(self, xid: Xid) -> None:
        """Give the copy of a prepared branch its name; the name is durable when this returns. Raises FlushFailed."""
        with self._taking(f"the vote of branch {xid}"):
            self._name(layout.prepared(xid))
            self.disk.flush_directory("")

    def drop_copy(self, xid: Xid) -> None:
        """Remove the copy of a branch that was decided before the copy got its name."""
        if self.keeps_vote(xid):
            unlink_if_there(self.disk, _temporary(layout.prepared(xid)))

    def forget_vote(self, xid: Xid) -> None:
        """Remove the vote of a branch that was decided. After a power cut the vote may exist again.

        If the vote exists again and the branch was committed, the branch's head also exists: the removal of the
        branch's own file is flushed before the head is removed.
        """
        if self.keeps_vote(xid):
            unlink_if_there(self.disk, _here(layout.prepared(xid)))

    def withdraw_vote(self, xid: Xid) -> None:
        """Remove the vote of a branch that is rolled back, before the branch is removed from the space.

        Otherwise the next opener would give the vote back if this process died in between, after other processes had
        seen the rollback.
        """
        try:
            self.forget_vote(xid)
        except OSError as error:
            raise_if_torn(error)
            log.warning("%s keeps the vote of branch %s until the space opens again: %s", self.disk.root, xid, error)

    def flush_withdrawals(self) -> None:
        self.disk.flush_directory("")

    def votes(self) -> dict[Xid, str]:
        """Return the names of the votes in the mirror."""
        named = {xid: name for name in self.disk.names("") if (xid := layout.parse_xid(name)) is not None}
        return dict(sorted(named.items()))

    def give_back_vote(self, xid: Xid) -> None:
        """Restore a vote that the space lacks; the vote is durable in the space when this returns."""
        self._give_back(layout.prepared(xid))

    def keep_votes(self, undecided: Iterable[Xid]) -> None:
        """Copy the votes that the mirror lacks, or has with other contents. Only this process has the space open.

        ``undecided``: the prepared branches of the space.
        """
        there = self.votes()
        for xid in sorted(filter(self.keeps_vote, undecided)):
            if xid not in there or self._header_of(self.disk, there[xid]) != self._header_of(
                self.source, layout.prepared(xid)
            ):
                self.copy_vote(xid)

    def drop_votes(self, undecided: Collection[Xid]) -> None:
        """Remove all votes except the votes of these branches; the removal is durable when this returns.

        Lost votes were already restored in the space. So the branches of all other votes were decided, or their votes
        were never acknowledged.
        """
        self._remove([name for xid, name in self.votes().items() if xid not in undecided])

    def _header_of(self, disk: Disk, name: str) -> tuple[int, int] | None:
        try:
            with opened(disk, name) as handle:
                header = read_header(disk, handle)
        except CorruptedFile:
            return None
        return header.size, header.checksum

    def _write(self, source: int, target: str) -> None:
        """Copy a file of the space under a temporary name; close the file's descriptor, ``source``."""
        temporary = _temporary(target)
        try:
            unlink_if_there(self.disk, temporary)
            with new_file(self.disk, temporary) as handle:
                write_chunks(self.disk, handle, chunks(self.source, source))
                self.disk.flush(handle)
        finally:
            self.source.close(source)

    def _name(self, target: str) -> None:
        self.disk.rename(_temporary(target), _here(target))

    def forget(self, adopted: Mapping[int, int]) -> None:
        """Remove the files of commits; the removal is durable when this returns. The caller removes the files from the
        space afterwards.

        Otherwise the mirror could keep a file of consumed messages after the file that consumed these messages was
        removed. A space that is restored from the mirror would have these messages again.

        Args:
            adopted: the number of branches that each commit adopts, by the commit's number.
        """
        branches = [layout.committed(number, k) for number, count in adopted.items() for k in range(1, count + 1)]
        self._remove(branches)
        self._remove(map(layout.committed, adopted))

    def _remove(self, names: Iterable[str]) -> None:
        """Remove the files, if they exist; the removal is durable when this returns."""
        removed = False
        for name in map(_here, names):
            if self.disk.exists(name):
                self.disk.unlink(name)
                removed = True
        if removed:
            self.disk.flush_directory("")

    # -- while no other process has the space open --------------------------------------------------------------------

    def numbers(self) -> set[int]:
        """Return the numbers of the commits in the mirror."""
        return layout.committed_numbers(self.disk.names(""))

    def header(self, number: int) -> Header:
        """Read the header of a commit in the mirror that ``is_whole``."""
        with opened(self.disk, _here(layout.committed(number))) as handle:
            return read_header(self.disk, handle)

    def is_whole(self, number: int) -> bool:
        """Return whether a commit's numbered file has exactly the bytes that were written."""
        try:
            with opened(self.disk, _here(layout.committed(number))) as handle:
                return prove(self.disk, handle).header.number == number
        except CorruptedFile:
            return False

    def hold(self, *, alone: bool) -> None:
        """Lock the mirror against other spaces and restores, while this process has its space open.

        Args:
            alone: whether no other process has this space open.

        Raises:
            MirrorMismatch: a process has the mirror open for another space, or restores a space from the mirror.
        """
        handle = self.disk.open(layout.MIRROR_ID, write=True)
        ours = (not alone or self.disk.lock(handle, _IN_USE)) and self.disk.lock(handle, _IN_USE, shared=True)
        if not ours or self.disk.some_lock(handle, _RESTORE, 1) is not None:
            raise self._in_use(
                handle,
                f"for another space, a copy of {self.source.root} perhaps, or restores a space from it. Each space "
                f"needs its own mirror: spool-admin -s {quote(self.source.root)} mirror begin DIRECTORY",
            )

    def hold_for_restore(self) -> None:
        """Keep the mirror unchanged until ``disk`` is closed.

        Raises MirrorMismatch if a process has the mirror's space open, or another process restores a space from the
        mirror.
        """
        handle = self.disk.open(layout.MIRROR_ID)
        ours = all(self.disk.lock(handle, byte, shared=True) for byte in (_RESTORE, _IN_USE))
        if not ours or self.disk.some_lock(handle, _IN_USE, 1) is not None:
            raise self._in_use(handle, "now: close its space in every process, or copy it with spool-admin export")

    def _in_use(self, handle: int, why: str) -> MirrorMismatch:
        holders = " and ".join(self.disk.lock_holders(handle, _IN_USE, others=True)) or "a process"
        return MirrorMismatch(f"the mirror {self.disk.root} is in use by {holders} {why}")

    def give_back(self, number: int) -> None:
        """Restore a commit that the space lost in a power cut; the commit is durable in the space when this returns.

        Adopted branches that the space lacks are copied first.
        """
        for place, one in enumerate(self.header(number).adopts, 1):
            branch = layout.committed(number, place)
            if not any(map(self.source.exists, (layout.prepared(one.xid), branch))):
                self._give_back(branch)
        self._give_back(layout.committed(number))

    def _give_back(self, name: str) -> None:
        with opened(self.disk, _here(name)) as handle:
            replace(self.source, name, chunks(self.disk, handle), layout.copy(new_local_xid()))

    def catch_up(self, retired: Set[int], adopted: Mapping[int, int], *, agrees: bool) -> None:
        """Copy the commits that the mirror lacks, and remove files that the space no longer needs.

        A commit that the space lost by damage remains in the mirror.

        Args:
            retired: the numbers that reclaim has recorded.
            adopted: the number of branches that each commit of the space adopts, by the commit's number.
            agrees: whether the space's record says that every number without a file in the space was reclaimed.
        """
        there = {name for name in self.source.names(layout.COMMITTED) if layout.parse_committed(name)}
        here = set(self.disk.names(""))
        numbers = {int(name[:16]) for name in there - here}
        for number in sorted(numbers):
            if _here(layout.committed(number)) in there:
                self.copy(number, retired=number in retired)
        parsed = {name: found for name in here - there if (found := layout.parse_committed(name))}
        heads = {name for name, found in parsed.items() if not found.adoption}
        kept = {name for name in heads if not agrees and parsed[name].number not in retired}
        of_kept = {parsed[name].number for name in kept}
        branches = {
            name
            for name, (number, place) in parsed.items()
            if place and number not in of_kept and (number in retired or adopted.get(number, 0) < place)
        }
        self._remove(sorted(heads - kept))  # a head is removed first, otherwise half of a commit would remain
        self._remove(sorted(branches))
        self._remove(sorted(name for name in here if _is_unfinished(name)))
        for name in sorted(parsed.keys() - branches - (heads - kept)):
            log.warning("%s: the mirror keeps %s, which the space has lost by damage", self.source.root, name)

    def keep_space_id(self, id: str) -> None:
        """Keep the id of the space for a restore; the id is durable when this returns."""
        if find_id(self.disk) != id:
            write_id(self.disk, id)

    # -- the settings -------------------------------------------------------------------------------------------------

    def keep_settings(self, text: str) -> None:
        """Keep the text of the space's settings for a restore; the text is durable when this returns."""
        if not self.disk.exists(layout.MIRROR_SETTINGS) or self.settings() != text:
            replace_text(self.disk, layout.MIRROR_SETTINGS, text)

    def settings(self) -> str:
        return read_start(self.disk, layout.MIRROR_SETTINGS, MAX_SETTINGS_BYTES).decode("utf-8", "replace")


def begin_mirror(space: Disk, mirror: Disk, settings: str) -> None:
    """Make an empty directory the mirror of a space; the mirror is durable when this returns.

    Afterwards the settings may name the mirror. A missing directory is created, but not a missing parent, because the
    parent may be the mount point of another disk. Files of an interrupted call are used again.

    Args:
        settings: the text of the space's settings.

    Raises:
        InvalidArgument: the directory is not empty, or its parent does not exist.
    """
    try:
        mirror.make_directory("")
    except FileNotFoundError:
        raise InvalidArgument(
            f"the mirror {mirror.root} cannot be made, because the directory above it does not exist: make that "
            "directory, or mount the disk that belongs there"
        ) from None
    found, known = read_ids(mirror), read_ids(space)
    if not set(found) <= set(known) or not set(layout.foreign(mirror.names(""))) <= _BEGUN:
        raise InvalidArgument(f"the mirror {mirror.root} is not empty: name an empty directory, one for each space")
    mine = found or (os.urandom(16).hex(),)
    write_ids(space, tuple(dict.fromkeys([*known[:1], *mine])))
    Mirror(space, mirror).keep_settings(settings)
    write_id(mirror, read_id(space))
    write_ids(mirror, mine)


def check_elsewhere(mirror: str, space: str) -> None:
    """Raise InvalidArgument for a mirror inside its space: the loss of the space would be the loss of both."""
    if lies_inside(mirror, space):
        raise InvalidArgument(
            f"the mirror {mirror} lies inside the space {space}, and would be lost with the space: name a directory "
            "elsewhere, best on another disk"
        )


def lies_inside(path: str, directory: str) -> bool:
    """Return whether a path is the directory, or lies below the directory, also through symbolic links."""
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(directory).rstrip('/')}/")


_OWN = (layout.MIRROR_ID, layout.MIRROR_SETTINGS, layout.SPACE_ID)
_BEGUN = {*_OWN, *(f"{name}.tmp" for name in _OWN)}


def _is_unfinished(name: str) -> bool:
    if not name.endswith(_TEMPORARY):
        return False
    whole = name.removesuffix(_TEMPORARY)
    return layout.parse_committed(whole) is not None or layout.parse_xid(whole) is not None


def _here(name: str) -> str:
    return name.rpartition("/")[2]


def _temporary(name: str) -> str:
    return f"{_here(name)}{_TEMPORARY}"


# -- the ids -----------------------------------------------------------------------------------------------------------


def read_ids(disk: Disk) -> tuple[str, ...]:
    """Return the ids of a space, or the id of a mirror; none if the file is missing."""
    try:
        return tuple(read_start(disk, layout.MIRROR_ID, _MAX_ID_BYTES).decode("ascii", "replace").split())
    except FileNotFoundError:
        return ()


def write_ids(disk: Disk, ids: Sequence[str]) -> None:
    """Replace all ids atomically; the ids are durable when this returns."""
    replace_text(disk, layout.MIRROR_ID, "".join(f"{one}\n" for one in ids))


def forget_ids(space: Disk) -> None:
    """Forget the mirror: the space continues without a mirror, and later commits are not copied."""
    if space.exists(layout.MIRROR_ID):
        space.unlink(layout.MIRROR_ID)
        space.flush_directory("")


def check_ids(space: Disk, mirror: Disk) -> None:
    """Raise MirrorMismatch unless the directory is the mirror that was begun for this space."""
    begin = f"spool-admin -s {quote(space.root)} mirror begin DIRECTORY"
    found, known = read_ids(mirror), read_ids(space)
    if not found:
        state = "is no mirror: it is empty, or missing" if not layout.foreign(_names(mirror)) else "is no mirror"
        raise MirrorMismatch(
            f"{mirror.root}, the mirror of {space.root} by its space.toml, {state}. Mount the disk with the mirror, "
            f"or begin a new mirror: {begin}"
        )
    if not set(found) & set(known):
        raise MirrorMismatch(
            f"{mirror.root} is the mirror of another space than {space.root}, or of the same space before it continued "
            f"without this mirror. Name the right directory in space.toml, or begin a new mirror: {begin}"
        )


def keep_id(space: Disk, mirror: Disk) -> None:
    """Keep only the id of this mirror. ``check_ids`` has accepted the mirror."""
    found = read_ids(mirror)
    if read_ids(space) != found:
        write_ids(space, found)


def _names(disk: Disk) -> list[str]:
    try:
        return disk.names("")
    except FileNotFoundError:
        return []
