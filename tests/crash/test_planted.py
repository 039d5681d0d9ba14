"""Rules of the protocol, each broken on purpose, are missed by the scenarios that should miss them."""

import pytest

from tests.crash import stops
from tests.crash.interleave import Interleaver
from tests.crash.operations import Unexplained
from tests.crash.planted import (
    APPLIED_TOO_EARLY,
    AS_IT_LIES,
    BUGS,
    CLAIMED_AND_GONE,
    ENDED_AS_IT_WAS_SEEN,
    FINISHED_AS_IT_LIES,
    NO_LOOK_FOR_A_COMMIT,
    NO_SETTLING,
    OF_GROUPS_AND_MIRRORS,
    OF_NARROW_WINDOWS,
    OUT_OF_ORDER,
    READ_TOO_FAR,
    STAMPED_TOO_EARLY,
    WRONG_WAY_ROUND,
    Bug,
    planted,
)
from tests.crash.schedule import Switch
from tests.survivors import Rules


@pytest.fixture(autouse=True)
def _counted(record_property) -> None:
    record_property("planted bugs", 1)


def _explorer(bug: Bug, limit: int) -> Interleaver:
    return Interleaver(stops.scenario_of(bug.noticed_by), Rules.ORDERED, limit=limit)


# Only some schedules of hundreds notice this bug.
RARE = {"threads share locks"}


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.what, marks=[pytest.mark.slow] if bug.what in RARE else []) for bug in BUGS]
)
def test_a_rule_that_is_broken_is_missed(bug: Bug) -> None:
    with planted(bug), pytest.raises(Unexplained):
        for limit in (15, 1000):
            _explorer(bug, limit).explore()


@pytest.mark.every(3)
@pytest.mark.parametrize(("bug", "why"), OF_NARROW_WINDOWS, ids=lambda x: x.what if isinstance(x, Bug) else "")
def test_a_rule_of_a_narrow_window_that_is_broken_is_missed(bug: Bug, why: str) -> None:
    (stop,) = (stop for stop in stops.STOPS if stop.why == why)
    with planted(bug), pytest.raises(Unexplained):
        stops.stop_in_turn(stop)


@pytest.mark.slow
def test_a_second_look_the_wrong_way_round_is_missed() -> None:
    explorer = stops.explorer_of(WRONG_WAY_ROUND.noticed_by)
    with planted(WRONG_WAY_ROUND), pytest.raises(Unexplained):
        stops.stop_twice(explorer, stopped=1, before=stops.CLAIM, first=0, then=2)


@pytest.mark.slow
def test_a_file_that_goes_under_a_task_is_missed() -> None:
    explorer = stops.explorer_of(CLAIMED_AND_GONE.noticed_by)
    with planted(CLAIMED_AND_GONE), pytest.raises(Unexplained, match="could not read"):
        stops.stop_and_rest(explorer, first=3, before="rename_new", second=2)


@pytest.mark.slow
def test_a_checkpoint_that_goes_too_far_is_missed() -> None:
    with planted(READ_TOO_FAR), pytest.raises(Unexplained, match="a stream has read up to"):
        stops.cut_in_turn(stops.explorer_of(READ_TOO_FAR.noticed_by), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "witness"),
    [(FINISHED_AS_IT_LIES, None), (OUT_OF_ORDER, None), (AS_IT_LIES, None), (APPLIED_TOO_EARLY, 2)],
    ids=lambda x: getattr(x, "what", x),
)
def test_a_rule_of_durability_that_is_broken_is_missed(bug: Bug, witness: int | None) -> None:
    explorer = stops.explorer_of(bug.noticed_by)
    with planted(bug), pytest.raises(Unexplained):
        stops.die_and_cut(explorer, 0, "flush", witness=witness)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("bug", "stopped_at"),
    [(NO_LOOK_FOR_A_COMMIT, "rename_new prepared"), (NO_SETTLING, "flush")],
    ids=lambda x: getattr(x, "what", x),
)
def test_a_rollback_that_overlooks_the_commit_of_a_dead_process_fails_the_search(bug: Bug, stopped_at: str) -> None:
    explorer = stops.explorer_of(bug.noticed_by)
    with planted(bug), pytest.raises(Unexplained):
        stops.die_in_turn(explorer, 0, 1, stopped_at)


@pytest.mark.slow
def test_a_file_that_is_stamped_before_its_number_is_issued_is_missed() -> None:
    explorer = stops.explorer_of(STAMPED_TOO_EARLY.noticed_by)
    with planted(STAMPED_TOO_EARLY), pytest.raises(Unexplained):
        stops.die_and_stop(explorer, 0, "store", first=1, then=2)


def test_a_subscription_that_is_ended_as_it_was_seen_is_missed() -> None:
    explorer, ends, reads = stops.explorer_of(ENDED_AS_IT_WAS_SEEN.noticed_by), 2, 0
    decides = stops.calls_of(explorer.play((Switch(1, ends),)), ends, r"lock \d+ 0 ")[0]
    with planted(ENDED_AS_IT_WAS_SEEN), pytest.raises(Unexplained, match="which was renewed"):
        explorer.play((Switch(1, ends), Switch(decides, reads)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "victim", "described"), OF_GROUPS_AND_MIRRORS, ids=lambda x: x.what if isinstance(x, Bug) else ""
)
def test_a_rule_of_groups_or_mirrors_that_is_broken_is_missed(bug: Bug, victim: int, described: str) -> None:
    explorer = stops.explorer_of(bug.noticed_by)
    with planted(bug), pytest.raises(Unexplained):
        stops.die_at_each_step(explorer, victim, described)
