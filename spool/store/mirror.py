"""Keep a second directory in which every commit is durable, too, before its caller is told.

It holds each commit's files under their names in ``committed/``, byte for byte: after the loss of the space's disk they
are put into the ``committed/`` of a new space. A mirror that fails is a flush that failed: the commit is unknown and
the space stops, until the mirror is mended, or taken out of ``space.toml``. A process that opens the space alone brings
the mirror up to date first.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial

from spool.disk.content import chunks, new_file, open_first, opened, read_start, unlink_if_there, write_chunks
from spool.disk.disk import Disk, FlushFailed
from spool.errors import CorruptedFile, InvalidArgument
from spool.format.reader import read_header
from spool.model import layout
from spool.store.completion import Completion

_TEMPORARY = ".tmp"


class Mirror:
    """The mirror of the space on ``source``; ``disk`` is rooted at the mirror's directory."""

    def __init__(self, source: Disk, disk: Disk) -> None:
        self.source = source
        self.disk = disk

    def flush_both(self, number: int, flush: Callable[[], None]) -> None:
        """Make a commit durable here and in the space at the same time. Raises the first FlushFailed of the two.

        Args:
            flush: makes the commit durable in the space.
        """
        failed: list[BaseException | None] = []
        done = threading.Event()

        def on_done(error: BaseException | None) -> None:
            failed.append(error)
            done.set()

        completion = Completion(on_done)
        completion.expect()
        keeping = partial(self._copy_then_release, number, completion)
        if not self.source.run_beside("xaspool mirror", keeping):
            keeping()
        try:
            flush()
        finally:  # a thread that goes on could use a descriptor's number when it belongs to another file
            completion.release()
            done.wait()
        if failed[0] is not None:
            raise failed[0]

    def _copy_then_release(self, number: int, completion: Completion) -> None:
        error: BaseException | None = None
        try:
            self.copy(number)
        except BaseException as found:
            error = found
        completion.release(error)

    def copy(self, number: int, *, retired: bool = False) -> None:
        """Copy a commit's numbered file and the branches that it adopts, durable when this returns. FlushFailed.

        Without its head, a branch is in doubt: it comes first. One of a ``retired`` commit was decided long ago, and
        perhaps ``forget`` removed it: it comes behind its head, as it goes before it.
        """
        name = layout.committed(number)
        try:
            with opened(self.source, name) as handle:
                adopts = read_header(self.source, handle).adopts
            branches = [(layout.prepared(one.xid), layout.committed(number, k)) for k, one in enumerate(adopts, 1)]
            steps: list[list[tuple[str, ...]]] = [[*branches], [(name,)]]
            for files in reversed(steps) if retired else steps:
                for names in files:
                    source = open_first(self.source, names)
                    if source is not None:  # else it was reclaimed, and its head not yet
                        self._copy(source, names[-1])
                if files:
                    self.disk.flush_directory("")
        except (OSError, CorruptedFile) as error:
            code = error.errno if isinstance(error, OSError) else None
            raise FlushFailed(code or 0, f"the mirror {self.disk.root} cannot take commit {number}: {error}") from error

    def _copy(self, source: int, target: str) -> None:
        """Copy a file of the space under its name in ``committed/``, and close ``source``, its descriptor."""
        target = _here(target)
        temporary = f"{target}{_TEMPORARY}"
        try:
            unlink_if_there(self.disk, temporary)
            with new_file(self.disk, temporary) as handle:
                write_chunks(self.disk, handle, chunks(self.source, source))
                self.disk.flush(handle)
        finally:
            self.source.close(source)
        self.disk.rename(temporary, target)

    def forget(self, adopted: Mapping[int, int]) -> None:
        """Remove the files of commits before they are removed from the space, durable when this returns.

        A file that stayed here would be true again in a space made from the mirror, once nothing contradicts it.

        Args:
            adopted: by number, how many branches the commit adopts.
        """
        branches = [
            layout.committed(number, place) for number, count in adopted.items() for place in range(1, count + 1)
        ]
        self._remove(branches)
        self._remove(map(layout.committed, adopted))

    def _remove(self, names: Iterable[str]) -> None:
        """Remove those of the files that are there; durable when this returns."""
        removed = False
        for name in map(_here, names):
            if self.disk.exists(name):
                self.disk.unlink(name)
                removed = True
        if removed:
            self.disk.flush_directory("")

    def catch_up(self, retired: Set[int]) -> None:
        """Copy the commits that are not here, and remove files that are only here. No other process has the space open.

        Args:
            retired: the numbers that reclaim has recorded as going.

        Raises:
            InvalidArgument: this is the mirror of another space.
        """
        there = {name for name in self.source.names(layout.COMMITTED) if layout.parse_committed(name)}
        here = set(self.disk.names(""))
        self._check_ours(there & here)
        numbers = {int(name[:16]) for name in there - here}
        for number in sorted(numbers):
            if layout.committed(number).rpartition("/")[2] in there:
                self.copy(number, retired=number in retired)
        # A commit that only the mirror has was never reported: its head goes first, or half of the commit would stay.
        only_here = sorted(here - there)
        self._remove(name for name in only_here if (found := layout.parse_committed(name)) and not found.adoption)
        self._remove(name for name in only_here if layout.parse_committed(name.removesuffix(_TEMPORARY)))

    def _check_ours(self, both: set[str]) -> None:
        """Raise InvalidArgument if the newest file that both have differs. ``both``: the names of such files."""
        if not both:
            return
        newest = max(both)
        if read_start(self.source, f"{layout.COMMITTED}/{newest}", 4096) != read_start(self.disk, newest, 4096):
            raise InvalidArgument(
                f"{self.disk.root} holds another {newest} than the space: it is the mirror of another space, or was "
                "changed; empty it, or name another directory in space.toml"
            )


def _here(name: str) -> str:
    return name.rpartition("/")[2]
