"""The checker accepts allowed histories, and names each promise that a made-up history breaks."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.torture.checker import Left, check
from tests.torture.history import Log, Record, read


class Story:
    """Makes up a history, one record after the other."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._clock = itertools.count(1)

    def tell(self, tx: str, event: str, **fields: object) -> None:
        record = {"event": event, "at": next(self._clock), "worker": tx.partition(".")[0], "tx": tx, **fields}
        self.records.append(record)

    def put(self, tx: str, number: int, *keys: str, queue: str = "in", ack: bool = True) -> None:
        self.tell(tx, "begin")
        self.tell(tx, "put", queue=queue, keys=list(keys))
        self.tell(tx, "commit")
        self.tell(tx, "number", number=number)
        if ack:
            self.tell(tx, "ack")

    def begin_get(self, tx: str, number: int, ordinal: int = 0) -> None:
        self.tell(tx, "begin", noted=True)
        self.tell(tx, "try", number=number, first=ordinal, count=1)
        self.tell(tx, "claimed", number=number, first=ordinal, count=1)

    def got(self, tx: str, key: str, number: int, ordinal: int = 0, attempts: int = 0, queue: str = "in") -> None:
        self.tell(tx, "got", queue=queue, messages=[[key, [number, ordinal], attempts]])

    def get(self, tx: str, key: str, number: int, ordinal: int = 0, attempts: int = 0) -> None:
        self.begin_get(tx, number, ordinal)
        self.got(tx, key, number, ordinal, attempts)
        self.end(tx, "commit", "ack")

    def move(self, tx: str, key: str, number: int) -> None:
        """Take a message, put it into another queue, and decide to commit."""
        self.begin_get(tx, number)
        self.got(tx, key, number)
        self.tell(tx, "put", queue="out", keys=[f"{key}>"])
        self.tell(tx, "commit")

    def end(self, tx: str, *events: str) -> None:
        for event in events:
            self.tell(tx, event)


@pytest.fixture
def story() -> Story:
    return Story()


def verdict(story: Story, left: Iterable[Left] = ()) -> str:
    return "\n".join(check(story.records, left))


# -- histories that the checker accepts -------------------------------------------------------------------------------


