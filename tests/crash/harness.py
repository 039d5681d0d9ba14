"""Cut the power at every step of a short history, and look at every disk that may be left."""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import spool
from spool import mirrors
from spool.admin.findings import Finding, Kind
from spool.model import layout
from spool.transactions.two_phase import in_doubt
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.kinds import kinds_of
from tests.crash.mirrors import MIRROR, mirrors_last, new_space, restored, without_its_mirror
from tests.histories.branches import decide
from tests.histories.contents import AFTER, QUEUES, Contents, look
from tests.histories.history import Expectation, History
from tests.machine import NO_FILES, Image, Machine, PowerCut
from tests.simdisk import CHANGES, SimulatedDisk, repeatable
from tests.strides import some
from tests.survivors import Rules, Survivor, survivors

SEED = 1
_OF_MIRROR = 24
_MIRRORS_LOST = 4  # of every so-manieth disk the mirror is lost altogether


class Violation(AssertionError):
    """A promise was broken; the text says how to see it again."""


@dataclass
class Tally:
    """How much was looked at."""

    cuts: int = 0
    states: int = 0
    recoveries: int = 0
    restored: int = 0
    refused: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


class Explorer:
    """All cuts of one history by one rule set.

    ``every``: every so-manieth cut is tried, and the first one before each kind of call. ``per_cut``: at most so
    many survivors of each cut. ``again``: of every so-manieth different state the recovery is itself cut at every step,
    with ``per_recovery_cut`` survivors each (0: never). ``thorough``: every decision on a branch in doubt is tried on
    every disk, not only one of them. ``disk`` and ``recovery_disk``: for bugs planted in the history and in the
    recovery.
    """

    def __init__(
        self,
        history: History,
        rules: Rules,
        *,
        every: int = 1,
        per_cut: int = 16,
        again: int = 0,
        per_recovery_cut: int = 2,
        thorough: bool = False,
        disk: type[SimulatedDisk] = SimulatedDisk,
        recovery_disk: type[SimulatedDisk] = SimulatedDisk,
    ) -> None:
        self.history = history
        self.rules = rules
        self.every = every
        self.per_cut = per_cut
        self.again = again
        self.per_recovery_cut = per_recovery_cut
        self.thorough = thorough
        self.disk = disk
        self.recovery_disk = recovery_disk
        self.tally = Tally()
        self._decided = history.decided
        self._seen: set[tuple[Image, frozenset[Contents]]] = set()
        self._opened_again: set[tuple[Hashable, Contents]] = set()
        self._restored: dict[Image, Contents] = {}
        self._backups: set[Image] = set()
        self._story: list[str] = []

    def explore(self) -> Tally:
        """Try all cuts, and raise Violation at the first broken promise."""
        with repeatable(SEED):
            self.base = self._set_up()
        for step in self._steps():
            machine, expected, call = self._cut_at(step)
            self.tally.cuts += 1
            with self._telling(f"{self.history.name}: cut before {call}"):
                self._look_at(machine, expected.allowed, limit=self.per_cut)
                with self._telling("killed, no power cut"):
                    self._survive_kill(machine, expected)
        return self.tally

    def explore_takeovers(self) -> Tally:
        """Kill the process at each step instead of a power cut; a second process, which has the space open, takes over
        first."""
        with repeatable(SEED):
            self.base = self._set_up()
        machine, other = self._with_another()
        for step in self._steps(machine):
            machine, other = self._with_another()
            _, expected, call = self._cut_at(step, machine)
            self.tally.cuts += 1
            with self._telling(f"{self.history.name}: killed before {call}, taken over"), repeatable(SEED + 500):
                self._take_over(machine, other, expected)
        return self.tally

    def _with_another(self) -> tuple[Machine, spool.Space]:
        machine = self._machine(self.base, boot=2)
        with repeatable(SEED + 2):
            return machine, spool.open(self.recovery_disk(machine))

    def _take_over(self, machine: Machine, other: spool.Space, expected: Expectation) -> None:
        """The next commit finishes the work of the dead process; contents that were visible then remain."""
        in_doubt(door.store(other), door.deadline(other))
        self.history.finish(other)
        other.put(AFTER, "next")
        shown = look(other)
        allowed, kept = expected.allowed, [contents.put(AFTER, "next") for contents in expected.after_kill]
        self._expect(shown in kept, f"found {shown}, allowed {sorted(map(str, kept))}", other)
        with self._telling("then the power cut"):
            back = [contents.put(AFTER, "next") for contents in self._after(shown, allowed) - {shown}]
            decided = self._decided
            self._decided = {
                contents.put(AFTER, "next"): {outcome: then.put(AFTER, "next") for outcome, then in outcomes.items()}
                for contents, outcomes in decided.items()
            }
            self._look_at(machine, frozenset([shown, *back]), limit=self.per_recovery_cut * 4, deep=False)
            self._decided = decided
        left = [finding for finding in other.check() if finding.kind is Kind.DAMAGED]
        self._expect(not left, f"damage: {left}", other)
        other.close()
        self._open_again(machine, self._open_and_look(machine, frozenset([shown])))

    def _set_up(self) -> Image:
        self._empty = new_space(self._machine(NO_FILES, boot=1), QUEUES)
        machine = self._machine(NO_FILES, boot=1)
        options = {"mirror": MIRROR} if self.history.mirrored else {}
        with spool.create(SimulatedDisk(machine), defaults=AT_ONCE, **options) as space:
            for queue in QUEUES:
                space.create_queue(queue)
            self.history.setup(space)
        return machine.image()

    def _machine(self, image: Image, boot: int) -> Machine:
        return Machine(image, boot=boot, **self.rules.told)

    def _steps(self, machine: Machine | None = None) -> list[int]:
        """Return the steps at which a cut makes a difference: before each call that changes the disk, and after the
        last call.

        Between two such calls the disk stays as it is, and promises are only added.
        """
        machine, _, _ = self._cut_at(None, machine)
        first = self._first_step
        calls = enumerate(machine.trace, 1)
        changing = [n for n, (call, args) in calls if self._is_cut(call, args) and not _makes_lock_file(call, args)]
        steps = [n for n in changing if n > first]
        calls = [_described(*machine.trace[step - 1]) for step in steps]
        return [*some(steps, calls, self.every), len(machine.trace) + 1]

    def _is_cut(self, call: str, args: tuple[object, ...]) -> bool:
        return call in CHANGES

    def _cut_at(self, step: int | None, machine: Machine | None = None) -> tuple[Machine, Expectation, str]:
        """Run the history on a new machine (or that one) up to that step."""
        machine = machine or self._machine(self.base, boot=2)
        expected = Expectation(self.history.begin)
        machine.crash_at(step)
        process = self.disk(machine)
        with repeatable(SEED + 1), mirrors_last():
            try:
                space = spool.open(process)
                self._first_step = len(machine.trace)
                self.history.run(space, expected)
            except PowerCut:
                machine.crash_at(None)
                return machine, expected, machine.last_call()
        machine.crash_at(None)
        machine.kill(process)
        return machine, expected, "the end"

    # -- looking ------------------------------------------------------------------------------------------------------

    def _look_at(self, machine: Machine, allowed: frozenset[Contents], *, limit: int, deep: bool = True) -> None:
        """Every survivor of this machine."""
        if machine.beside is not None:  # of its mirror more, which is small
            for survivor in survivors(machine.beside, self.rules, limit=max(limit, _OF_MIRROR), seed=self.tally.cuts):
                with self._telling(survivor.story):
                    self._expect_of_mirror(Image((), survivor.image), allowed)
        for survivor in survivors(machine, self.rules, limit=limit, seed=SEED + self.tally.cuts):
            key = survivor.image, allowed
            if key in self._seen:
                continue
            self._seen.add(key)
            self.tally.states += 1
            self.tally.kinds.update(kinds_of(machine.image(), survivor.image))
            with self._telling(survivor.story):
                self._recover(survivor, machine.boot + 1, allowed, deep=deep)
                if survivor.image.beside is not None:
                    self._expect_of_backup(survivor.image, machine.boot + 1, allowed)
                if survivor.image.beside is not None and self.tally.states % _MIRRORS_LOST == 0:
                    with self._telling("the mirror's disk is lost"):
                        emptied = self._with_a_new_mirror(survivor.image, machine.boot + 1)
                        self._recover(Survivor(emptied, ""), machine.boot + 2, allowed, deep=False)

    def _recover(self, survivor: Survivor, boot: int, allowed: frozenset[Contents], *, deep: bool) -> None:
        """Open, look, open again; perhaps cut the recovery, too."""
        machine = self._machine(survivor.image, boot)
        with repeatable(SEED + boot):
            contents = self._open_and_look(machine, allowed)
            self._expect_of_mirror(machine.image(), frozenset([contents]))
            self._decide(machine, contents)
            self._open_again(machine, contents)
        if deep and self.again and self.tally.states % self.again == 0:
            self._cut_recovery(survivor, boot, allowed)

    def _cut_recovery(self, survivor: Survivor, boot: int, allowed: frozenset[Contents]) -> None:
        """A second recovery repairs an interrupted one; contents that a finished recovery has shown remain."""
        whole = self._machine(survivor.image, boot)
        with repeatable(SEED + boot):
            shown = self._open_and_look(whole, allowed)
        for step in [place for place, (call, args) in enumerate(whole.trace, 1) if self._is_cut(call, args)]:
            machine = self._machine(survivor.image, boot)
            machine.crash_at(step)
            with repeatable(SEED + boot), suppress(PowerCut):
                self._open_and_look(machine, allowed)
            assert machine.trace == whole.trace[:step], "the same recovery took other steps"
            machine.crash_at(None)
            self._recover_again(machine, boot, allowed)
        with self._telling("cut after recovery"):
            self._look_at(whole, self._after(shown, allowed), limit=self.per_recovery_cut * 2, deep=False)

    def _recover_again(self, machine: Machine, boot: int, allowed: frozenset[Contents]) -> None:
        """The recovery was cut: by a power cut, or only killed."""
        self.tally.recoveries += 1
        with self._telling(f"recovery cut before {machine.last_call()}"):
            if not machine.last_call_writes("run/"):  # nothing there matters after a power cut
                self._look_at(machine, allowed, limit=self.per_recovery_cut, deep=False)
            with self._telling("killed, no power cut"), repeatable(SEED + boot + 1000):
                twin = machine.copy()
                self._open_again(twin, self._open_and_look(twin, allowed))

    def _survive_kill(self, machine: Machine, expected: Expectation) -> None:
        """Only the process died, so the page cache exists. Contents that the next process shows survive a power cut."""
        for process in {handle.process for handle in machine.handles.values()}:
            machine.kill(process)
        twin = machine.copy()
        with repeatable(SEED + 1000):
            shown = self._open_and_look(twin, expected.after_kill, told=True)
        self._expect_of_mirror(twin.image(), frozenset([shown]))
        with self._telling("then the power cut"):
            self._look_at(twin, self._after(shown, expected.allowed), limit=self.per_recovery_cut * 2, deep=False)
        self._open_again(twin, shown)

    def _after(self, shown: Contents, allowed: frozenset[Contents]) -> frozenset[Contents]:
        """The contents allowed after a power cut, once ``shown`` was visible."""
        return frozenset([shown]) | (allowed if self.history.loses else allowed & self.history.may_return)

    def _expect_contents(self, space: spool.Space, allowed: frozenset[Contents]) -> Contents:
        contents = look(space)
        self._expect(contents in allowed, f"found {contents}, allowed {sorted(map(str, allowed))}", space)
        damage = [finding for finding in space.check() if finding.kind is Kind.DAMAGED]
        self._expect(not damage, f"damage: {damage}", space)
        return contents

    def _open_and_look(self, machine: Machine, allowed: frozenset[Contents], *, told: bool = False) -> Contents:
        """``told``: a coordinator lists the branches in doubt; the listed branches remain."""
        process = self.recovery_disk(machine)
        try:
            space = spool.open(process)
            self.history.finish(space)
            contents = self._expect_contents(space, allowed)
            if told:
                listed = tuple(map(str, in_doubt(door.store(space), door.deadline(space))))
                self._expect(listed == contents.in_doubt, f"recover listed {listed}, found {contents}", space)
        finally:
            if not process.dead:
                machine.kill(process)
        return contents

    def _open_again(self, machine: Machine, contents: Contents) -> None:
        """Open the space again in the same boot: the contents are the same, no work is left, and each message is
        delivered once.

        Recoveries of many disks end in the same disk, which is checked once."""
        key = machine.seen_by_processes(), contents
        if key in self._opened_again:
            return
        with spool.open(self.recovery_disk(machine)) as space:
            left = [finding for finding in space.recovery.findings if finding.kind is not Kind.IN_DOUBT]
            self._expect(not left, f"the second open still found {list(map(str, left))}", space)
            self._expect(look(space) == contents, f"the second open found {look(space)}, the first {contents}", space)
            for queue, bodies in zip(QUEUES, contents.queues, strict=True):
                taken = tuple(str(message.body) for message in space.get_many(queue, 1000)) if bodies else ()
                self._expect(bodies == taken, f"queue {queue} showed {bodies} and gave {taken}", space)
                self._expect(not list(space.browse(queue)), f"queue {queue} is not empty", space)
            self._expect_reclaim(space)
        self._opened_again.add(key)

    def _decide(self, machine: Machine, contents: Contents) -> None:
        """Expect that each decision on a branch in doubt takes effect."""
        if not contents.in_doubt:
            return
        image = machine.image()
        outcomes = sorted(self._decided[contents].items())
        for outcome, promised in outcomes if self.thorough else [outcomes[self.tally.states % len(outcomes)]]:
            twin = self._machine(image, machine.boot + 1)
            with self._telling(f"then decided: {outcome}"):
                with spool.open(self.recovery_disk(twin)) as space:
                    decide(space, outcome)
                    self._expect(look(space) == promised, f"found {look(space)}, promised {promised}", space)
                self._open_again(twin, promised)

    def _expect_reclaim(self, space: spool.Space) -> None:
        """Consumed files go, and the durable mark advances."""
        door.reclaim(space)
        counters = door.store(space).shared.counters
        marks = counters.read().durable, counters.read().published
        self._expect(marks[0] == marks[1], f"durable, published: {marks}", space)

    def _with_a_new_mirror(self, image: Image, boot: int) -> Image:
        """An empty disk is refused as a mirror, until an operator begins a new mirror there."""
        machine = self._machine(without_its_mirror(image), boot)
        with repeatable(SEED + boot + 3000):
            before = machine.image()
            process = self.recovery_disk(machine)
            with suppress(spool.MirrorMismatch):
                spool.open(process)
                raise self._violation("an empty mirror was taken")
            machine.kill(process)
            self._expect_unchanged(before, machine.image())
            mirrors.begin(self.recovery_disk(machine), MIRROR).close()
        return machine.image()

    def _expect_unchanged(self, before: Image, after: Image) -> None:
        """A refused opening changes neither directory, apart from ``run/``."""
        if (_kept(before), _kept(before.beside)) != (_kept(after), _kept(after.beside)):
            raise self._violation("a refused opening has changed something")

    def _expect_of_backup(self, image: Image, boot: int, allowed: frozenset[Contents]) -> None:
        """A backup of the space from before the history is put back beside the current mirror. Either the space opens
        with all promised messages, or the opening is refused and a space restored from the mirror has them."""
        assert image.beside is not None
        old = self.base._replace(beside=image.beside)
        if old in self._backups:
            return
        self._backups.add(old)
        machine = self._machine(old, boot)
        with repeatable(SEED + boot + 4000), self._telling("a backup of the space is put back"):
            process = self.recovery_disk(machine)
            try:
                space = spool.open(process)
            except spool.MirrorMismatch:
                self.tally.refused += 1
                machine.kill(process)
                self._expect_unchanged(old, machine.image())
                lost = self._machine(Image((), image.beside), boot)
                restored = self.recovery_disk(lost)
                space = mirrors.restore(restored, MIRROR)
                unchanged = _kept(lost.image().beside) == _kept(image.beside)
                self._expect(unchanged, "a restore has changed the mirror", space)
            self._expect_contents(space, allowed)

    # -- the mirror's side --------------------------------------------------------------------------------------------

    def _expect_of_mirror(self, image: Image, allowed: frozenset[Contents]) -> None:
        """If the space's disk is lost now, a space made of the mirror is one that is allowed."""
        if image.beside is None:
            return
        with self._telling("of the mirror alone"):
            if (found := self._restored.get(image.beside)) is None:
                found = self._restored[image.beside] = self._restore(image.beside)
            if found not in allowed:
                raise self._violation(f"found {found}, allowed {sorted(map(str, allowed))}")

    def _restore(self, mirror: Image) -> Contents:
        self.tally.restored += 1
        machine = self._machine(restored(self._empty, mirror), boot=2)
        with repeatable(SEED + 2000), spool.open(self.recovery_disk(machine)) as space:
            contents = look(space)
            damage = [finding for finding in space.check() if finding.kind is Kind.DAMAGED]
            self._expect(not damage, f"damage: {damage}", space)
        with repeatable(SEED + 2001):
            self._open_again(machine, contents)
        return contents

    # -- telling ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """The way to a failure, outermost first."""
        self._story.append(what)
        try:
            yield
        except Violation:
            raise
        except Exception as error:
            raise self._violation(f"{type(error).__name__}: {error}") from error
        finally:
            self._story.pop()

    def _expect(self, true: bool, what: str, space: spool.Space) -> None:
        if not true:
            findings: list[Finding] = space.recovery.findings
            raise self._violation("\n  ".join([what, *(f"recovery: {finding}" for finding in findings)]))

    def _violation(self, what: str) -> Violation:
        return Violation("\n  ".join([what, *self._story, f"seed {SEED}, at most {self.per_cut} survivors a cut"]))


def _kept(image: Image | None) -> list[tuple[str, bytes | None]]:
    """The files of a disk without those that processes share."""
    files = () if image is None else image.files
    return [(path, data) for path, _, data in files if data is not None and not path.startswith(f"{layout.RUN}/")]


def _described(call: str, args: tuple[object, ...]) -> str:
    """Return the call with its names."""
    return " ".join([call, *(arg for arg in args if isinstance(arg, str))])


def _makes_lock_file(call: str, args: tuple[object, ...]) -> bool:
    """64 of them, all alike; recovery without them is looked at in each survivor that lost ``run/``."""
    return call == "create" and str(args[0]).startswith(f"{layout.RUN}/")
