"""The wall clock may be put back or forward by years at any time: no wait lasts for ever or ends early, no message is
lost, and none is delivered before its time, or kept after it, by the clock as it is at that moment."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import spool
from spool.disk import Disk
from spool.intake import Intake
from spool.model.xid import Xid
from spool.transactions.two_phase import commit_prepared
from tests import door
from tests.clocks import MovedClock, SimulatedClock, timed
from tests.machine import NO_FILES, Machine
from tests.simdisk import SimulatedDisk
from tests.strides import Stride

DAY, YEAR = 86_400.0, 365 * 86_400.0
DELAY, RETRY_DELAY, WAIT, TIMEOUT = 100.0, 50.0, 5.0, 30.0
COARSE = 0.25
pytestmark = pytest.mark.usefixtures("quiet")


@dataclass
class Waiting:
    """A message that must come, and when at the earliest by the wall clock."""

    body: str
    due: float


class User:
    """Makes one call after the other with a queue of the space, and knows the messages that a get may and must
    return."""

    def __init__(self, step: float, at: int) -> None:
        self.clock = SimulatedClock(least_sleep=COARSE)
        self.machine = Machine(NO_FILES)
        self.waiting: list[Waiting] = []
        self.taken: list[str] = []
        self._step, self._at = step, at
        self._names = itertools.count()
        self._moments = itertools.count()
        self.space = self._space(spool.create)
        self.space.create_queue("a", retry_delay=RETRY_DELAY, retry_delay_max=None)

    def _space(self, way: Callable[..., spool.Space]) -> spool.Space:
        return way(timed(SimulatedDisk(self.machine), self.clock))

    def moment(self) -> None:
        """Step the clock if this moment between two calls is the chosen one."""
        if next(self._moments) == self._at:
            self.clock.later += self._step

    def put(self, **options: float) -> None:
        body = f"m{next(self._names)}"
        self.space.put("a", body, **options)
        due = options.get("not_before", self.clock.now() + options.get("delay", -1e12))
        self.waiting.append(Waiting(body, due))
        self.moment()

    def get(self) -> None:
        """A get returns the messages that are due now, in their order; if none is due, the get waits for its whole
        timeout."""
        due = [one for one in self.waiting if one.due <= self.clock.now()]
        begun = self.clock.monotonic()
        try:
            body = self.space.get("a", timeout=WAIT).body
        except spool.Empty:
            assert not due, f"{due} had to come"
            assert self.clock.monotonic() - begun == pytest.approx(WAIT, abs=COARSE)
        else:
            (one,) = (one for one in self.waiting if one.body == body)
            assert one.due <= self.clock.now(), f"{one} came {one.due - self.clock.now():g} s early"
            assert due or self.clock.monotonic() > begun
            self.waiting.remove(one)
            self.taken.append(body)
        self.moment()

    def roll_back(self) -> None:
        with self.space.transaction(timeout=TIMEOUT) as tx:
            try:
                body = tx.get("a").body
            except spool.Empty:
                return
            self.moment()
            tx.rollback()
        (one,) = (one for one in self.waiting if one.body == body)
        one.due = max(one.due, self.clock.now() + RETRY_DELAY)  # its own time stays
        self.moment()

    def take_too_long(self) -> None:
        """A transaction ends when its own time is up, not before and not later."""
        tx = self.space.transaction(timeout=TIMEOUT)
        tx.put("a", "never")
        self.moment()
        self.clock.sleep(TIMEOUT - 1)
        tx.put("a", "never")
        self.moment()
        self.clock.sleep(2)
        with pytest.raises(spool.TransactionTimeout):
            tx.commit()
        self.moment()

    def vote(self) -> None:
        body = f"m{next(self._names)}"
        xid = Xid(7, body.encode(), b"")
        branch = door.branch(self.space, xid=xid, timeout=None)
        branch.put("a", body, delay=DELAY)
        assert branch.prepare()
        self.moment()
        commit_prepared(door.core(self.space), branch.xid, vote_known=True)
        self.waiting.append(Waiting(body, self.clock.now() + DELAY))  # from the commit, not from the vote
        self.moment()

    def reopen(self) -> None:
        self.space.close()
        self.space = self._space(spool.open)
        self.moment()

    def reclaim(self) -> None:
        door.reclaim(self.space)
        self.moment()

    def sleep(self) -> None:
        self.clock.sleep(DELAY)
        self.moment()

    def finish(self) -> None:
        """Move the clock past every due time, and expect each message once."""
        last = max((one.due for one in self.waiting), default=0.0)
        self.clock.later += max(0.0, last - self.clock.now()) + 1
        self.reopen()
        while self.waiting:
            self.get()
        with pytest.raises(spool.Empty):
            self.space.get("a")
        assert len(self.taken) == len(set(self.taken))
        assert [finding for finding in self.space.check() if finding.kind == "damaged"] == []
        self.space.close()


STORY = (
    "put", "put delayed", "get", "roll_back", "put at a time", "get", "sleep", "roll_back", "reopen", "get", "vote",
    "get", "take_too_long", "reclaim", "sleep", "roll_back", "reopen", "get", "get", "put delayed", "sleep", "get",
)  # fmt: skip
STEPS = (-40 * YEAR, -DAY, -DELAY / 2, DELAY / 2, DAY, 40 * YEAR)


def play(story: tuple[str, ...], step: float, at: int) -> int:
    """Play the story, and return the number of its moments."""
    user = User(step, at)
    for deed in story:
        if deed == "put delayed":
            user.put(delay=DELAY)
        elif deed == "put at a time":
            user.put(not_before=user.clock.now() + DELAY)
        else:
            getattr(user, deed)()
    user._at = -1
    user.finish()
    return next(user._moments)


@pytest.mark.every(5)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step / DAY:+g} days")
def test_a_step_of_the_clock_at_any_moment_of_a_story(step: float, stride: Stride, record_property) -> None:
    moments = play(STORY, step, -1)
    tried = range(0, moments, stride(2))
    for at in tried:
        play(STORY, step, at)
    record_property("clock: steps", len(tried))


@pytest.mark.parametrize("late", [False, True])
def test_a_due_message_waits_again_when_the_clock_is_put_back(late: bool) -> None:
    """The message became ready together with another message, or an older message came after it."""
    user = User(0.0, -1)
    user.put()
    user.put()
    user.put(delay=DELAY)
    user.sleep()
    user.get()
    if late:
        user.put(not_before=user.clock.now() - YEAR)
        user.get()
    user.clock.later -= DAY
    user.get()
    user.get()
    assert "m2" not in user.taken
    user.finish()


def test_steps_of_the_clock_in_stories_at_random(record_property, pytestconfig) -> None:
    stories = 1000 if pytestconfig.getoption("--long") else 30
    for seed in range(stories):
        numbers = random.Random(seed)
        story = tuple(numbers.choices(STORY, k=20))
        try:
            play(story, numbers.choice(STEPS), numbers.randrange(25))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {story}") from error
    record_property("clock: steps", stories)


class NobodyMayAsk(Disk):
    """A disk that cannot tell whether a file has a writer, as for another user's file."""

    def has_writer(self, handle: int) -> bool | None:
        return None


@pytest.mark.parametrize("step", [-40 * YEAR, -DAY, DAY, 40 * YEAR])
def test_a_dropped_file_waits_for_no_clock(step: float, tmp_path: Path) -> None:
    """If the writer of a file is not known, its age decides; a file from the future is taken today."""
    clock = MovedClock()
    with spool.create(tmp_path / "space") as space:
        space.create_queue("a")
    with spool.open(timed(NobodyMayAsk(str(tmp_path / "space")), clock)) as space:
        (tmp_path / "space/drop/a/file").write_bytes(b"dropped")
        Intake(space).run(once=True)
        with pytest.raises(spool.Empty):
            space.get("a")  # it is too young
        clock.later = step
        Intake(space).run(once=True)
        assert space.get("a").body == b"dropped"
