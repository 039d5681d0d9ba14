"""A flush fails, the kernel drops the unwritten bytes, and the power fails: the space tells the truth afterwards."""

import errno

import spool
from tests import door
from tests.crash.contents import AFTER, Contents
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.harness import Faults, Outcome, expect, look, play, telling, told
from tests.faults.histories import Actor
from tests.faults.plan import FLUSHES, Plan, Spread
from tests.machine import Machine
from tests.simdisk import SimulatedDisk, repeatable
from tests.survivors import Rules, survivors


class FailedFlushes(Faults):
    """Each flush of one history fails; then the power is cut, at once or after the space was opened again."""

    def each(self, rules: Rules, spread: Spread, *, limit: int) -> int:
        """How many disks were looked at."""
        disks = 0
        begin = 1
        while True:
            plan = Plan(errno.EIO, begin, spread, hits=FLUSHES)
            with telling(f"{self.history}: {plan}, then a power cut", plan):
                machine, outcome = self._run(plan)
                if not plan.failed:
                    return disks
                self._count(plan, outcome)
                disks += self._cut(machine, outcome.allowed, rules, limit)
                disks += self._open_again_and_cut(self._well_again(machine, spread), outcome, rules, limit)
            begin += 1

    def _run(self, plan: Plan) -> tuple[Machine, Outcome]:
        machine = Machine(self.base, boot=2, **self.told)
        with repeatable(2):
            plan.armed = False
            disk = FaultySimulatedDisk(machine, plan)
            actor = Actor(spool.open(disk))
            plan.armed, plan.calls = True, 0
            outcome = play(self.history.steps, actor, frozenset([self.history.begin]))
            machine.kill(disk)
        return machine, outcome

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
                self.reopen(after, allowed | self.history.may_return, reasons=reasons)
        return len(found)

    def _open_again_and_cut(self, machine: Machine, outcome: Outcome, rules: Rules, limit: int) -> int:
        """In the same boot the page cache shows more than the disk has. Contents that an opener shows must remain."""
        disk = SimulatedDisk(machine)
        with telling("opened again, then the power cut", Plan()), repeatable(4):
            space = spool.open(disk)
            shown = look(space)
            expect(shown in outcome.allowed, f"found {shown}, allowed {told(outcome.allowed)}")
            space.put(AFTER, "next")
            door.reclaim(space)
            machine.kill(disk)
            again = [inode for inode in machine.flushed_again if inode.entries is None]
            expect(not again, f"{len(again)} files were flushed again after a failed flush")
            back = {contents.put(AFTER, "next") for contents in self.history.may_return}
            return self._cut(machine, frozenset([shown.put(AFTER, "next"), *back]), rules, limit, reasons=False)
