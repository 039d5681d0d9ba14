"""C06: a commit of queues without durability is not flushed (Rule 16), and no durable message depends on it.

For each part of the rule that is left out one of the stories fails; the histories of ``losses`` have every cut.
"""

from collections.abc import Callable, Iterable
from itertools import islice

import pytest

import spool
from spool.admin import queues
from spool.admin.findings import Finding, Kind
from spool.intake import Intake
from spool.log import sequence, unflushed, write
from spool.model import layout
from spool.recovery import branch_files, unfinished
from spool.transactions.two_phase import commit_prepared, rollback_prepared
from tests import door
from tests.at_once import AT_ONCE
from tests.crash.by_rules import THREE_RULES
from tests.crash.planted import Bug, planted
from tests.histories.branches import branch
from tests.histories.contents import XID
from tests.machine import NO_FILES, Image, Machine
from tests.shown import bodies
from tests.simdisk import SimulatedDisk, repeatable
from tests.survivors import Rules, survivors

LIMIT = 24


class Story:
    """A machine with a space of two queues: "safe" loses nothing, "lossy" has no durability."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        made = Machine(NO_FILES, **rules.told)
        with spool.create(SimulatedDisk(made), defaults=AT_ONCE) as space:
            space.create_queue("safe")
            space.create_queue("lossy", durability="none", retries=0, error_queue="safe")
        self.machine, self.space = self.opened(made.image(), 2)

    def opened(self, image: Image, boot: int) -> tuple[Machine, spool.Space]:
        machine = Machine(image, boot=boot, **self.rules.told)
        return machine, spool.open(SimulatedDisk(machine))

    def after_cuts(self, check: Callable[[spool.Space], None], limit: int = LIMIT, boot: int = 3) -> None:
        """Check each disk that a power cut can leave now; none is damaged. ``boot`` 2: only the disk was cut off."""
        for survivor in islice(survivors(self.machine, self.rules, limit=limit, seed=1), limit):
            _, space = self.opened(survivor.image, boot)
            _expect_whole(space.recovery.findings, survivor.story)
            check(space)
            _expect_whole(space.check(), survivor.story)


def a_vote_that_names_a_lost_commit(rules: Rules) -> None:
    """The lost message's number is not given to another message, which the vote would take."""
    story = Story(rules)
    story.space.put("lossy", "lost")
    vote = branch(story.space)
    vote._hold.journal = None  # (a journal would name the message, too)
    vote.get("lossy")
    assert vote.prepare()
    lost = []

    def check(space: spool.Space) -> None:
        lost.append(all(run.number != 1 for runs in door.index(space).messages.runs.values() for run in runs))
        space.put("safe", "kept")
        if len(lost) % 2:
            commit_prepared(door.core(space), XID, vote_known=True)
        else:
            rollback_prepared(door.store(space), XID, door.deadline(space))
        _expect(bodies(space, "safe")[-1:], ["kept"])

    story.after_cuts(check)
    assert any(lost)


def a_journal_that_names_a_lost_commit(rules: Rules) -> None:
    """The lost message's number is not given to another message, which would get the attempt."""
    story = Story(rules)
    story.space.put("lossy", "lost")
    held = story.space.transaction()
    held.get("lossy")
    (journal,) = (path for path, _, _ in story.machine.image().files if path.endswith(".claims"))
    whole = story.machine.find(journal).data
    for survivor in survivors(story.machine, rules, limit=LIMIT, seed=1):
        there = {path: data for path, _, data in survivor.image.files}
        _, space = story.opened(survivor.image, 3)
        space.put("safe", "kept")
        _expect(bodies(space, "safe")[-1:], ["kept"])
        newest = max(door.index(space).messages.runs)
        assert there.get(journal) != whole or newest > 1, f"number 1 is given out again: {survivor.story}"


def a_moved_message_is_flushed(rules: Rules) -> None:
    """A message in a durable queue is durable: moved by hand, after a failed attempt, or by a vote."""
    story = Story(rules)
    moved = story.space.put("lossy", "moved")
    failed = story.space.put("lossy", "failed")
    story.space.put("lossy", "stays")
    story.space.move(moved, "safe")
    with story.space.transaction() as tx:
        assert tx.get("lossy", message_id=failed).body == "failed"
        tx.rollback()
    assert sorted(map(str, bodies(story.space, "safe"))) == ["failed", "moved"]
    story.after_cuts(lambda space: _expect(sorted(map(str, bodies(space, "safe"))), ["failed", "moved"]))


def a_commit_of_both_is_flushed(rules: Rules) -> None:
    story = Story(rules)
    story.space.put("lossy", "one")
    with spool.Transaction(door.core(story.space), counted=False) as tx:
        tx.put("safe", f"reply to {tx.get('lossy').body}")
    story.after_cuts(lambda space: _expect((bodies(space, "safe"), bodies(space, "lossy")), (["reply to one"], [])))


def a_queue_that_becomes_durable(rules: Rules) -> None:
    """The queue's messages are durable when the change returns, and so are later messages."""
    story = Story(rules)
    story.space.put("lossy", "one")
    assert story.space.change_queue("lossy", durability="flush").durability == "flush"
    story.space.put("lossy", "two")
    story.after_cuts(lambda space: _expect(bodies(space, "lossy"), ["one", "two"]))


