"""Each due time puts one message, in any space: late, full, with clocks that jump, and beside other processes."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from cProfile import Profile
from pathlib import Path

import pytest

import spool
from spool.admin import schedules
from spool.admin.schedules import put_due
from spool.maintenance import tombstones
from spool.model.schedule import decided, puts
from tests import door
from tests.clocks import MovedClock, timed
from tests.full import FullDisk
from tests.meanwhile import Processes
from tests.spaces import remove_by_hand

START, MINUTE, DAY = 1_700_000_000.0, 60.0, 86_400.0  # 22:13:20 UTC, so the first minute is 40 seconds later
WITHOUT_TIME = spool.Schedule("s", "q", "* * * * *", "UTC", "once", b"tick", None, {})
pytestmark = pytest.mark.usefixtures("quiet")


class Life:
    """A space whose clock a test moves, with a schedule for each minute."""

    def __init__(self, path: Path) -> None:
        self.clock = MovedClock(wall=START)
        path.mkdir(mode=0o700)
        self.disk = timed(FullDisk(str(path)), self.clock)
        self.space = spool.create(self.disk)
        self.space.create_queue("q", durability="none", deduplication_window=0.0)

    def minutely(self, **options: str) -> None:
        self.space.create_schedule("s", "q", "tick", cron="* * * * *", **options)  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> list[str]:
        """Let time pass, and let the housekeeping put the due messages; return the due times of all messages."""
        self.clock.later += seconds
        put_due(door.core(self.space))
        return dues(self.space)

    @property
    def schedule(self) -> spool.Schedule:
        return self.space.schedules()["s"]


def dues(space: spool.Space, queue: str = "q") -> list[str]:
    return [message.headers["schedule-due"][11:16] for message in space.browse(queue)]


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    found = Life(tmp_path / "space")
    yield found
    found.disk.full = False
    found.space.close()


def test_each_time_puts_one_message_with_its_time(life: Life):
    life.space.create_schedule("s", "q", {"a": 1}, cron="* * * * *", timezone="Europe/Berlin", headers={"tenant": "x"})
    assert life.pass_time(30.0) == []
    assert life.pass_time(20.0) == ["23:14"]
    assert life.pass_time(0.0) == life.pass_time(49.0) == ["23:14"]
    assert life.pass_time(1.0 + MINUTE) == ["23:14", "23:15"], "one commit of a late process puts one message"
    message = life.space.get("q")
    assert message.body == {"a": 1}
    assert message.headers == {"schedule": "s", "schedule-due": "2023-11-14T23:14:00+01:00", "tenant": "x"}
    assert life.schedule.last_put == life.clock.now()


def test_once_puts_one_message_for_all_missed_times(life: Life):
    life.minutely()
    assert life.pass_time(DAY) == ["22:14"]
    assert life.pass_time(MINUTE) == ["22:14", "22:14"], "of the next day"


def test_skip_puts_no_message_that_is_late(life: Life):
    life.minutely(missed="skip")
    assert [life.pass_time(seconds) for seconds in (DAY, MINUTE, MINUTE)] == [[], ["22:14"], ["22:14", "22:15"]]


@pytest.mark.parametrize("missed", ["once", "skip"])
@pytest.mark.parametrize("jump", [-3600.0, -30 * DAY, 3600.0, 10_000 * DAY])
def test_a_clock_that_jumps_and_comes_back_repeats_no_time(life: Life, jump: float, missed: str):
    """After the jump back, the schedule goes on from the last time for which it put a message."""
    life.minutely(missed=missed)
    for seconds in (MINUTE, jump, -jump, *[MINUTE] * 5):
        life.pass_time(seconds)
    found = Counter(message.headers["schedule-due"] for message in life.space.browse("q"))
    assert set(found.values()) == {1}
    assert {f"2023-11-14T22:{minute}:00+00:00" for minute in (14, 16, 17, 18, 19)} <= found.keys()


def test_a_clock_that_was_set_back_for_good_goes_on(life: Life):
    """A message for the missed times was put by a clock that was years ahead."""
    life.minutely()
    life.pass_time(10_000 * DAY)
    life.clock.later = 0.0
    assert life.pass_time(2 * MINUTE) == ["22:14"]
    assert life.pass_time(MINUTE) == ["22:14", "22:16"], "the first call has noticed the clock"


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_a_full_queue_makes_the_message_late(life: Life, missed: str):
    life.space.change_queue("q", max_messages=1)
    life.minutely(missed=missed)
    assert [life.pass_time(MINUTE), life.pass_time(MINUTE)] == [["22:14"]] * 2
    commits = door.counters(life.space).issued
    life.clock.later += 5.0
    assert put_due(door.core(life.space)) == life.clock.now(), "other processes attempt the put ten seconds later"
    assert "queue q holds 1 message of at most 1" in life.schedule.error
    assert door.counters(life.space).issued == commits, "the error is recorded once"
    life.space.get("q")
    life.space.change_queue("q", max_messages=None)
    assert life.pass_time(MINUTE + 20.0) == (["22:15"] if missed == "once" else [])
    assert life.pass_time(MINUTE)[-1:] == ["22:17"]
    assert life.schedule.error == ""


def test_a_full_disk_makes_the_message_late(life: Life):
    life.minutely()
    life.disk.full = True
    assert life.pass_time(MINUTE) == []
    assert "No space left" in life.schedule.error
    life.disk.full = False
    assert life.pass_time(5 * MINUTE) == ["22:14"]


def test_a_schedule_of_a_deleted_queue_shows_its_error(life: Life):
    life.minutely()
    with pytest.raises(spool.QueueNotEmpty, match="spool-admin schedule delete s"):
        life.space.delete_queue("q")
    remove_by_hand(life.space, "q")
    life.clock.later += MINUTE
    put_due(door.core(life.space))
    assert "there is no queue 'q'" in life.schedule.error
    life.space.create_queue("q")
    assert life.pass_time(DAY) == ["22:14"]
    life.space.delete_schedule("s")
    life.space.purge("q")
    life.space.delete_queue("q")


def test_a_run_changes_no_time(life: Life):
    life.minutely()
    due = life.schedule.next_due
    id_ = life.space.run_schedule("s")
    assert life.space.get("q").id == id_
    assert life.schedule.next_due == due
    life.space.change_queue("q", max_messages=0)
    with pytest.raises(spool.Full):
        life.space.run_schedule("s")


WRONG: list[tuple[Callable[[spool.Space], object], str]] = [
    (lambda space: space.create_schedule("s", "p", "x", cron="@daily"), "there is no queue 'p'"),
    (lambda space: space.create_schedule("s", "q", "", cron="@daily"), "is empty"),
    (lambda space: space.create_schedule("s", "q", bytes(1 << 17), cron="@daily"), "65,536 is the most"),
    (lambda space: space.create_schedule("a/b", "q", "x", cron="@daily"), "name is the name of a schedule"),
    (lambda space: space.create_schedule("s", "q", "x", cron="0 0 */29 2 1#5"), "never comes"),
    (lambda space: space.create_schedule("s", "q", "x", cron="@daily", missed="all"), "missed is one of"),  # type: ignore[arg-type]
    (lambda space: space.create_schedule("s", "q", "x", cron="@daily", expires_at=2e9), "expires_at is for one"),
    (lambda space: space.create_schedule("s", "q", "x", cron="@daily", deduplication_key="k"), "is for one message"),
    (lambda space: space.create_schedule("s", "q", "x", cron="@daily", priority=1000), "priority is"),
    (lambda space: space.create_schedule("s", "q", "x", cron="@daily", top=True), "does not allow top"),
    (lambda space: space.delete_schedule("nightli"), "no schedule 'nightli'; did you mean nightly"),
    (lambda space: space.run_schedule("other"), "spool-admin schedule list"),
    (lambda space: space.create_schedule("nightly", "q", "x", cron="@daily"), "'nightly' exists already: choose"),
    (lambda space: space.create_schedule("nightly", "q", "y", cron="@daily", exist_ok=True), "with other options"),
]


@pytest.mark.parametrize(("call", "told"), WRONG)
def test_each_wrong_call_is_one_error_that_tells_what_to_do(
    life: Life, call: Callable[[spool.Space], object], told: str
):
    made = life.space.create_schedule("nightly", "q", "x", cron="@daily")
    assert life.space.create_schedule("nightly", "q", "x", cron="@daily", exist_ok=True) == made
    with pytest.raises(spool.SpoolError, match=told):
        call(life.space)
    assert list(life.space.schedules()) == ["nightly"]


def test_schedules_survive_a_restart_reclaim_a_checkpoint_and_an_export(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tombstones, "MERGED_COMMITS", 20)
    life.minutely()
    for _ in range(30):  # so many that the facts are merged, and the files reclaimed
        life.pass_time(MINUTE)
        life.space.get("q")
    assert door.housekeeper(life.space).compact()
    while door.reclaim(life.space):
        pass
    known = life.schedule
    with open(tmp_path / "export", "wb") as file:
        life.space.export(file)
    life.space.close()
    with spool.open(life.disk) as again, open(tmp_path / "export", "rb") as file:
        assert again.schedules() == {"s": known}
        assert not again.check()
        with spool.import_space(tmp_path / "imported", file) as imported:
            assert imported.schedules() == {"s": known}
    life.space = spool.open(life.disk)
    life.space.delete_schedule("s")
    life.space.close()
    life.space = spool.open(life.disk)
    assert life.space.schedules() == {}


def test_of_two_processes_whose_clocks_differ_one_puts_each_message():
    there = Processes()
    spaces = [there.space() for _ in range(2)]
    for space, ahead in zip(spaces, (-4.0, 4.0), strict=True):
        door.store(space).clock = MovedClock(wall=START, later=ahead)
    spaces[0].create_schedule("s", "orders", "tick", cron="* * * * *")
    for turn in range(120):
        for space in spaces if turn % 2 else spaces[::-1]:
            put_due(door.core(space))
            door.clock(space).later += 5.0  # type: ignore[attr-defined]
    found = dues(spaces[0], "orders")
    assert found == [f"22:{minute}" for minute in range(14, 24)]


def test_a_message_that_another_process_puts_meanwhile_is_put_once(monkeypatch: pytest.MonkeyPatch):
    """The other process puts after the first one has found that the message is due."""
    there = Processes()
    first, other = there.space(), there.space()
    made = first.create_schedule("s", "orders", "tick", cron="* * * * *")
    for space in (first, other):
        door.store(space).clock = MovedClock(wall=made.next_due)

    def meanwhile(act: Callable[[], object]) -> None:
        def puts_later(schedule: spool.Schedule, now: float) -> bool:
            monkeypatch.setattr(schedules, "puts", puts)
            act()
            return puts(schedule, now)

        monkeypatch.setattr(schedules, "puts", puts_later)
        put_due(door.core(first))

    meanwhile(lambda: put_due(door.core(other)))
    assert first.stats("orders").ready == 1
    door.clock(first).later += MINUTE  # type: ignore[attr-defined]
    meanwhile(lambda: other.delete_schedule("s"))
    assert first.stats("orders").ready == 1, "a deleted schedule puts nothing"


def test_ten_thousand_schedules_make_no_put_slower(life: Life):
    """A put makes as many calls as before. The messages of one moment share few commits."""
    life.space.create_queue("r")
    facts: list[tuple[object, ...]] = []
    for number in range(10_000):
        one = WITHOUT_TIME._replace(cron="@yearly" if number % 20 else "* * * * *")
        facts.append(("fact", f"schedule:s{number}", list(decided(one, START)[1:])))
    calls = [
        (door.commit(life.space, *some), calls_of(lambda: life.space.put("r", b"x")))[1]
        for some in (facts[:1], facts[1:])
    ]
    assert calls[1] <= calls[0] + 10, "the counters may be read once more"
    issued = door.counters(life.space).issued
    life.clock.later += MINUTE
    assert put_due(door.core(life.space)) == START + 100.0
    assert life.space.stats("q").ready == 500
    assert door.counters(life.space).issued - issued == 2


def calls_of(act: Callable[[], object]) -> int:
    """The number of calls that a call of ``act`` makes."""

    def once() -> int:
        profile = Profile()
        profile.runcall(act)
        return sum(each.callcount for each in profile.getstats())

    return min(once() for _ in range(5))


def test_without_schedules_nothing_is_done_for_them(monkeypatch: pytest.MonkeyPatch, life: Life):
    """The housekeeping then neither calls the code of schedules, nor imports the library of cron expressions."""
    calls: list[float] = []
    monkeypatch.setattr(door.housekeeper(life.space), "_put_due", lambda: calls.append(0.0) or START + 40.0)
    door.steps(life.space)
    assert calls == []
    life.minutely()
    for due in (True, False, False):
        door.steps(life.space, due=due)
    assert len(calls) == 1
    life.clock.later += 40.0
    door.steps(life.space, due=False)
    assert len(calls) == 2, "its time has come"
    program = "import spool, sys; s = spool.open(sys.argv[1]); s.put('q', b''); print('cronsim' in sys.modules)"
    life.space.delete_schedule("s")
    life.space.close()
    told = subprocess.run([sys.executable, "-c", program, life.space.path], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
    life.space = spool.open(life.disk)
