"""A flush fails, the kernel drops the unwritten bytes, and the power fails: the space tells the truth afterwards."""

import errno

import spool
from tests import door
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.harness import Faults, Trial, expect, play, telling, told
from tests.faults.plan import FLUSHES, Plan, Spread
from tests.histories.contents import AFTER, Contents
from tests.machine import Machine
from tests.simdisk import SimulatedDisk, repeatable
from tests.survivors import Rules, survivors


class FailedFlushes(Faults):
    """Each flush of one history fails; then the power is cut, at once or after the space was opened again."""

    def each(self, rules: Rules, spread: Spread, *, limit: int) -> int:
        """How many disks were looked at."""
        disks, begin = 0, 1
        while True:
            plan = Plan(errno.EIO, begin, spread, hits=FLUSHES)
            with telling(f"{self.history}: {plan}, then a power cut", plan):
                machine, trial = self._run(plan)
                if not plan.failed:
                    return disks
                self._count(plan, trial)
                disks += self._cut(machine, trial.allowed, rules, limit)
                disks += self._open_again_and_cut(self._well_again(machine, spread), trial, rules, limit)
            begin += 1

    def _run(self, plan: Plan) -> tuple[Machine, Trial]:
        machine = Machine(self.base, boot=2, **self.told)
        with repeatable(2):
            disk = FaultySimulatedDisk(machine, plan)
            _, trial = play(self.history, disk, plan)
            machine.kill(disk)
        return machine, trial

    def _well_again(self, machine: Machine, spread: Spread) -> Machine:
        """A file system that became read-only is only written again after it was unmounted: the page cache is gone."""
        if spread is Spread.READ_ONLY:
            return Machine(machine.image(), boot=machine.boot, **self.told)
        return machine.copy()

    def _cut(
        self, machine: Machine, allowed: frozenset[Contents], rules: Rules, limit: int, *, reasons: bool = True
    ) -> int:
        found = list(survivors(machine, rules, limit=limit))
        for survivor in found:
            with telling(survivor.story, Plan()), repeatable(3):
                after = Machine(survivor.image, boot=machine.boot + 1, **self.told)
                self.reopen(after, allowed | self._may_return, reasons=reasons)
        return len(found)

    def _open_again_and_cut(self, machine: Machine, trial: Trial, rules: Rules, limit: int) -> int:
        """In the same boot the page cache shows more than the disk has. Contents that an opener shows must remain."""
        disk = SimulatedDisk(machine)
        with telling("opened again, then the power cut", Plan()), repeatable(4):
            space = spool.open(disk)
            shown = self.look(space)
            expect(shown in trial.allowed, f"found {shown}, allowed {told(trial.allowed)}")
            space.put(AFTER, "next")
            door.reclaim(space)
            machine.kill(disk)
            again = [inode for inode in machine.flushed_again if inode.entries is None]
            expect(not again, f"{len(again)} files were flushed again after a failed flush")
            # (a power cut may complete a rollback that failed: its coordinator wants nothing else)
            undone = trial.allowed & {self.history.decided.get(trial.contents, {}).get("rollback")}
            back = {contents.put(AFTER, "next") for contents in self._may_return | undone}
            return self._cut(machine, frozenset([shown.put(AFTER, "next"), *back]), rules, limit, reasons=False)

    @property
    def _may_return(self) -> frozenset[Contents]:
        """A branch whose vote failed may be there after the power cut."""
        return self.history.may_return | self.history.decided.keys()
