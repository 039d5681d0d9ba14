"""Cut the power at every call of a program that decides, and let recoveries read every disk that may be left."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from spool.decisions import LogDirectory
from tests.decisions import machines
from tests.machine import Machine, PowerCut
from tests.simdisk import CHANGES, SimulatedDisk
from tests.survivors import Rules, survivors


@dataclass
class Cuts:
    """All cuts of one program by one rule set.

    successor: the program of another process, which runs after the death of the first one. every: cut before every
    so-manieth call that changes the disk. per_cut: at most so many survivors of each cut; per_recovery_cut: of each cut
    of a recovery. disk, later_disk: the disks of the program, and of its successor and of recoveries, for planted bugs.
    disks: the number of disks that were read.
    """

    program: machines.Program
    rules: Rules
    successor: machines.Program
    every: int = 1
    per_cut: int = 100
    per_recovery_cut: int = 20
    disk: type[SimulatedDisk] = SimulatedDisk
    later_disk: type[SimulatedDisk] = SimulatedDisk
    disks: int = 0
    cuts: int = 0
    _seen: set[Hashable] = field(default_factory=set)
    _story: list[str] = field(default_factory=list)

    def explore(self) -> None:
        with machines.overwritten_in_place():
            for step in self._steps():
                machine, told, call = self._cut_at(step)
                with self._telling(f"the program ended before {call}"):
                    self._after_a_power_cut(machine, {}, told, limit=self.per_cut, deep=True)
                    self._after_a_kill(machine, told)
                    self._with_a_successor(machine, told)

    def _steps(self) -> list[int]:
        """The steps before which a cut makes a difference: calls that change the disk, and the end."""
        machine, _, _ = self._cut_at(None)
        return [*_changing(machine)[:: self.every], len(machine.trace) + 1]

    def _cut_at(self, step: int | None) -> tuple[Machine, machines.Told, str]:
        machine = machines.new_machine(self.rules)
        machine.crash_at(step)
        process = machines.Coordinator(self.disk(machine))
        call = "its end"
        with machines.simulation(1):
            try:
                self.program(process)
            except PowerCut:
                call = machine.last_call()
        end(machine, process.disk)
        return machine, process.told, call

    # -- after the end -----------------------------------------------------------------------------------------------

    def _after_a_power_cut(
        self, machine: Machine, before: machines.Logs, *programs: machines.Told, limit: int, deep: bool = False
    ) -> None:
        """``before``: the logs that an earlier recovery has read. ``deep``: whether recoveries are cut, too."""
        self.cuts += 1
        for survivor in survivors(machine, self.rules, limit=limit, seed=self.cuts):
            read = tuple(sorted((each, found.committed) for each, found in before.items()))
            key = survivor.image, read, deep, *(told.key for told in programs)
            if key in self._seen:
                continue
            self._seen.add(key)
            with self._telling(f"power cut: {survivor.story}"):
                boot = partial(machines.new_machine, self.rules, survivor.image, machine.boot + 1)
                self._recover(boot, before, *programs)
                if deep:
                    self._cut_recoveries(boot, *programs)

    def _after_a_kill(self, machine: Machine, *programs: machines.Told) -> None:
        """The page cache remains, and a recovery must not trust it."""
        with self._telling("killed, no power cut"):
            twin = machine.copy()
            logs = self._recover(lambda: twin, {}, *programs)
            with self._telling("a recovery ended"):
                self._after_a_power_cut(twin, logs, *programs, limit=self.per_recovery_cut)
            self._cut_recoveries(machine.copy, *programs)

    def _with_a_successor(self, machine: Machine, told: machines.Told) -> None:
        twin = machine.copy()
        process = machines.Coordinator(self.later_disk(twin))
        with self._telling("killed, and another program went on"), machines.simulation(2):
            self.successor(process)
            machines.check(process.logs, told)
            end(twin, process.disk)
            self._after_a_power_cut(twin, process.logs, told, process.told, limit=self.per_cut)

    def _recover(self, boot: Callable[[], Machine], before: machines.Logs, *programs: machines.Told) -> machines.Logs:
        """Run a whole recovery."""
        self.disks += 1
        logs: machines.Logs = {}
        machines.check_identity(recover(self.later_disk(boot()), logs), *programs)
        machines.check(logs, *programs)
        machines.check_kept(before, logs, *programs)
        return logs

    def _cut_recoveries(self, boot: Callable[[], Machine], *programs: machines.Told) -> None:
        """Cut a recovery at each step. The logs that it has read by then may have been acted on."""
        whole = boot()
        begin = len(whole.trace)
        recover(self.later_disk(whole), {})
        for step in _changing(whole, begin):
            machine, logs = boot(), machines.Logs()
            assert len(machine.trace) == begin
            machine.crash_at(step)
            with suppress(PowerCut):
                recover(self.later_disk(machine), logs)
            machine.crash_at(None)
            with self._telling(f"recovery ended before {machine.last_call()}"):
                self._after_a_power_cut(machine, logs, *programs, limit=self.per_recovery_cut)
                self._recover(machine.copy, logs, *programs)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Add the way to a failure, outermost first."""
        self._story.append(what)
        try:
            yield
        except Exception as error:
            if self._story:
                error.add_note("\n  ".join([f"{self.rules.value} file system", *self._story]))
                self._story.clear()
            raise
        finally:
            if self._story:
                self._story.pop()


def recover(process: SimulatedDisk, logs: machines.Logs) -> LogDirectory:
    """Read the logs of dead coordinators in a process that then ends."""
    with machines.simulation(3):
        directory = LogDirectory(process)
        machines.read_logs(directory, logs)
    end(process.machine, process)
    return directory


def end(machine: Machine, process: SimulatedDisk) -> None:
    machine.crash_at(None)
    machine.kill(process)


def _changing(machine: Machine, begin: int = 0) -> list[int]:
    return [step for step, (call, _) in enumerate(machine.trace, 1) if call in CHANGES and step > begin]
