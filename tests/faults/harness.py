"""Let one call fail, and compare the error that the caller gets with the space afterwards."""

import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import spool
from spool.admin.findings import Kind
from spool.errors import CommitUnknown, SpaceStopped, SpoolError
from spool.log.sequence import settle_all
from spool.transactions.two_phase import resolve_orphans
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.contents import AFTER, QUEUES, Contents
from tests.crash.contents import look as look_now
from tests.faults.disks import FaultySimulatedDisk
from tests.faults.histories import Actor, History, Step
from tests.faults.plan import Plan, Spread
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
        for queue in reversed(QUEUES):  # one that another names comes first
            space.create_queue(queue, **history.options.get(queue, {}))
        history.setup(space)
    return machine.image()


@dataclass
class Outcome:
    """The state of a history: the contents that may be found now."""

    allowed: frozenset[Contents]
    error: BaseException | None = None
    unknown: bool = False


def play(steps: Iterable[Step], actor: Actor, allowed: frozenset[Contents]) -> Outcome:
    """Step by step, up to the first error."""
    for step in steps:
        try:
            step.act(actor)
        except (SpoolError, XAError) as error:
            return _failed(step, error, allowed)
        except Exception as error:
            raise Violation(f"the caller saw {type(error).__name__}: {error}") from error
        allowed = frozenset(_after(step, allowed, failed=False))
    return Outcome(allowed)


def _failed(step: Step, error: Exception, allowed: frozenset[Contents]) -> Outcome:
    unknown = step.unsure or is_unknown(step, error)
    if unknown:
        allowed |= frozenset(_after(step, allowed, failed=True))
    return Outcome(allowed, error, unknown)


def _after(step: Step, candidates: Iterable[Contents], *, failed: bool) -> Iterator[Contents]:
    for contents in candidates:
        yield step.effect(contents)
        yield from step.or_else(contents)


def is_unknown(step: Step, error: Exception) -> bool:
    """Return whether the error means an unknown outcome. A code that fits neither an unknown outcome nor a failure is a
    violation."""
    if not isinstance(error, XAError):
        return isinstance(error, CommitUnknown)
    if error.code in (XA_RETRY, XAER_RMFAIL):
        return True
    if XA_RBBASE <= error.code <= XA_RBEND or (error.code == XAER_RMERR and not step.decides):
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
            plan.armed = False
            disk = FaultySimulatedDisk(machine, plan)
            space = spool.open(disk)
            plan.armed = True
            plan.calls = 0
            actor = Actor(space)
            outcome = play(self.history.steps, actor, frozenset([self.history.begin]))
            if outcome.error is not None and plan.spread is not Spread.ONCE:
                outcome = try_everything(actor, outcome)
            plan.armed = False
            self._count(plan, outcome)
            if not plan.failed:
                return False
            self._look(machine, actor, other, outcome, plan)
            space.close()
            left = [handle for handle in machine.handles.values() if handle.process is disk]
            expect(not left, f"{len(left)} descriptors are left open")
            other.close()
            again = [inode for inode in machine.flushed_again if inode.entries is None]
            expect(not again, f"{len(again)} files were flushed again after a failed flush")
        return True

    def _count(self, plan: Plan, outcome: Outcome) -> None:
        if plan.failed:
            self.tally.faults += 1
            self.tally.stopped += plan.failed_flushes > 0
            self.tally.unknown += outcome.unknown
            self.tally.raised += outcome.error is not None
            self.tally.survived += outcome.error is None

    def reopen(self, machine: Machine, allowed: frozenset[Contents], *, reasons: bool = True) -> None:
        """A new opening tells the truth, and so does the next one; unfinished work can be finished.

        Different faults leave the same disk, which is checked once."""
        key = machine.seen_by_processes(), allowed, reasons
        if key in self._reopened:
            return
        with spool.open(SimulatedDisk(machine)) as space:
            shown = look(space)
            expect(shown in allowed, f"found {shown}, allowed {told(allowed)}")
            expect_no_damage(space, reasons=reasons)
        with spool.open(SimulatedDisk(machine)) as space:
            expect(look(space) == shown, f"found {look(space)} the second time, {shown} the first")
            finish(Actor(space), self.history, shown)
            drain(space, look(space))
            expect_no_damage(space, reasons=reasons)
        self._reopened.add(key)

    def _look(self, machine: Machine, actor: Actor, other: spool.Space, outcome: Outcome, plan: Plan) -> None:
        """After a fault the disk is well again."""
        with telling("killed here, then opened again", plan):
            self.reopen(machine.copy(), outcome.allowed)
        stopped = [space for space in (actor.space, other) if not door.store(space).closed and is_stopped(space)]
        for space in stopped:
            expect_stopped(space)
        if other in stopped:
            return
        if plan.failed_flushes:
            expect(
                bool(stopped) or door.store(actor.space).closed or self.history.by_task, "a failed flush stopped nobody"
            )
            with telling("the others cannot be told that the space has stopped", plan):
                expect(any(call.startswith("write_at") for call in plan.failed), "and were not told")
                shown = look(other)
                expect(shown in outcome.allowed, f"found {shown}, allowed {told(outcome.allowed)}")
                drain(other, shown)
            return
        if door.store(actor.space).closed:
            return
        with telling("the same process goes on", plan):
            shown = look(actor.space)
            expect(shown in outcome.allowed, f"found {shown}, allowed {told(outcome.allowed)}")
            with telling("seen by another process", plan):
                expect(look(other) == shown, f"found {look(other)}, not {shown}")
            finish(actor, self.history, shown)
            drain(other, look(actor.space))
            expect_no_damage(actor.space)
            actor.space.put(AFTER, "next")
            assert other.get(AFTER).body == "next"


def finish(actor: Actor, history: History, shown: Contents) -> None:
    history.finish(actor)
    found = look(actor.space)
    allowed = frozenset(_with_after_of(shown, contents) for contents in history.finished) or frozenset([shown])
    expect(found in allowed, f"finishing made {found} of {shown}, not {told(allowed)}")


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


def try_everything(actor: Actor, outcome: Outcome) -> Outcome:
    """While the disk still fails, every further call succeeds or raises a clear error."""
    space = actor.space
    put = Step(lambda actor: actor.space.put(AFTER, "more"), lambda contents: contents.put(AFTER, "more"))
    asked = (lambda: list(space.browse("a")), lambda: space.get("a", message_id="0" * 32), space.stats, space.check)
    steps = (put, *(Step(lambda actor, call=call: call(), lambda contents: contents) for call in asked))
    allowed = outcome.allowed
    for step in steps:
        allowed = play((step,), actor, allowed).allowed
    return Outcome(allowed, outcome.error, outcome.unknown)


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
