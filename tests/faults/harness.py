"""Let one call fail, and compare the error that the caller gets with the space afterwards."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Unpack

import spool
from spool.admin.findings import Kind
from spool.disk import Disk
from spool.errors import CommitUnknown, SpaceStopped, SpoolError
from spool.log.sequence import settle_all
from spool.transactions.two_phase import resolve_orphans
from tests import door
from tests.at_once import AT_ONCE
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.plan import Plan, Spread
from tests.histories.branches import end_branches
from tests.histories.contents import AFTER, QUEUES, Contents
from tests.histories.contents import look as look_now
from tests.histories.history import Effect, Expectation, History, Options, Unmet
from tests.machine import NO_FILES, Image, Machine
from tests.simdisk import SimulatedDisk, repeatable
from xa import XA_RBBASE, XA_RBEND, XA_RETRY, XAER_RMERR, XAER_RMFAIL, XAError


class Violation(AssertionError):
    """A promise was broken; the text says how to see it again."""


@dataclass
class Tally:
    """The number of faults, and their outcomes."""

    faults: int = 0
    raised: int = 0
    unknown: int = 0
    survived: int = 0
    stopped: int = 0


def base_of(history: History, *, ordered: bool = True, carries: bool = False, follow: bool = False) -> Image:
    """The disk on which a history begins."""
    machine = Machine(NO_FILES, boot=1, ordered=ordered, carries=carries, follow=follow)
    with repeatable(1), spool.create(SimulatedDisk(machine), defaults=AT_ONCE) as space:
        for queue in QUEUES:
            space.create_queue(queue)
        history.setup(space)
    return machine.image()


class Trial(Expectation):
    """The contents that are allowed after calls on a disk that fails. A call that raised has had no effect, unless the
    error says that its outcome is unknown."""

    error: BaseException | None = None
    unknown = False

    @contextmanager
    def becoming(self, effect: Contents | Effect, **options: Unpack[Options]) -> Iterator[None]:
        change = (lambda _: effect) if isinstance(effect, Contents) else effect
        failing = options.get("failing", lambda contents: ())
        after = frozenset(each for old in self.allowed for each in (change(old), *failing(old)))
        try:
            yield
        except (SpoolError, XAError) as error:
            if options.get("unsure") or is_unknown(error, decides=options.get("decides", False)):
                self.unknown = True
                self.allowed |= after
            raise
        self.contents = change(self.contents)
        self.allowed = after

    def play(self, run: Callable[[], object]) -> None:
        """Make the calls, up to the first error."""
        try:
            run()
        except (SpoolError, XAError) as error:
            self.error = self.error or error
        except Unmet:
            pass
        except Exception as error:
            raise Violation(f"the caller saw {type(error).__name__}: {error}") from error


def is_unknown(error: Exception, *, decides: bool) -> bool:
    """Return whether the error means an unknown outcome. A code that fits neither an unknown outcome nor a failure is a
    violation."""
    if not isinstance(error, XAError):
        return isinstance(error, CommitUnknown)
    if error.code in (XA_RETRY, XAER_RMFAIL):
        return True
    if XA_RBBASE <= error.code <= XA_RBEND or (error.code == XAER_RMERR and not decides):
        return False
    raise Violation(f"the coordinator was told {error}") from error


class Faults:
    """All faults of one history on the simulated machine."""

    def __init__(self, history: History, *, ordered: bool = True, carries: bool = False, follow: bool = False) -> None:
        self.history = history
        self.told = {"ordered": ordered, "carries": carries, "follow": follow}
        self.base = base_of(history, **self.told)
        self.tally = Tally()
        self._reopened: set[Hashable] = set()

    def one(self, plan: Plan) -> bool:
        """False if the history has fewer calls than that."""
        machine = Machine(self.base, boot=2, **self.told)
        with telling(f"{self.history}: {plan}", plan), repeatable(2):
            other = spool.open(SimulatedDisk(machine))
            disk = FaultySimulatedDisk(machine, plan)
            space, trial = play(self.history, disk, plan)
            if trial.error is not None and plan.spread is not Spread.ONCE:
                try_everything(space, trial)
            plan.armed = False
            self._count(plan, trial)
            if not plan.failed:
                return False
            self._look(machine, space, other, trial, plan)
            space.close()
            left = [handle for handle in machine.handles.values() if handle.process is disk]
            expect(not left, f"{len(left)} descriptors are left open")
            other.close()
            again = [inode for inode in machine.flushed_again if inode.entries is None]
            expect(not again, f"{len(again)} files were flushed again after a failed flush")
        return True

    def _count(self, plan: Plan, trial: Trial) -> None:
        if plan.failed:
            self.tally.faults += 1
            self.tally.stopped += plan.failed_flushes > 0
            self.tally.unknown += trial.unknown
            self.tally.raised += trial.error is not None
            self.tally.survived += trial.error is None

    def reopen(self, machine: Machine, allowed: frozenset[Contents], *, reasons: bool = True) -> None:
        """A new opening tells the truth, and so does the next one; unfinished work can be finished.

        Different faults leave the same disk, which is checked once."""
        key = machine.seen_by_processes(), allowed, reasons
        if key in self._reopened:
            return
        with spool.open(SimulatedDisk(machine)) as space:
            shown = self.look(space)
            expect(shown in allowed, f"found {shown}, allowed {told(allowed)}")
            expect_no_damage(space, reasons=reasons)
        with spool.open(SimulatedDisk(machine)) as space:
            expect(look(space) == shown, f"found {look(space)} the second time, {shown} the first")
            self._decide(space, shown)
            drain(space, look(space))
            expect_no_damage(space, reasons=reasons)
        self._reopened.add(key)

    def _look(self, machine: Machine, space: spool.Space, other: spool.Space, trial: Trial, plan: Plan) -> None:
        """After a fault the disk is well again."""
        with telling("killed here, then opened again", plan):
            self.reopen(machine.copy(), trial.allowed)
        is_closed = door.store(space).closed
        stopped = [one for one in (space, other) if not door.store(one).closed and is_stopped(one)]
        for one in stopped:
            expect_stopped(one)
        if other in stopped:
            return
        if plan.failed_flushes:
            expect(bool(stopped) or is_closed or self.history.by_task, "a failed flush stopped nobody")
            with telling("the others cannot be told that the space has stopped", plan):
                expect(any(call.startswith("write_at") for call in plan.failed), "and were not told")
                shown = self.look(other)
                expect(shown in trial.allowed, f"found {shown}, allowed {told(trial.allowed)}")
                drain(other, shown)
            return
        if is_closed:
            return
        with telling("the same process goes on", plan):
            shown = self.look(space)
            expect(shown in trial.allowed, f"found {shown}, allowed {told(trial.allowed)}")
            with telling("seen by another process", plan):
                expect(look(other) == shown, f"found {look(other)}, not {shown}")
            self._decide(space, shown)
            drain(other, look(space))
            expect_no_damage(space)
            space.put(AFTER, "next")
            assert other.get(AFTER).body == "next"

    def look(self, space: spool.Space) -> Contents:
        """The contents after the unfinished work of the history is finished."""
        self.history.finish(space)
        return look(space)

    def _decide(self, space: spool.Space, shown: Contents) -> None:
        """The coordinator of the history decides the branch in doubt."""
        end_branches(space, self.history.outcome)
        promised = shown
        if shown.in_doubt:
            outcomes = self.history.decided[_with_after_of(self.history.begin, shown)]
            promised = _with_after_of(shown, outcomes[self.history.outcome])
        found = look(space)
        expect(found == promised, f"deciding made {found} of {shown}, not {promised}")


def play(history: History, disk: Disk, plan: Plan) -> tuple[spool.Space, Trial]:
    """Open the space, and make the calls of the history under the plan."""
    plan.armed = False
    space, trial = spool.open(disk), Trial(history.begin)
    plan.armed, plan.calls = True, 0
    trial.play(lambda: history.run(space, trial))
    return space, trial


def look(space: spool.Space) -> Contents:
    """The contents after the next get or commit has settled the numbers of dead or failed writers."""
    settle_all(door.store(space), door.deadline(space))
    resolve_orphans(door.store(space), door.deadline(space))
    return look_now(space)


def _with_after_of(shown: Contents, contents: Contents) -> Contents:
    """Return the contents with the messages that ``try_everything`` put."""
    return replace(
        contents, queues=(*contents.queues[:-1], shown.queues[-1]), counts=(*contents.counts[:-1], shown.counts[-1])
    )


def drain(space: spool.Space, contents: Contents) -> None:
    """Every message is delivered once and in order: no claim remains."""
    for queue, bodies in zip(QUEUES, contents.queues, strict=True):
        taken = tuple(str(message.body) for message in space.get_many(queue, 1000)) if bodies else ()
        expect(bodies == taken, f"queue {queue} showed {bodies} and gave {taken}")


def try_everything(space: spool.Space, trial: Trial) -> None:
    """While the disk still fails, every further call succeeds or raises a clear error."""

    def put() -> None:
        with trial.becoming(lambda contents: contents.put(AFTER, "more")):
            space.put(AFTER, "more")

    for call in (
        put,
        lambda: list(space.browse("a")),
        lambda: space.get("a", message_id="0" * 32),
        space.stats,
        space.check,
    ):
        trial.play(call)


def is_stopped(space: spool.Space) -> bool:
    return door.counters(space).is_stopped


def expect_stopped(space: spool.Space) -> None:
    """Expect that each call on the stopped space raises SpaceStopped."""
    for attempt in (
        lambda: space.put(AFTER, "x"),
        lambda: space.get(AFTER),
        space.stats,
        lambda: list(space.browse("a")),
    ):
        try:
            attempt()
        except SpaceStopped:
            continue
        except Exception as error:
            raise Violation(f"a stopped space said {type(error).__name__}: {error}") from error
        raise Violation("a flush failed, and the space went on")


def expect_no_damage(space: spool.Space, *, reasons: bool = True) -> None:
    """No file is damaged, and no quarantined file was promised. ``reasons``: expect the reason beside each quarantined
    file; reasons are not flushed, so not after a power cut."""
    damage = [finding for finding in space.check() if finding.kind in (Kind.DAMAGED, Kind.STRAY)]
    expect(not damage, f"damage: {[str(finding) for finding in damage]}")
    promised = [str(finding) for finding in space.quarantined() if not _TOLD_TO_NOBODY.search(finding.detail)]
    expect(not reasons or not promised, f"quarantined: {promised}")


_TOLD_TO_NOBODY = re.compile("writer died|stale bytes of another commit|its vote was never acknowledged")


def expect(true: bool, what: str) -> None:
    if not true:
        raise Violation(what)


def told(candidates: Iterable[Contents]) -> str:
    return " or ".join(sorted(map(str, candidates)))


@contextmanager
def telling(what: str, plan: Plan) -> Iterator[None]:
    """The way to a failure, outermost first."""
    try:
        yield
    except Violation as error:
        raise Violation(f"{what}\n  {error}") from error
    except Exception as error:
        raise Violation(f"{what}\n  {type(error).__name__}: {error}\n  ({plan})") from error
