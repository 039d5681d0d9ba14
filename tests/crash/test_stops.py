"""A process that stops at the narrowest place of a step loses and doubles nothing, however far other processes get."""

import pytest

from tests.crash import stops
from tests.strides import Stride
from tests.survivors import Rules

COMMITS = r"rename_new \S+ committed/"
GROUPS = ("a group beside a look", "a group with a mirror", "a group with a mirror that comes last")
THREADS = range(3)  # of their first process
ROUND = "a round beside a sweep"
WORKER, DRIVER, COMPACTOR = 0, 2, 3
WRITE = "a write and its replay"
TASK, HOLDER, WRITER, REPLAYER = 0, 2, 4, 5


@pytest.mark.every(8, first=1)
@pytest.mark.parametrize("stop", stops.STOPS, ids=lambda stop: stop.why)
def test_a_process_stopped_at_a_narrow_place_loses_and_doubles_nothing(
    stop: stops.Stop, stride: Stride, record_property
) -> None:
    tried = stops.stop_in_turn(stop, every=stride(4))
    record_property("narrow windows: schedules", tried)
    assert tried > 1


def test_a_vote_and_its_commit_at_any_step_of_a_get_are_explained(stride: Stride, record_property) -> None:
    """A message is being taken; a branch votes about it, and is committed at any later step of the taker."""
    explorer = stops.explorer_of("prepare, take, commit by another", every=stride(8))
    tried = stops.stop_twice(explorer, stopped=1, before=stops.CLAIM, first=0, then=2)
    record_property("narrow windows: schedules", tried)
    assert tried > 10


@pytest.mark.parametrize("stopped_at", ["rename_new prepared", "flush"])
def test_a_rollback_looks_for_the_commit_of_a_dead_process(stopped_at: str, stride: Stride) -> None:
    """At each step of a rollback, another process commits the branch, and dies before its branch is moved, or before
    its commit is flushed."""
    stops.die_in_turn(stops.explorer_of(stops.RACE, every=stride(8)), stops.COMMIT, stops.ROLLBACK, stopped_at)


def test_a_commit_makes_a_branch_durable_whose_owner_died_at_its_flush(stride: Stride) -> None:
    """The branch's owner dies at its flush, another process commits the branch, and then the power fails."""
    stops.die_and_cut(stops.explorer_of("prepare, commit by another, take"), 0, "flush", every=4 * stride(4))


@pytest.mark.every(10)
@pytest.mark.parametrize("rules", [Rules.ORDERED, Rules.STRICT], ids=lambda rules: rules.value)
@pytest.mark.parametrize("scenario", GROUPS)
def test_a_group_commits_whole_or_not_when_its_leader_dies_at_any_step(
    scenario: str, rules: Rules, stride: Stride, record_property
) -> None:
    """The file has requests of followers, too. Without an acknowledgement all of them happened or none; after one
    acknowledgement all of them did (A02, A04)."""
    explorer = stops.explorer_of(scenario, rules, every=stride(4))
    whole = explorer.play(())
    commits = [actor for actor in THREADS for _ in stops.calls_of(whole, actor, COMMITS)]
    assert len(commits) < len(THREADS), "they did not commit together"
    stops.die_at_each_step(explorer, commits[-1], COMMITS)
    record_property("narrow windows: schedules", explorer.count.schedules)


def test_the_files_of_messages_that_a_round_holds_remain(record_property) -> None:
    """A message is claimed while it is compacted: the task reads it where it lay."""
    tried = stops.stop_and_rest(stops.explorer_of(ROUND), COMPACTOR, COMMITS, DRIVER)
    record_property("narrow windows: schedules", tried)
    assert tried > 1


def test_x05_a_power_cut_does_not_undo_commits_that_a_stream_has_read(record_property) -> None:
    """The checkpoint of the stream goes up to a commit whose number no other commit can get."""
    tried = stops.cut_in_turn(stops.explorer_of("a stream beside counted attempts"), 0)
    record_property("narrow windows: schedules", tried)
    assert tried > 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("rules", [Rules.ORDERED, Rules.STRICT], ids=lambda rules: rules.value)
@pytest.mark.parametrize(
    ("scenario", "victim", "of"),
    [
        (ROUND, WORKER, WORKER), (ROUND, DRIVER, DRIVER), (WRITE, TASK, TASK), (WRITE, HOLDER, WRITER),
        (WRITE, WRITER, WRITER), (WRITE, REPLAYER, REPLAYER),
    ],
)  # fmt: skip
def test_whichever_process_of_a_job_dies_at_each_of_its_steps(
    scenario: str, victim: int, of: int, rules: Rules, record_property
) -> None:
    """The messages and replies of a round, and the rows of a write, exist once, also after a power cut."""
    explorer = stops.explorer_of(scenario, rules)
    stops.die_at_each_step(explorer, victim, "", of=of)
    record_property("narrow windows: schedules", explorer.count.schedules)
