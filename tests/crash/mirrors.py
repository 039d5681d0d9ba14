"""A mirror on a separate disk: a space made of the mirror alone, and the order of the two flushes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import spool
from spool.model import layout
from tests.at_once import AT_ONCE
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import SimulatedDisk, repeatable

MIRROR = "/mirror"
_APART = 1_000_000  # of the numbers of inodes of two disks


def new_space(machine: Machine, queues: tuple[str, ...]) -> Image:
    """An empty space without a mirror."""
    with repeatable(1), spool.create(SimulatedDisk(machine), defaults=AT_ONCE) as space:
        for queue in queues:
            space.create_queue(queue)
    return machine.image()


def restored(empty: Image, mirror: Image) -> Image:
    """A new space into which a mirror's commits and votes were copied, as ``docs/architecture.md`` says."""
    kinds = {layout.COMMITTED: layout.parse_committed, layout.PREPARED: layout.parse_xid}
    copied = [
        (f"{directory}/{name}", _APART + number, data)
        for name, number, data in mirror.files
        for directory, is_one in kinds.items()
        if is_one(name)
    ]
    return Image(tuple(sorted((*empty.files, *copied), key=lambda file: file[0])))


def without_its_mirror(image: Image) -> Image:
    """Return the image with an empty disk in place of the mirror's."""
    return image._replace(beside=NO_FILES)


# -- the order of the two flushes -------------------------------------------------------------------------------------

_put_off = threading.local()


class MirrorLast(SimulatedDisk):
    """A process that begins a commit's copy for the mirror after the space's own flush. Other simulated processes begin
    with the copy; the two threads of a real process flush in any order. Inside ``mirrors_last``."""

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        if "mirror" not in name:
            return super().run_beside(name, run)
        _put_off.run = run
        return True


class _Event(threading.Event):
    """A thread that waits for the mirror's thread does its work."""

    def wait(self, timeout: float | None = None) -> bool:
        run, _put_off.run = getattr(_put_off, "run", None), None
        if run is not None:
            run()
        assert self.is_set()
        return True


@contextmanager
def mirrors_last() -> Iterator[None]:
    with mock.patch("spool.store.mirror.threading", SimpleNamespace(Event=_Event)):
        yield