def a_mark_over_flushed_commits(rules: Rules) -> None:
    """Flushed together or one by one: every commit below the mark of a later commit exists."""
    for there in (["0", "1"], list("0123456789")):
        story = Story(rules)
        for body in there:
            story.space.put("lossy", body)
        door.reclaim(story.space)
        story.space.put("safe", "kept")
        story.after_cuts(lambda space, there=there: _expect(bodies(space, "lossy"), there), limit=8)  # type: ignore[misc]


def a_disk_that_comes_back_in_the_same_boot(rules: Rules) -> None:
    """A snapshot of the disk, or the disk after it was away: ``run/`` tells of numbers whose files were not flushed."""
    story = Story(rules)
    story.space.put("safe", "kept")
    for body in "0123":
        story.space.put("lossy", body)

    def check(space: spool.Space) -> None:
        _expect(bodies(space, "safe"), ["kept"])
        assert set(bodies(space, "lossy")) <= set("0123")

    story.after_cuts(check, boot=2)


def dropped_files(rules: Rules) -> None:
    """A file that was dropped into such a queue is not lost: it leaves its folder for a commit that is flushed."""
    story = Story(rules)
    disk = door.disk(story.space)
    handle = disk.create(f"{layout.DROP}/lossy/file")
    disk.write_at(handle, 0, b"dropped")
    disk.flush(handle)
    disk.flush_directory(f"{layout.DROP}/lossy")
    disk.close(handle)
    Intake(story.space).run(once=True)

    def check(space: spool.Space) -> None:
        Intake(space).run(once=True)
        _expect(bodies(space, "lossy"), [b"dropped"])

    story.after_cuts(check)


def _expect(found: object, promised: object) -> None:
    assert found == promised, f"{found} instead of {promised}"


def _expect_whole(findings: Iterable[Finding], story: str) -> None:
    damaged = [str(finding) for finding in findings if finding.kind is Kind.DAMAGED]
    assert not damaged, f"{damaged}, {story}"


STORIES = (
    a_vote_that_names_a_lost_commit, a_journal_that_names_a_lost_commit, a_moved_message_is_flushed,
    a_commit_of_both_is_flushed, a_queue_that_becomes_durable, a_mark_over_flushed_commits,
    a_disk_that_comes_back_in_the_same_boot, dropped_files,
)  # fmt: skip


@THREE_RULES
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_c06_work_that_follows_a_commit_without_a_flush_is_not_lost_with_it(
    story: Callable[[Rules], None], rules: Rules
) -> None:
    with repeatable(5):
        story(rules)


_MOVED = "flush = flush_moved(store, whole, tables) or flush"
OF_NAMES = (
    a_vote_that_names_a_lost_commit,
    a_journal_that_names_a_lost_commit,
)  # missed where each name is lost on its own
# Each with the message of the failing story.
BROKEN = (
    (Bug("numbers of votes are given out again", branch_files.read_prepared, (("named = max(", "max("),),
         "a_vote_that_names_a_lost_commit"), r"^\[\] instead of \['kept'\]"),
    (Bug("numbers of journals are given out again", unfinished.highest_named,
         (("in active.journals", "in ()"),), "a_journal_that_names_a_lost_commit"),
     "^number 1 is given out again"),
    (Bug("what is moved lies in a file that was not flushed", write.Committed.make_durable, ((_MOVED, "pass"),),
         "a_moved_message_is_flushed"), r"^\[\] instead of \['failed', 'moved'\]"),
    (Bug("the move is not flushed", unflushed.flush_moved, (("return bool(late)", "return False"),),
         "a_moved_message_is_flushed"), r"^\['moved'\] instead of \['failed', 'moved'\]"),
    (Bug("a commit of both queues is not flushed", unflushed.needs_flush,
         (("not config.may_lose.issuperset(table.queues)",
           "not config.may_lose.intersection(table.queues) and table.queues and not table.commands"),),
         "a_commit_of_both_is_flushed"), r"^\(\[\], \[\]\) instead of \(\['reply to one'\], \[\]\)"),
    (Bug("a queue that becomes durable keeps what may be lost", queues.change_queue, (("_flush_all(store)", "pass"),),
         "a_queue_that_becomes_durable"), r"^\['two'\] instead of \['one', 'two'\]"),
    (Bug("the mark passes what was not flushed", sequence.flush_published,
         (("disk.durability.flush_all(disk, store.shared.open_lock.handle)", "True"),), "a_mark_over_flushed_commits"),
     r"^\['damaged: committed/0*1\.msgpack: .*'damaged: committed/0*10\.msgpack: "),
    (Bug("the mark passes what was not flushed one by one", sequence.flush_commit,
         (("disk.make_durable(handle, layout.COMMITTED)", "pass"),), "a_mark_over_flushed_commits"),
     r"^\['damaged: committed/0*1\.msgpack: .*'damaged: committed/0*2\.msgpack: "),
    (Bug("a dropped file goes with a commit that is not flushed", unflushed.needs_flush,
         (('"left":\n                return True', '"left":\n                continue'),), "dropped_files"),
     r"^\[\] instead of \[b'dropped'\]"),
)  # fmt: skip


@pytest.mark.parametrize(("bug", "told"), BROKEN, ids=[bug.what for bug, _ in BROKEN])
def test_a_part_of_the_rule_that_is_broken_is_missed(bug: Bug, told: str, record_property) -> None:
    record_property("planted bugs", 1)
    (story,) = (story for story in STORIES if story.__name__ == bug.noticed_by)
    with repeatable(5), planted(bug), pytest.raises(AssertionError, match=told):
        story(Rules.STRICT if story in OF_NAMES else Rules.ORDERED)
