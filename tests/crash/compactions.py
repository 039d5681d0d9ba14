"""Compactions beside processes that take, vote and open."""

import spool
from spool.log import checkpoint
from spool.maintenance.reclaim import reclaim
from spool.model import layout
from tests.compaction import small_compactions
from tests.crash.interleave import Scenario, Stage
from tests.crash.programs import (
    deciding,
    getting,
    one_after_the_other,
    opening,
    preparing,
    putting,
    rolling_back,
)


def compacting(space: spool.Space) -> None:
    with small_compactions():
        space._housekeeper.compact()
        reclaim(space._store)
        with space._store.files.disk.exclusively(layout.RECLAIM_LOCK) as ours:
            if ours:
                checkpoint.save(space._store.files.disk, space._store.shared.counters, space._store.view)


def _compaction_beside_takes(stage: Stage) -> None:
    """Messages are claimed, taken and given back while they are compacted: each is there once."""
    stage.process("S", compacting)
    stage.process("T", getting(stage.book, "T", 2))
    stage.process("R", rolling_back(stage.book, "R"))


def _compaction_beside_a_vote(stage: Stage) -> None:
    """A branch is prepared and decided over a message that moves meanwhile."""
    stage.process("S", one_after_the_other(compacting, compacting))
    stage.process("P", preparing(stage.book))
    stage.process("D", deciding(stage.book, "commit", patience=5))


def _compaction_beside_openers(stage: Stage) -> None:
    """An opener reads everything while files are superseded and tombstones are merged: it sees each message once."""
    stage.process("S", one_after_the_other(compacting, getting(stage.book, "S", 3), compacting))
    stage.newcomer("O", opening(getting(stage.book, "O", 2)))
    stage.process("A", one_after_the_other(putting(stage.book, "A"), getting(stage.book, "a", 2)))


COMPACTED = tuple(f"m{place}" for place in range(5))


COMPACTIONS = (
    Scenario("a compaction beside takes", _compaction_beside_takes, COMPACTED, model="compaction"),
    Scenario("a compaction beside a vote", _compaction_beside_a_vote, COMPACTED),
    Scenario("compactions beside openers", _compaction_beside_openers, COMPACTED),
)
