"""Histories of the work that no caller asks for: reclaimed, compacted and merged files, checkpoints, the close."""

from unittest import mock

import spool
from spool.log import checkpoint
from spool.maintenance import compaction, triggers
from tests import door
from tests.compaction import small_compactions
from tests.histories.branches import abandoned, branch
from tests.histories.contents import EMPTY, XID
from tests.histories.history import Expectation, History, did, housekeeping
from tests.histories.messages import THREE, three_messages
from xa import ResourceManager


def _consumed_messages(space: spool.Space) -> None:
    three_messages(space)
    space.get_many("a", 3)
    space.put("b", "stays")


PAGES = "more than a page" + " " * 4096


def _reclaim(space: spool.Space, expected: Expectation) -> None:
    """Later commits overwrite removed files."""
    did(door.reclaim(space))
    with expected.becoming(expected.contents.got("b")):
        space.get("b")
    with expected.becoming(expected.contents.put("b", PAGES)):
        space.put("b", PAGES)
    did(door.reclaim(space))


CONSUMED = THREE.got("a", 3).put("b", "stays")


def _put_and_reclaim(space: spool.Space, expected: Expectation) -> None:
    """The housekeeper has its turn after a commit."""
    with expected.becoming(expected.contents.put("a", "one")):
        space.put("a", "one")
    with housekeeping(space):
        door.housekeeper(space).committed(every=0)


def _close(space: spool.Space, expected: Expectation) -> None:
    with mock.patch.multiple(triggers, TIDY_FROM=0, RECLAIM_EVERY_COMMITS=0):  # (also if another process has it open)
        space.close()


def _singles(space: spool.Space) -> None:
    for body in "123456":
        space.put("a", body)
    assert space.get("a").body == "1"


SINGLES = EMPTY.put("a", *"123456").got("a")


def _compact(space: spool.Space) -> int:
    with housekeeping(space):
        return door.compact(space)


def _save(space: spool.Space) -> bool:
    store = door.store(space)
    with housekeeping(space):
        return checkpoint.save(store.files.disk, store.shared.counters, store.view)


def _compacted(space: spool.Space, expected: Expectation) -> None:
    """Compactions move messages repeatedly. The old files are removed, the removals of messages remain."""
    with small_compactions():
        did(_compact(space))
        did(door.reclaim(space))
        with expected.becoming(expected.contents.got("a", 4)):
            space.get_many("a", 4)
        with expected.becoming(expected.contents.put("a", "last")):
            space.put("a", "last")
        with mock.patch.object(compaction, "MAX_WASTE", -1.0), mock.patch.object(compaction, "SEGMENT_BYTES", 2):
            did(_compact(space))
        door.reclaim(space)


def _checkpoint(space: spool.Space, expected: Expectation) -> None:
    """An opener uses a checkpoint that is older or newer than the files, or reads all files."""
    for _ in range(2):
        with small_compactions():
            _compact(space)
        door.reclaim(space)
        _save(space)
        with expected.becoming(expected.contents.got("a")):
            space.get("a")
    with expected.becoming(expected.contents.put("a", "last")):
        space.put("a", "last")
    door.reclaim(space)
    did(_save(space))
    door.reclaim(space)


def _six_in_one(space: spool.Space) -> None:
    space.put_many("a", list("123456"))


SIX_IN_ONE = EMPTY.put("a", *"123456")


def _tombstones_merged(space: spool.Space, expected: Expectation) -> None:
    """One file repeats many removals. The other files are removed, and the removed messages do not return."""
    with small_compactions():
        for _ in range(2):
            with expected.becoming(expected.contents.got("a")):
                space.get("a")
        did(_compact(space))
        did(door.reclaim(space))
        with expected.becoming(expected.contents.got("a", 2)):
            space.get_many("a", 2)
        _compact(space)
        door.reclaim(space)


def _half_compacted(space: spool.Space, expected: Expectation) -> None:
    """A compaction does not move claimed messages and messages in doubt."""
    with small_compactions():
        with expected.becoming(SINGLES_IN_DOUBT), abandoned(branch(space)) as tx:
            tx.get("a")
            assert tx.prepare()
        with abandoned(space.transaction()) as held:
            assert held.get("a").body == "3"
            did(_compact(space))
            door.reclaim(space)
            with expected.becoming(SINGLES_IN_DOUBT.got("a")):
                held.commit()
        with expected.becoming(SINGLES.got("a", 2), decides=True):
            ResourceManager(space).commit(XID)
        door.reclaim(space)


SINGLES_IN_DOUBT = SINGLES.doubting("a", 1)
WITHOUT_THE_THIRD = SINGLES.got("a").ordered("a", *"2456")

UPKEEP = (
    History("reclaim", _consumed_messages, CONSUMED, _reclaim),
    History("put and reclaim", _consumed_messages, CONSUMED, _put_and_reclaim),
    History("close", _consumed_messages, CONSUMED, _close),
    History("compaction", _singles, SINGLES, _compacted, survivors=1),
    History("checkpoint", _singles, SINGLES, _checkpoint, survivors=1),
    History("merged tombstones", _six_in_one, SIX_IN_ONE, _tombstones_merged, survivors=1),
    History(
        "compaction beside what is held",
        _singles,
        SINGLES,
        _half_compacted,
        {
            SINGLES_IN_DOUBT: {"commit": SINGLES.got("a"), "rollback": SINGLES},
            SINGLES_IN_DOUBT.got("a"): {"commit": SINGLES.got("a", 2), "rollback": WITHOUT_THE_THIRD},
        },
        survivors=1,
    ),
)
