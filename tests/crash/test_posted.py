"""Processes that commit together: each request is committed once when any process dies or stops at any step."""

from collections.abc import Callable

import pytest

from spool.coordination.request_slots import SLOTS, RequestSlots
from spool.disk.memory import WORD_BYTES
from spool.log import adoption, standing_requests, write
from tests.crash.interleave import Interleaver
from tests.crash.operations import Unexplained
from tests.crash.planted import Bug, planted
from tests.crash.posted import LEADS, LEADS_NEXT, REPLIES, TAKES
from tests.crash.schedule import Kill, Stop, Switch
from tests.crash.stops import calls_of, die_at_each_step, explorer_of, some_calls_of
from tests.strides import Stride

NAMES = {LEADS: "leader", LEADS_NEXT: "next leader", REPLIES: "owner", TAKES: "taker"}
EVERY = 25
JOINS = rf"look \d+ 64 {SLOTS * WORD_BYTES}"  # a leader reads the states of all slots


def leader_and_owner_die(explorer: Interleaver) -> None:
    """The next leader dies before each of its steps, and the owner of a request dies with it."""
    whole = explorer.play(())
    for step in some_calls_of(explorer, whole, LEADS_NEXT):
        explorer.play((Kill(step, REPLIES), Kill(step, LEADS_NEXT)))


def leader_stops(explorer: Interleaver, leader: int) -> None:
    """A leader stops before each of its steps, until the other processes have given up."""
    for step in some_calls_of(explorer, explorer.play(()), leader):
        explorer.play((Stop(step),))


def rollback_beside_a_leader(explorer: Interleaver, leader: int) -> None:
    """Another process rolls the branch back before each step of a leader; it has the place of the taker."""
    for step in some_calls_of(explorer, explorer.play(()), leader):
        explorer.play((Switch(step, TAKES),))


def leader_comes_back(explorer: Interleaver) -> None:
    """A leader that was stopped before it joined goes on while the owner of a request withdraws it."""
    stopped = calls_of(explorer.play(()), LEADS, JOINS)[0]
    whole = explorer.play((Stop(stopped),))
    withdraws = calls_of(whole, LEADS_NEXT, r"lock \d+ 1 1$")[0]
    for step in range(withdraws - 4, withdraws + 8):
        explorer.play((Stop(stopped), Switch(step, LEADS)))


def owner_stops_before_stores(explorer: Interleaver) -> None:
    """The owner of a request stops before each of its stores into the shared memory; all others end their programs."""
    for step in calls_of(explorer.play(()), REPLIES, "store "):
        explorer.play((Stop(step),))


@pytest.mark.every(4)
@pytest.mark.parametrize("victim", NAMES, ids=NAMES.get)
def test_a_process_dies_at_any_step(victim: int, stride: Stride, record_property) -> None:
    explorer = explorer_of("posted commits", every=stride(EVERY))
    die_at_each_step(explorer, victim, "")
    record_property("posted commits: schedules", explorer.count.schedules)


@pytest.mark.every(12)
@pytest.mark.parametrize("victim", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("scenario", ["posted decision", "posted decision beside a rollback"])
def test_a_process_dies_beside_a_posted_decision(scenario: str, victim: int, stride: Stride, record_property) -> None:
    explorer = explorer_of(scenario, every=stride(EVERY))
    die_at_each_step(explorer, victim, "")
    if victim == LEADS_NEXT:  # and the decider with it
        leader_and_owner_die(explorer)
    record_property("posted decisions: schedules", explorer.count.schedules)


@pytest.mark.every(2)
@pytest.mark.parametrize("leader", [LEADS, LEADS_NEXT], ids=NAMES.get)
def test_a_branch_is_rolled_back_at_any_step_of_a_leader(leader: int, stride: Stride) -> None:
    rollback_beside_a_leader(explorer_of("posted decision beside a rollback", every=stride(EVERY)), leader)


@pytest.mark.every(2)
@pytest.mark.parametrize("owner", [REPLIES, TAKES], ids=NAMES.get)
def test_an_owner_dies_at_any_step_of_the_leader(owner: int, stride: Stride) -> None:
    """The owner of a posted request dies before each step of the process that leads next."""
    die_at_each_step(explorer_of("posted commits", every=stride(EVERY)), owner, "", of=LEADS_NEXT)


def test_a_leader_and_an_owner_die_together(stride: Stride) -> None:
    leader_and_owner_die(explorer_of("posted commits", every=stride(EVERY)))


@pytest.mark.every(2)
@pytest.mark.parametrize("leader", [LEADS, LEADS_NEXT], ids=NAMES.get)
def test_a_leader_stops_at_any_step(leader: int, stride: Stride) -> None:
    leader_stops(explorer_of("posted commits", every=stride(EVERY)), leader)


def test_a_request_is_withdrawn_or_joined_but_not_both() -> None:
    leader_comes_back(explorer_of("posted commits"))


def test_an_owner_stops_before_any_store() -> None:
    owner_stops_before_stores(explorer_of("posted commits"))


# -- each rule broken on purpose ---------------------------------------------------------------------------------------

BUGS: tuple[tuple[Bug, Callable[[Interleaver], object]], ...] = (
    (Bug("rule 18: a request is taken behind the stamp", write.Write.name,
         (("mark = self.into.name(", "issued, self.issued = self.issued, None\n        mark = self.into.name("),
          ("*stamp(mark))", "*stamp(mark))\n        if issued is not None:\n"
           "            issued(self.write_sets, mark)")), "posted commits"),
     lambda explorer: die_at_each_step(explorer, LEADS_NEXT, "")),
    (Bug("rule 19: a taken request is posted again without a look", standing_requests.settle,
         (("DONE if _was_committed(store, slots.number(slot)) else POSTED", "POSTED"),), "posted commits"),
     lambda explorer: die_at_each_step(explorer, LEADS_NEXT, "")),
    (Bug("rule 20: a claim does not look at the standing requests", standing_requests.look_at_standing,
         (("if slots.none_stand:", "if True:"),), "posted commits"),
     lambda explorer: die_at_each_step(explorer, REPLIES, "")),
    (Bug("rule 5: a leader does not look whether a posted branch was rolled back", adoption.refusal,
         (("if xid in others:", "if True:\n        return None\n    if xid in others:"),),
         "posted decision beside a rollback"),
     lambda explorer: [rollback_beside_a_leader(explorer, leader) for leader in (LEADS, LEADS_NEXT)]),
    (Bug("rule 22: a request is withdrawn although a leader has joined it", RequestSlots.change_posted,
         (("(POSTED,)", "(POSTED, JOINED, TAKEN)"),), "posted commits"),
     leader_comes_back),
    (Bug("rule 22: the word of a request is stored twice, as the C library copies bytes", RequestSlots.post,
         (("self._store(slot, POSTED, row)",
           "at = _state_at(slot)\n    memory[at : at + WORD_BYTES] = _word(slot, POSTED, row)"),), "posted commits"),
     owner_stops_before_stores),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "drive"), BUGS, ids=lambda x: x.what if isinstance(x, Bug) else "")
def test_a_rule_of_posted_commits_that_is_broken_is_missed(
    bug: Bug, drive: Callable[[Interleaver], object], record_property
) -> None:
    record_property("planted bugs", 1)
    explorer = explorer_of(bug.noticed_by)
    with planted(bug), pytest.raises(Unexplained):
        drive(explorer)
