"""Tuxedo /Q's behaviours, by their ids, through the calls of applications. (Q02 and Q03: ``test_q02_order``.)"""

import logging
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import pytest

import spool
from spool.model import codecs
from tests.at_once import AT_ONCE
from tests.clocks import MovedClock, timed
from tests.features.conftest import Reopen, drained, edited, seen
from tests.spaces import fail_one


def test_q01_many_queues_one_storage_and_several_spaces_in_one_process(tmp_path: Path) -> None:
    with spool.create(tmp_path / "one") as one, spool.create(tmp_path / "two") as two:
        for space in (one, two):
            space.create_queue("a")
            space.create_queue("b")
        with one.transaction(), two.transaction():  # each joins its own
            one.put("a", 1)
            one.put("b", 2)
            two.put("a", 3)
        assert [drained(one, "a"), drained(one, "b"), drained(two, "a"), drained(two, "b")] == [[1], [2], [3], []]


def test_q04_a_message_is_invisible_before_its_time_absolute_or_relative_to_the_commit(
    space: spool.Space, clock: MovedClock
) -> None:
    space.create_queue("q")
    begun = clock.now()
    space.put("q", "absolute", not_before=begun + 200)
    with space.transaction() as tx:
        tx.put("q", "relative", delay=100)
        clock.later += 50  # the transaction takes its time, and the delay counts from its end
    assert drained(space, "q") == []
    clock.later += 60
    assert drained(space, "q") == []
    clock.later += 45
    assert drained(space, "q") == ["relative"]
    clock.later += 60
    assert drained(space, "q") == ["absolute"]


def test_q04_by_its_id_or_correlation_id_a_delayed_message_is_taken_at_once(space: spool.Space) -> None:
    space.create_queue("q")
    message_id = space.put("q", 1, delay=1000)
    space.put("q", 2, delay=1000, correlation_id="c")
    assert space.get("q", message_id=message_id).body == 1
    assert space.get("q", correlation_id="c").body == 2


