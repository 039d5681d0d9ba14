"""A second directory in which every commit is durable, too, before anybody hears of it.

It holds each commit's files under their names in ``committed/``, byte for byte: whoever loses the space's disk makes a
new space and puts them into its ``committed/``. A mirror that fails is a flush that failed: the commit is unknown and
the space stops, until the mirror is mended, or taken out of ``space.toml``. Whoever opens the space alone brings the
mirror up to date first.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from spool.disk.content import chunks, new_file, unlink_if_there, write_chunks
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

    def keep_beside(self, number: int, flush: Callable[[], None]) -> None:
        """Make a commit durable on both sides at once; ``flush`` does it on the space's own. FlushFailed of either."""
        failed: list[BaseException | None] = []
        done = threading.Event()

        def told(error: BaseException | None) -> None:
            failed.append(error)
            done.set()

        completion = Completion(told)
        completion.expect()
        keeping = partial(self._keep, number, completion)
        if not self.source.run_beside("xaspool mirror", keeping):
            keeping()
        try:
            flush()
        finally:  # its thread must not use descriptors that may be closed by then, and somebody else's
            completion.release()
            done.wait()
        if failed[0] is not None:
            raise failed[0]

    def _keep(self, number: int, completion: Completion) -> None:
        error: BaseException | None = None
        try:
            self.keep(number)
        except BaseException as found:
            error = found
        completion.release(error)

    def keep(self, number: int) -> None:
        """The numbered file and the branches that it adopts, durable here. FlushFailed if that cannot be."""
        name = layout.committed(number)
        try:
            handle = self.source.open(name)
            try:
                adopts = read_header(self.source, handle).adopts
            finally:
                self.source.close(handle)
            for place, adoption in enumerate(adopts, 1):
                there = layout.committed(number, place)
                source = self._open_first(layout.prepared(adoption.xid), there)
                if source is not None:  # else it was reclaimed, and its head not yet
                    self._copy(source, there)
            if adopts:
                self.disk.flush_directory("")
            self._copy(self.source.open(name), name)
            self.disk.flush_directory("")
        except (OSError, CorruptedFile) as error:
            code = error.errno if isinstance(error, OSError) else None
            raise FlushFailed(code or 0, f"the mirror {self.disk.root} cannot take commit {number}: {error}") from error

    def _copy(self, source: int, target: str) -> None:
        """A file of the space's, which is closed, under the name that it has or will have in ``committed/``."""
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

    def _open_first(self, *names: str) -> int | None:
        """The first of the space's files that is there; in the direction in which files move."""
        for name in names:
            with suppress(FileNotFoundError):
                return self.source.open(name)
        return None

    def forget(self, adopted: Mapping[int, int]) -> None:
        """These commits' files, and those that each ``adopted``, are about to go from the space. They go from here
        first, and durably: were they left behind, what they say would be true here again once nothing contradicts it.
        """
        branches = [
            layout.committed(number, place) for number, count in adopted.items() for place in range(1, count + 1)
        ]
        self._remove(branches)
        self._remove(map(layout.committed, adopted))

    def _remove(self, names: Iterable[str]) -> None:
        """Durably."""
        removed = False
        for name in map(_here, names):
            if self.disk.exists(name):
                self.disk.unlink(name)
                removed = True
        if removed:
            self.disk.flush_directory("")

    def catch_up(self) -> None:
        """By who has the space alone: whatever is in ``committed/`` and not here, and away with what is only here."""
        there = {name for name in self.source.names(layout.COMMITTED) if layout.parse_committed(name)}
        here = set(self.disk.names(""))
        self._check_ours(there & here)
        numbers = {int(name[:16]) for name in there - here}
        for number in sorted(numbers):
            if layout.committed(number).rpartition("/")[2] in there:
                self.keep(number)
        self._remove(name for name in sorted(here - there) if layout.parse_committed(name.removesuffix(_TEMPORARY)))

    def _check_ours(self, both: set[str]) -> None:
        """InvalidArgument if it is the mirror of another space."""
        if not both:
            return
        newest = max(both)
        headers = []
        for disk, name in ((self.source, f"{layout.COMMITTED}/{newest}"), (self.disk, newest)):
            handle = disk.open(name)
            try:
                headers.append(disk.read_at(handle, 0, 4096))
            finally:
                disk.close(handle)
        if headers[0] != headers[1]:
            raise InvalidArgument(
                f"{self.disk.root} holds another {newest} than the space: it is the mirror of another space, or was "
                "changed; empty it, or name another directory in space.toml"
            )


def _here(name: str) -> str:
    return name.rpartition("/")[2]