def test_a_message_that_was_put_and_taken_is_fine(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.get("c.1", "a", 1)
    assert verdict(story) == ""


def test_a_message_that_is_left_is_fine(story: Story) -> None:
    story.put("p.1", 1, "a")
    assert verdict(story, [("in", "a", (1, 0), 0)]) == ""


def test_a_put_without_acknowledgement_may_have_happened_or_not(story: Story) -> None:
    story.put("p.1", 1, "a", ack=False)
    assert verdict(story) == ""
    assert verdict(story, [("in", "a", (1, 0), 0)]) == ""


def test_a_message_that_died_with_a_plain_get_is_not_lost(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.tell("c.1", "begin")
    story.tell("c.1", "commit")
    story.tell("c.1", "try", number=1, first=0, count=1)
    assert verdict(story) == ""


def test_a_message_comes_back_after_its_holder_died_with_a_try_counted_and_out_of_order(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.put("p.2", 2, "b")
    story.begin_get("c.1", 1)
    story.got("c.1", "a", 1)
    story.get("d.1", "b", 2)
    story.get("d.2", "a", 1, attempts=1)
    assert verdict(story) == ""


def test_a_branch_that_voted_and_was_told_to_commit_is_committed(story: Story) -> None:
    story.tell("p.1", "put", queue="in", keys=["a"])
    story.end("p.1", "prepare", "prepared", "commit")
    story.tell("p.1", "number", number=1)
    assert verdict(story, [("in", "a", (1, 0), 0)]) == ""
    assert "lost" in verdict(story)


# -- broken promises that the checker finds ---------------------------------------------------------------------------


def test_a_lost_acknowledged_message_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    assert "lost: ('in', 'a')" in verdict(story)


def test_one_death_excuses_only_the_messages_that_it_was_locking(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.put("p.2", 2, "b")
    story.tell("c.1", "begin")
    story.tell("c.1", "commit")
    story.tell("c.1", "try", number=2, first=0, count=1)
    assert "lost: ('in', 'a')" in verdict(story)
    assert "lost: ('in', 'b')" not in verdict(story)


def test_a_dropped_file_whose_messages_are_missing_is_found(story: Story) -> None:
    story.tell("d.1", "begin", ordered=False)
    story.tell("d.1", "put", queue="in", keys=["a"])
    story.end("d.1", "commit", "ack")
    assert "lost: ('in', 'a')" in verdict(story)


def test_a_double_delivery_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.get("c.1", "a", 1)
    story.get("d.1", "a", 1)
    assert "delivered twice: ('in', 'a')" in verdict(story)


def test_a_message_that_was_taken_and_is_still_there_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.get("c.1", "a", 1)
    assert "delivered twice: ('in', 'a')" in verdict(story, [("in", "a", (1, 0), 0)])


def test_two_holders_at_once_are_found_even_if_both_let_go(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.begin_get("c.1", 1)
    story.got("c.1", "a", 1)
    story.begin_get("d.1", 1)
    story.got("d.1", "a", 1, attempts=1)
    story.end("c.1", "rollback")
    story.end("d.1", "rollback")
    assert "delivered to d.1 while c.1 held it" in verdict(story, [("in", "a", (1, 0), 2)])


def test_a_message_that_was_never_committed_is_found(story: Story) -> None:
    story.tell("p.1", "put", queue="in", keys=["a"])
    story.end("p.1", "rollback")
    assert "never committed" in verdict(story, [("in", "a", (1, 0), 0)])


def test_a_producer_whose_messages_change_places_is_found(story: Story) -> None:
    story.put("p.1", 2, "a")
    story.put("p.2", 1, "b")
    assert "p put ('in', 'b') after ('in', 'a')" in verdict(story, [("in", "a", (2, 0), 0), ("in", "b", (1, 0), 0)])


def test_a_message_that_lies_elsewhere_than_it_was_put_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    assert "was put at (1, 0) and lies at (2, 0)" in verdict(story, [("in", "a", (2, 0), 0)])


def test_a_consumer_that_gets_an_earlier_message_later_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.put("p.2", 2, "b")
    story.get("c.1", "b", 2)
    story.get("c.2", "a", 1)
    assert "c.2 got ('in', 'a')" in verdict(story)


def test_half_a_transaction_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.move("c.1", "a", 1)
    story.tell("c.1", "number", number=2)
    assert "half of c.1" in verdict(story, [("in", "a", (1, 0), 1), ("out", "a>", (2, 0), 0)])


def test_a_transaction_of_which_one_put_is_missing_is_found(story: Story) -> None:
    story.put("p.1", 1, "a", "b", ack=False)
    assert "lost: ('in', 'b')" in verdict(story, [("in", "a", (1, 0), 0)])


def test_a_transaction_that_took_and_did_not_put_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.move("c.1", "a", 1)
    story.tell("c.1", "number", number=2)
    assert "lost: ('out', 'a>')" in verdict(story)


def test_a_message_may_die_with_a_plain_get_after_another_died_before_it_could_commit(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.move("c.1", "a", 1)
    story.begin_get("d.1", 1)
    story.tell("d.1", "commit")
    story.tell("d.1", "number", number=2)
    assert verdict(story) == ""


def test_a_message_may_die_with_a_plain_get_after_another_died_before_its_file_was_stamped(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.move("m.1", "a", 1)
    story.tell("m.1", "number", number=None, file="active/m")
    assert "lost: ('out', 'a>')" in verdict(story), "no other transaction can have taken the message"
    story.begin_get("g.1", 1)
    story.end("g.1", "commit")
    assert verdict(story) == ""


def test_a_vote_that_was_forgotten_is_found(story: Story) -> None:
    story.tell("p.1", "put", queue="in", keys=["a"])
    story.end("p.1", "prepare", "prepared")
    assert "voted yes and was forgotten" in verdict(story)


def test_a_death_that_does_not_count_as_a_try_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.begin_get("c.1", 1)
    story.got("c.1", "a", 1)
    story.get("d.1", "a", 1, attempts=0)
    assert "came back with no more" in verdict(story)


# -- messages that every worker must see ------------------------------------------------------------------------------


def look(story: Story, worker: str, *keys: str, begun: int = 0, queue: str = "in", complete: bool = True) -> None:
    fields = {"queue": queue, "keys": list(keys), "begun": begun or len(story.records) + 1, "all": complete}
    story.records.append({"event": "saw", "at": next(story._clock), "worker": worker, "tx": "", **fields})


def test_a_look_that_shows_everything_is_fine(story: Story) -> None:
    story.put("p.1", 1, "a", "b")
    look(story, "l", "a", "b")
    assert verdict(story, [("in", "a", (1, 0), 0), ("in", "b", (1, 1), 0)]) == ""


def test_half_a_commit_that_is_seen_is_found(story: Story) -> None:
    story.put("p.1", 1, "a", "b", "c", ack=False)
    look(story, "l", "a", "c")
    left = [("in", key, (1, place), 0) for place, key in enumerate("abc")]
    assert "l looked at in, and not ('in', 'b') of p.1" in verdict(story, left)


def test_the_other_queue_of_a_commit_must_show_it_too(story: Story) -> None:
    story.tell("p.1", "begin")
    story.tell("p.1", "put", queue="in", keys=["a"])
    story.tell("p.1", "put", queue="out", keys=["b"])
    story.tell("p.1", "commit")
    story.tell("p.1", "number", number=1)
    look(story, "l", "a")
    look(story, "l", queue="out")
    assert "l looked at out, and not ('out', 'b')" in verdict(story, [("in", "a", (1, 0), 0), ("out", "b", (1, 1), 0)])


def test_a_message_that_is_just_being_claimed_need_not_be_seen(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.begin_get("c.1", 1)
    look(story, "l")
    story.got("c.1", "a", 1)
    story.end("c.1", "commit", "ack")
    assert verdict(story) == ""


def test_a_look_that_was_cut_short_need_not_show_later_messages(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.put("p.2", 2, "b")
    look(story, "l", "a", complete=False)
    assert verdict(story, [("in", "a", (1, 0), 0), ("in", "b", (2, 0), 0)]) == ""


def test_a_look_that_saw_a_rolled_back_message_is_found(story: Story) -> None:
    story.tell("p.1", "put", queue="in", keys=["a"])
    story.end("p.1", "rollback")
    look(story, "l", "a")
    assert "l saw in a, which was never committed" in verdict(story)


def test_an_unacknowledged_message_that_was_seen_must_stay(story: Story) -> None:
    story.put("p.1", 1, "a", ack=False)
    look(story, "l", "a")
    assert "lost: ('in', 'a')" in verdict(story)


def test_an_earlier_message_that_is_passed_over_is_found(story: Story) -> None:
    story.put("p.1", 1, "a")
    story.put("p.2", 2, "b")
    story.get("c.1", "b", 2)
    assert "c.1 got ('in', 'b'), and not ('in', 'a')" in verdict(story, [("in", "a", (1, 0), 0)])


def test_a_more_urgent_message_that_is_passed_over_is_found(story: Story) -> None:
    for tx, number, key, priority in (("p.1", 1, "a", 10), ("p.2", 2, "b", 90)):
        story.tell(tx, "begin")
        story.tell(tx, "put", queue="urgent", keys=[key], priority=priority)
        story.end(tx, "commit")
        story.tell(tx, "number", number=number)
        story.end(tx, "ack")
    story.begin_get("c.1", 1)
    story.got("c.1", "a", 1, queue="urgent")
    story.end("c.1", "commit", "ack")
    assert "c.1 got ('urgent', 'a'), and not ('urgent', 'b')" in verdict(story, [("urgent", "b", (2, 0), 0)])


@pytest.mark.parametrize("torn", range(1, 30))
def test_a_torn_line_of_a_log_counts_as_not_written(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "log"
    Log(str(path), "worker").write("put", queue="orders")
    path.write_bytes(path.read_bytes()[:-torn])
    Log(str(path), "worker").write("ack")
    assert [record["event"] for record in read(str(path))] == (["put", "ack"] if torn == 1 else ["ack"])