def test_q05_get_from_the_top_by_id_and_by_correlation_id(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    space.create_queue("elsewhere")
    ids = space.put_many("q", [1, 2, 3])
    space.put("q", 4, correlation_id="c")
    with space.transaction() as tx:
        assert tx.get("q", message_id=ids[1]).body == 2
        with pytest.raises(spool.MessageInUse):
            again().get("q", message_id=ids[1])
        with pytest.raises(spool.MessageInUse):
            tx.get("q", message_id=ids[1])  # it has it itself
        tx.rollback()
    for wanted in ({"message_id": "0" * 32}, {"correlation_id": "nobody's"}):
        with pytest.raises(spool.Empty):
            space.get("q", **wanted)
    with pytest.raises(spool.Empty):
        space.get("elsewhere", message_id=ids[1])
    with pytest.raises(spool.BadMessageId):
        space.get("q", message_id="no id")
    assert space.get("q", correlation_id="c").body == 4
    assert drained(space, "q") == [1, 2, 3]


def test_q06_a_waiting_get_ends_when_a_message_comes_and_blocks_no_producer(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    other = again()
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(other.get("q", timeout=60).body))
    waiting.start()
    space.put("q", "here")
    waiting.join(60)
    assert found == ["here"]
    begun = time.monotonic()
    with pytest.raises(spool.Empty):
        space.get("q", timeout=0.05)
    assert time.monotonic() - begun >= 0.05


def test_q06_a_get_by_id_and_by_correlation_id_waits_too(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    for wanted in ({"message_id": "0" * 32}, {"correlation_id": "c"}):
        with pytest.raises(spool.Empty):
            space.get("q", timeout=0.01, **wanted)
    other = again()
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(other.get("q", correlation_id="c", timeout=60).body))
    waiting.start()
    space.put_many("q", ["another's", "more"], correlation_id="d")
    space.put("q", "here", correlation_id="c")
    waiting.join(60)
    assert found == ["here"]


def test_q07_in_the_callers_transaction_or_in_its_own(space: spool.Space) -> None:
    space.create_queue("q")
    with pytest.raises(RuntimeError), space.transaction() as tx:
        space.put("q", "joins")
        tx.put("q", "in it")
        space.put("q", "on its own", transaction=None)
        assert drained(space, "q", transaction=None) == ["on its own"]
        with pytest.raises(spool.Empty):
            space.get("q")  # a message put in the same open transaction is not visible
        raise RuntimeError
    assert space.stats("q").enqueued == 1


def test_q08_the_count_of_tries_survives_restarts_and_ends_in_the_error_queue(
    path: Path, clock: MovedClock, again: Reopen
) -> None:
    with spool.create(timed(path, clock), defaults=AT_ONCE) as space:
        space.create_queue("errors")
        space.create_queue("q", retries=2, retry_delay=10, retry_delay_max=None, error_queue="errors")
        space.put("q", "bad")
    for attempt in range(3):
        space = again()
        with space.transaction() as tx:
            assert tx.get("q").attempts == attempt
            tx.rollback("it does not work")
        with pytest.raises(spool.Empty):
            space.get("q")
        clock.later += 10
        space.close()
    message = again().get("errors")
    assert (message.body, message.origin_queue, message.failure_reason) == ("bad", "q", "it does not work")
    assert (message.attempts, message.origin_attempts) == (0, 3)


def test_q08_without_an_error_queue_it_is_dropped_logged_and_counted(
    space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    space.create_queue("q", retries=0)
    space.put("q", "bad")
    fail_one(space, "q")
    assert "was dropped" in caplog.text
    assert (space.stats("q").ready, space.stats("q").failed) == (0, 1)


def test_q08_the_spaces_error_queue_serves_every_queue_but_itself(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults={"retries": 0, "error_queue": "errors"}) as space:
        space.create_queue("errors", retries=None)
        space.create_queue("q")
        space.put("q", "bad")
        fail_one(space, "q")
        assert (space.queues()["q"].error_queue, space.queues()["errors"].error_queue) == ("errors", None)
        assert seen(space, "errors") == ["bad"]


def test_q08_an_error_queue_not_there_loses_nothing(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    space.create_queue("q", retries=0)
    edited(space, 'error_queue = "errors"')
    space.put("q", "bad")
    fail_one(space, "q")
    assert "because queue errors does not exist: create it (spool-admin queue create errors)" in caplog.text
    assert (space.stats("q").delayed, space.stats("q").failed) == (1, 0)
    space.create_queue("errors")
    space.change(next(space.browse("q")).id, not_before=None)
    fail_one(space, "q")
    assert drained(space, "errors") == ["bad"]


def test_q09_control_fields_travel_and_the_queues_own_stand_in(space: spool.Space) -> None:
    space.create_queue("r")
    space.create_queue("f")
    space.create_queue("q", reply_queue="r", failure_queue="f")
    travelling = {
        "correlation_id": "c", "user_code": -7, "client_id": "me", "application_key": "k", "headers": {"a": "b"},
        "content_type": "text/x-order",
    }  # fmt: skip
    space.put("q", "", **travelling)
    message = space.get("q")
    assert {name: getattr(message, name) for name in travelling} == travelling
    assert (message.reply_queue, message.failure_queue, message.body) == ("r", "f", "")
    assert (message.queue, message.priority, message.not_before, message.attempts) == ("q", 50, None, 0)
    with pytest.raises(AttributeError, match="frozen"):
        message.body = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.headers["a"] = "other"  # type: ignore[index]
    space.put("q", b"", reply_queue="other")
    assert space.get("q").reply_queue == "other"


def test_q13_a_chain_takes_from_one_queue_and_puts_to_the_next_with_one_correlation_id(space: spool.Space) -> None:
    for queue in ("first", "second", "third"):
        space.create_queue(queue)
    space.put("first", 1, correlation_id="order 1")
    for here, there in (("first", "second"), ("second", "third")):
        with space.transaction() as tx:
            message = tx.get(here)
            tx.put(there, message.body + 1, correlation_id=message.correlation_id)
    message = space.get("third")
    assert (message.body, message.correlation_id) == (3, "order 1")


def test_q14_messages_that_are_there_are_shown_changed_moved_and_deleted(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q", order="priority")
    space.create_queue("other")
    one, two, three = space.put_many("q", [1, 2, 3])
    assert space.show(two).body == 2
    assert space.change(three, priority=90).priority == 90
    assert space.change(one, not_before=clock.now() + 100).not_before == pytest.approx(clock.now() + 100, abs=5)
    assert seen(space, "q") == [3, 2, 1]
    assert space.stats("q").delayed == 1
    assert space.change(one, not_before=None).not_before is None
    assert space.move(two, "other").queue == "other"
    assert space.delete(three).body == 3
    assert [seen(space, "q"), seen(space, "other")] == [[1], [2]]
    for gone in (lambda: space.show(three), lambda: space.delete(three), lambda: space.move(three, "other")):
        with pytest.raises(spool.BadMessageId):
            gone()
    with pytest.raises(spool.QueueNotFound):
        space.move(one, "nowhere")
    with pytest.raises(spool.InvalidArgument, match="name a field to change"):
        space.change(one)


def test_q14_a_held_message_is_left_to_its_transaction(space: spool.Space) -> None:
    space.create_queue("q")
    held, _ = space.put_many("q", [1, 2])
    with space.transaction() as tx:
        tx.get("q")
        for act in (lambda: space.delete(held), lambda: space.move(held, "q"), lambda: space.change(held, priority=1)):
            with pytest.raises(spool.MessageInUse):
                act()
        assert space.purge("q") == 1
    assert space.stats("q").dequeued == 1


def test_q14_purge_by_filters_counts_first_if_asked_to(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q")
    space.put_many("q", range(3), headers={"tenant": "acme", "x": "y"})
    clock.later += 100
    space.put_many("q", range(3, 5), correlation_id="c")
    space.put("q", 5, delay=1000)
    heard: list[int] = []
    assert space.purge("q", older_than=50, dry_run=True) == 3
    assert space.stats("q").ready == 5
    assert space.purge("q", headers={"tenant": "acme"}, correlation_id="c") == 0
    assert space.purge("q", headers={"tenant": "acme"}, progress=heard.append) == 3
    assert heard == [3]
    one = next(space.browse("q")).id
    assert [message.id for message in space.browse("q", message_id=one)] == [one]
    assert (space.purge("q", message_id=one, correlation_id="x"), space.purge("q", message_id=one)) == (0, 1)
    with pytest.raises(spool.BadMessageId):
        space.purge("q", message_id="no id")
    for wrong in ({"older_than": -1}, {"older_than": "1h"}, {"headers": {"a": 1}}, {"correlation_id": 5}):
        with pytest.raises(spool.InvalidArgument, match=next(iter(wrong))):
            space.purge("q", **wrong)
    assert space.purge("q", correlation_id="c") == 1
    assert (space.purge("q"), seen(space, "q")) == (1, [])
    assert space.stats("q").dequeued == 0


def test_q14_a_queue_is_changed_for_all_processes_and_deleted_when_it_is_empty(space: spool.Space, again: Reopen):
    space.create_queue("errors")
    space.create_queue("q", retries=3, error_queue="errors")
    other = again()
    other.put("q", 1)
    assert space.change_queue("q", retry_delay=5).retries == 3
    assert other.queues()["q"].retry_delay == 5
    with pytest.raises(spool.QueueNotEmpty, match="1 message"):
        space.delete_queue("q")
    with pytest.raises(spool.QueueNotEmpty, match="error_queue of queue 'q'"):
        space.delete_queue("errors")
    with other.transaction() as tx:
        tx.get("q")
        with pytest.raises(spool.QueueNotEmpty):
            space.delete_queue("q")
    (Path(space.path) / "drop" / "q" / "file").touch()
    with pytest.raises(spool.QueueNotEmpty, match="files wait in drop/q"):
        space.delete_queue("q")
    (Path(space.path) / "drop" / "q" / "file").unlink()
    space.delete_queue("q")
    assert not (Path(space.path) / "drop" / "q").exists()
    with pytest.raises(spool.QueueNotFound):
        other.put("q", 2)
    for gone in (lambda: space.delete_queue("q"), lambda: space.change_queue("q", retries=1)):
        with pytest.raises(spool.QueueNotFound):
            gone()


def test_q14_a_queue_is_not_deleted_under_an_open_transaction_s_messages(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q")
    with pytest.raises(spool.QueueNotFound, match="deleted meanwhile"), space.transaction() as tx:
        tx.put("q", 1)
        again().delete_queue("q")
    space.create_queue("q")
    assert seen(space, "q") == []
    space.create_queue("more")
    with pytest.raises(spool.QueueNotFound, match="deleted meanwhile"), space.transaction() as tx:
        tx.put("q", 1)
        again().delete_queue("q")
        tx.put("more", 2)  # which looks at the settings
    assert seen(space, "more") == []


@pytest.mark.usefixtures("codecs_of_its_own")
def test_q17_values_of_a_type_of_ones_own_are_written_by_its_codec(space: spool.Space, path: Path) -> None:
    space.create_queue("q")
    codec = spool.Codec("text/x-money", lambda money: str(money).encode(), lambda raw: Decimal(raw.decode()))
    spool.register_codec("money", codec, Decimal)
    spool.register_codec("money", codec, Decimal)  # said twice is said once
    space.put("q", Decimal("9.95"))
    message = space.get("q")
    assert (message.body, message.content_type) == (Decimal("9.95"), "text/x-money")
    space.put("q", Decimal(1), content_type="text/x-price")
    other = spool.Codec("text/x", codec.encode, codec.decode)
    for name, types in (("money", (int,)), ("text", (Decimal,)), ("new", (Decimal,)), ("new", (str,)), ("new", ())):
        with pytest.raises(spool.InvalidArgument):
            spool.register_codec(name, other, *types)
    for wrong in (None, codec.encode, codec._replace(decode=None)):
        with pytest.raises(spool.InvalidArgument, match=r"spool\.Codec"):
            spool.register_codec("new", wrong, complex)
    del codecs.CODECS["money"]
    with pytest.raises(spool.UnknownCodec, match="'money', which this process lacks: register it"):
        space.get("q")
    assert (space.stats("q").ready, space.quarantined()) == (1, [])


@pytest.mark.usefixtures("codecs_of_its_own")
def test_q17_a_codec_that_fails_loses_nothing(space: spool.Space) -> None:
    space.create_queue("q", order="priority")
    broken = Mock(side_effect=KeyError)
    spool.register_codec("good", spool.Codec("text/x", lambda _: b"1", broken), Decimal)
    spool.register_codec("mute", spool.Codec("text/x", broken, broken), complex)
    spool.register_codec("wrong", spool.Codec("text/x", str, broken), Fraction)
    for body in (1j, Fraction(1)):
        with pytest.raises(spool.InvalidArgument, match="cannot be written"):
            space.put("q", body)
    id_ = space.put("q", Decimal(1))
    with pytest.raises(spool.UnknownCodec, match=rf"message {id_} remains in queue q: .* 'good'.*KeyError"):
        space.get("q")
    assert (space.stats("q").ready, space.quarantined()) == (1, [])
    for _ in range(2):
        before = space.put("q", "before", priority=60)
        assert [message.id for message in space.get_many("q", 9)] == [before]
    assert [message.body for message in space.browse("q")] == [b"1"]
    space.create_queue("other")
    assert space.move(id_, "other").body == b"1"
    assert space.delete(id_).body == b"1"


def test_q17_a_time_limit_harms_no_body(space: spool.Space, again: Reopen, monkeypatch: pytest.MonkeyPatch) -> None:
    space.create_queue("q")
    space.put("q", "text")
    interrupted = codecs.CODECS["text"]._replace(decode=Mock(side_effect=[TimeoutError, "text"]))
    monkeypatch.setitem(codecs.CODECS, "text", interrupted)
    with pytest.raises(TimeoutError):
        space.get("q")
    reopened = again()
    assert (drained(reopened, "q"), reopened.quarantined()) == (["text"], [])


def test_q14_nothing_moves_into_a_queue_that_is_gone(space: spool.Space, again: Reopen) -> None:
    space.create_queue("errors")
    space.create_queue("q", retries=0, error_queue="errors")
    space.put("q", 1)
    other = again()
    tx = other.transaction()
    tx.get("q")
    space.change_queue("q", retries=None, error_queue=None)
    space.delete_queue("errors")
    tx.rollback()
    assert drained(space, "q") == [1]


def test_q07_a_transaction_of_another_space_is_refused(space: spool.Space, tmp_path: Path) -> None:
    space.create_queue("q")
    with spool.create(tmp_path / "other", defaults=AT_ONCE) as other, other.transaction() as tx:
        for call in (lambda: space.put("q", 1, transaction=tx), lambda: space.get("q", transaction=tx)):
            with pytest.raises(spool.InvalidArgument, match="one of this space"):
                call()
        with pytest.raises(spool.InvalidArgument):
            space.put("q", 1, transaction=5)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spool")
