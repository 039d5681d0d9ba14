"""Who stops at the narrowest place of a step, however far another comes meanwhile, loses and doubles nothing."""

import pytest

from tests.crash.stops import Stop, calls_of, die_and_cut, die_at_each_step, die_in_turn, explorer_of, stop_in_turn
from tests.survivors import Rules

RACE = "commit, rollback and commit race"
_COMMIT, _ROLLBACK, _OTHER_COMMIT = range(3)
CLAIM = r"lock \d+ \d{8} "  # of a message: its number's bits lie above its ordinal's

COMMITS = r"rename_new \S+ committed/"
GROUPS = ("a group beside a look", "a group with a mirror", "a group with a mirror that comes last")
THREADS = range(3)  # of their first process

STOPS = (
    Stop("a list of prepared branches is never read between a vote's new version and its new name",
         "a vote beside a take", 0, r"rename_new \S+ prepared/", 1),
    Stop("a list of prepared branches is never read between a rollback's new version and the old name's end",
         "a rollback beside takes", 0, "unlink prepared/", 1),
    Stop("nobody rolls back a branch while its bytes are made durable", RACE, _COMMIT, r"rename \S+copy prepared/",
         _ROLLBACK),
    Stop("nobody commits a branch whose rollback is at its last step", RACE, _ROLLBACK, "unlink prepared/", _COMMIT),
    Stop("nobody rolls back a branch while its commit is flushed", RACE, _COMMIT, "flush", _ROLLBACK),
    Stop("who waited for the number lock looks for a commit of his branch", RACE, _COMMIT, r"lock \d+ 0 ",
         _OTHER_COMMIT),
    Stop("a committed branch is not made durable behind its move", "adopt, take and reclaim by two", 0, "flush", 1),
    Stop("who locked a message looks for a vote about it", "a vote beside a take", 1, CLAIM, 0),
    Stop("who locked a message looks for its removal", "a claim beside a removal", 1, CLAIM, 0),
    Stop("who locked a message looks for a removal that nobody can see yet", "a commit that cannot be made visible", 1,
         CLAIM, 0),
    Stop("numbers are given out one at a time", "commits beside takes", 0, r"rename_new \S+ committed/", 1),
    Stop("a number is published after those before it, by its writer", "commits beside takes", 0, "flush", 1),
    Stop("two who create queues lose none", "two create queues", 0, "rename space.toml.tmp", 1),
    Stop("two intakes do not take one file while it has two names", "two intakes", 0, "link drop/", 1, Rules.STRICT),
    Stop("two intakes do not take one file while it has a copy", "two intakes and another user's files", 0,
         "rename_new drop/", 1, Rules.STRICT),
)  # fmt: skip


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.why)
def test_however_far_another_comes_meanwhile(stop: Stop, record_property) -> None:
    tried = stop_in_turn(stop)
    record_property("narrow windows: schedules", tried)
    assert tried > 1


@pytest.mark.parametrize("stopped_at", ["rename ", "flush"])
def test_a_rollback_looks_for_the_commit_of_who_died(stopped_at: str) -> None:
    """At each step of a rollback, another process commits the branch, and dies before its branch is moved, or before
    its commit is flushed."""
    die_in_turn(explorer_of(RACE), _COMMIT, _ROLLBACK, stopped_at)


def test_who_was_not_told_a_vote_makes_the_branch_durable() -> None:
    """Its owner dies at its flush; another commits it; then the power fails."""
    die_and_cut(explorer_of("prepare, commit by another, take"), 0, "flush")


@pytest.mark.parametrize("rules", [Rules.ORDERED, Rules.STRICT], ids=lambda rules: rules.value)
@pytest.mark.parametrize("scenario", GROUPS)
def test_whoever_leads_a_group_dies_at_each_step_of_his_commit(scenario: str, rules: Rules, record_property) -> None:
    """With followers in his file, that is: what nobody was told is there whole or not at all, and what one of them was
    told is there for all (A02, A04)."""
    explorer = explorer_of(scenario, rules)
    whole = explorer.play(())
    commits = [actor for actor in THREADS for _ in calls_of(whole, actor, COMMITS)]
    assert len(commits) < len(THREADS), "they did not commit together"
    die_at_each_step(explorer, commits[-1], COMMITS)
    record_property("narrow windows: schedules", explorer.count.schedules)
