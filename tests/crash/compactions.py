"""Compactions beside processes that take, vote and open."""

import spool
from spool.log import checkpoint
from spool.model import layout
from tests import door
from tests.compaction import small_compactions
from tests.crash.interleave import Scenario, Simulation
from tests.crash.programs import deciding, getting, one_after_the_other, opening, preparing, putting, rolling_back


def compacting(space: spool.Space) -> None:
    with small_compactions():
        door.compact(space)
        door.reclaim(space)
        with door.disk(space).exclusively(layout.RECLAIM_LOCK) as ours:
            if ours:
                checkpoint.save(door.disk(space), door.store(space).shared.counters, door.store(space).view)


def _compaction_beside_takes(simulation: Simulation) -> None:
    """Messages are claimed, taken and released during a compaction: each exists once."""
    simulation.process("S", compacting)
    simulation.process("T", getting(simulation.log, "T", 2))
    simulation.process("R", rolling_back(simulation.log, "R"))


def _compaction_beside_a_vote(simulation: Simulation) -> None:
    """A branch is prepared and decided over a message that moves meanwhile."""
    simulation.process("S", one_after_the_other(compacting, compacting))
    simulation.process("P", preparing(simulation.log))
    simulation.process("D", deciding(simulation.log, "commit", patience=5))


def _compaction_beside_openers(simulation: Simulation) -> None:
    """An opener reads everything while files are superseded and tombstones are merged: it sees each message once."""
    simulation.process("S", one_after_the_other(compacting, getting(simulation.log, "S", 3), compacting))
    simulation.newcomer("O", opening(getting(simulation.log, "O", 2)))
    simulation.process("A", one_after_the_other(putting(simulation.log, "A"), getting(simulation.log, "a", 2)))


COMPACTED = tuple(f"m{place}" for place in range(5))


COMPACTIONS = (
    Scenario("a compaction beside takes", _compaction_beside_takes, COMPACTED, model="compaction"),
    Scenario("a compaction beside a vote", _compaction_beside_a_vote, COMPACTED),
    Scenario("compactions beside openers", _compaction_beside_openers, COMPACTED),
)
