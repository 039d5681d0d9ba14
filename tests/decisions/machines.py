"""Coordinators on a simulated machine, and the promises that their logs keep through kills and power cuts.

``Told`` is what a program was told by its log. ``check`` compares it with the logs that a recovery reads later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from spool.decisions import DecisionLog, LogContents, LogDirectory, directory, log, records
from spool.errors import CommitUnknown, SpoolError
from tests import survivors as rules_of_survivors
from tests.decisions.waiting import announced, ended
from tests.held import Caller
from tests.machine import NO_FILES, Image, Inode, Machine
from tests.simdisk import ROOT, SimulatedDisk, repeatable
from tests.survivors import Rules

SLOTS = 4

Logs = dict[bytes, LogContents]


@contextmanager
def simulation(seed: int) -> Iterator[None]:
    """Use the same random ids in each run, short logs, and no directory of the real machine."""
    with repeatable(seed), short_logs(), mock.patch("os.path.isdir", ROOT.__eq__), mock.patch.object(directory, "Disk"):
        yield


@contextmanager
def short_logs(slots: int = SLOTS) -> Iterator[None]:
    """Let few decisions fill a log."""
    with mock.patch.object(records, "SLOTS", slots), mock.patch.object(log, "SLOTS", slots):
        yield


@contextmanager
def overwritten_in_place() -> Iterator[None]:
    """No power cut turns flushed bytes into zeros: a log keeps its size and blocks, so only new bytes can be lost."""
    contents = rules_of_survivors._contents

    def without_zeros(inode: Inode) -> list[bytes]:
        return [data for data in contents(inode) if data.strip(b"\0") or not inode.flushed]

    with mock.patch.object(rules_of_survivors, "_contents", without_zeros):
        yield


def new_machine(rules: Rules, image: Image = NO_FILES, boot: int = 1) -> Machine:
    told = rules.told
    return Machine(image, boot=boot, ordered=told["ordered"], carries=told["carries"], follow=told["follow"])


# -- a program -------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """The calls of one coordinator: those that have begun, and those that have returned.

    directory: the id of the directory. coordinator: its id, once it has a log. refused: the decisions that were
    certainly not made. removing: whether the log may be removed.
    """

    directory: bytes | None = None
    coordinator: bytes | None = None
    registering: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)
    deciding: set[int] = field(default_factory=set)
    decided: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    removing: bool = False

    @property
    def key(self) -> object:
        """Equal keys mean equal promises."""
        names = frozenset(self.registering), frozenset(self.registered)
        serials = (frozenset(found) for found in (self.deciding, self.decided, self.refused, self.ended))
        return self.coordinator, self.removing, *names, *serials


class Coordinator:
    """The calls of one coordinator, noted in ``told``.

    logs: the logs of dead coordinators that it has read. errors: those that it was told. Unless it is ``daring``, it
    ends with the first error.
    """

    def __init__(self, disk: SimulatedDisk, *, daring: bool = False) -> None:
        self.disk = disk
        self.told = Told()
        self.logs: Logs = {}
        self.errors: list[Exception] = []
        self._daring = daring

    def open(self) -> None:
        self.directory = LogDirectory(self.disk)
        self.log = DecisionLog(self.directory)
        self.told.directory, self.told.coordinator = self.directory.id, self.log.coordinator

    def recover(self) -> None:
        """Read the logs of dead coordinators."""
        read_logs(self.directory, self.logs)

    def register(self, resource: str) -> None:
        self.told.registering.add(resource)
        with self._noting():
            self.log.register(resource)
            self.told.registered.add(resource)

    def decide(self, serial: int) -> None:
        self.told.deciding.add(serial)
        with self._noting():
            try:
                self.log.record(serial)
            except CommitUnknown:
                raise
            except (SpoolError, OSError):
                self.told.refused.add(serial)  # (the transaction is rolled back)
                raise
            self.told.decided.add(serial)

    def decide_together(self, first: int, second: int) -> None:
        """Decide in two threads: the second one writes its slot while the first one flushes."""
        flush, callers = self.disk.flush, list[Caller]()

        def flush_later(handle: int, *, data_only: bool = False) -> None:
            if not self.log._writing.locked():  # (otherwise the log is written again)
                del self.disk.flush
                with announced(self.log) as arrivals:
                    callers.extend(arrivals.starting(lambda: self.decide(second)))
            flush(handle, data_only=data_only)

        self.disk.flush = flush_later  # type: ignore[method-assign]
        try:
            self.decide(first)
        finally:
            vars(self.disk).pop("flush", None)
            ended(*callers)
        for caller in callers:
            if caller.error is not None:
                raise caller.error

    def end(self, *serials: int) -> None:
        for serial in self.told.decided.intersection(serials):
            self.told.ended.add(serial)
            self.log.end(serial)

    def close(self, *, remove: bool = True) -> None:
        """Close the log. It must remain if a branch may be in doubt, even if the caller asks for its removal."""
        self.told.removing = remove and self.told.deciding == self.told.ended | self.told.refused
        with self._noting():
            self.log.close(remove=remove)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (SpoolError, OSError) as error:
            self.errors.append(error)
            if not self._daring:
                raise


Program = Callable[[Coordinator], None]


def read_logs(directory: LogDirectory, logs: Logs) -> None:
    """Read the logs of the dead coordinators as a recovery does, one after the other."""
    for coordinator in directory.coordinators():
        if directory.is_alive(coordinator):
            continue
        if (found := directory.read_dead(coordinator)) is not None:
            logs[coordinator] = found


# -- the promises ----------------------------------------------------------------------------------------------------


def check(logs: Logs, *programs: Told) -> None:
    """Expect the promised decisions and resources in the logs of programs that have died, and no others."""
    told_to = {told.coordinator: told for told in programs}
    for coordinator, found in logs.items():
        told = told_to.get(coordinator, Told())
        invented = found.committed - (told.deciding - told.refused)
        assert not invented, f"decisions {sorted(invented)} were found and never made; {told}"
        assert told.registering.issuperset(found.resources), f"{found.resources} were never registered; {told}"
    for told in programs:
        if told.coordinator is None or (told.removing and told.coordinator not in logs):
            continue
        assert told.coordinator in logs, f"the log was lost; {told}"
        found = logs[told.coordinator]
        lost = told.decided - told.ended - found.committed
        assert not lost, f"decisions {sorted(lost)} were lost; {told}"
        assert told.registered.issubset(found.resources), f"only {found.resources} were found; {told}"


def check_identity(directory: LogDirectory, *programs: Told) -> None:
    """Expect the id of the directory that each program with a log has used."""
    used = {told.directory for told in programs if told.coordinator is not None}
    assert used <= {directory.id}, f"the directory has a new id: {directory.identity}"


def check_kept(before: Logs, logs: Logs, *programs: Told) -> None:
    """Expect the same decisions as an earlier recovery has read, which may have acted on them."""
    ended_by = {told.coordinator: told.ended for told in programs}
    for coordinator, read in before.items():
        now = logs[coordinator].committed if coordinator in logs else frozenset()
        assert read.committed <= now, f"a recovery has read {sorted(read.committed)}, and now there are {sorted(now)}"
        returned = now - read.committed - ended_by.get(coordinator, set())
        assert not returned, f"decisions {sorted(returned)} are back, which a recovery did not find"
