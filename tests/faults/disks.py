"""Disks whose calls fail by a plan: one over real files, one over the simulated machine's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from spool.disk import Disk
from tests.faults.plan import Plan
from tests.machine import Machine
from tests.simdisk import SimulatedDisk

# One of the 64 stands for all.
_ALIKE, _FIRST_OF_THEM = "run/claims-", "run/claims-0"

_BY_NAME = (
    "create", "open_directory", "rename", "rename_new", "link", "unlink", "identity", "names", "make_directory",
    "remove_directory", "read_at", "truncate", "handle_identity", "has_writer",
)  # fmt: skip


def _failing(call: str) -> Callable[..., Any]:
    def attempt(self: Any, *args: Any, **options: Any) -> Any:
        self._may_fail(call, args[0])
        return getattr(super(_Faulty, self), call)(*args, **options)

    attempt.__name__ = call
    return attempt


class _Faulty:
    """Mixed in front of a disk."""

    plan: Plan

    def _may_fail(self, call: str, what: object) -> None:
        if str(what).startswith(_ALIKE) and not str(what).startswith(_FIRST_OF_THEM):
            return
        if (code := self.plan.fails(call)) is not None:
            raise self.plan.error(call, code, what)

    def open(self, name: str, *, write: bool = False) -> int:
        self._may_fail("open", name)
        if write:
            self._may_fail("open_to_write", name)
        return super().open(name, write=write)  # type: ignore[misc, no-any-return]

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        if (code := self.plan.fails("write_at")) is not None:
            super().write_at(handle, offset, data[: len(data) // 2])  # type: ignore[misc]
            raise self.plan.error("write_at", code, handle)
        super().write_at(handle, offset, data)  # type: ignore[misc]

    @contextmanager
    def exclusively(self, name: str) -> Iterator[bool]:
        self._may_fail("exclusively", name)
        guard: AbstractContextManager[bool] = super().exclusively(name)  # type: ignore[misc]
        with guard as ours:
            yield ours


for _call in _BY_NAME:
    setattr(_Faulty, _call, _failing(_call))


class FaultyDisk(_Faulty, Disk):
    """Over real files."""

    def __init__(self, root: str, plan: Plan) -> None:
        self.plan = plan
        super().__init__(root)

    def exists(self, name: str) -> bool:
        self._may_fail("exists", name)
        return super().exists(name)

    def flush_directory(self, name: str) -> None:
        self._may_fail("flush_directory", name)
        super().flush_directory(name)

    def flush(self, handle: int, **how: bool) -> None:
        self._may_fail("flush", handle)
        super().flush(handle, **how)


class FaultySimulatedDisk(_Faulty, SimulatedDisk):
    """A disk over a simulated machine that loses the bytes of a failed flush.

    Fails a test that flushes an inode again whose flush has failed: the kernel would say "fine".
    """

    def __init__(self, machine: Machine, plan: Plan) -> None:
        self.plan = plan
        super().__init__(machine)

    def flush(self, handle: int, *, data_only: bool = False) -> None:
        if (code := self.plan.fails("flush")) is not None:
            self.machine.fail_flush(self._handle(handle))
            raise self.plan.error("flush", code, handle)
        super().flush(handle, data_only=data_only)

    def flush_directory(self, name: str) -> None:
        self._may_fail("flush_directory", name)
        super().flush_directory(name)
