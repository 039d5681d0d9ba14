"""Stream reads with a subscription: a message is kept until the query has read it, even if a consumer takes the
message."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import spool
from forwarder.dataframes.columns import StreamOptions, columns
from forwarder.dataframes.stream import StreamReader
from spool.disk.content import opened
from spool.model import layout
from spool.policies.subscriptions import end_expired
from tests import door
from tests.clocks import MovedClock
from tests.compaction import small_compactions
from tests.forwarder.dataframes.queries import Heard, Query, start_query
from tests.forwarder.dataframes.rows import bodies_of, read
from tests.spaces import fail_one

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()
Offset = dict[str, int]


@pytest.fixture
def query(query: Query) -> Query:
    """Makes sources of queries of the queue orders with a subscription."""

    def reader(subscription: str = "seen", **options: str) -> StreamReader:
        return query(**{"queue": "orders", "subscription": subscription, **options})

    return reader


def reclaimed(space: spool.Space) -> None:
    """Reclaim all files that may be removed."""
    while door.reclaim(space):
        pass


def consumed(space: spool.Space) -> None:
    """Take all messages, and reclaim all files that may be removed."""
    for queue in space.queues():
        if space.stats(queue).ready:
            space.get_many(queue, 1000)
    space.put("errors", b"the newest commit stays")
    reclaimed(space)


def behind(reader: StreamReader, start: Offset, limit: Any = ALL) -> tuple[list[bytes], Offset]:
    """The bodies of the next batch, and its end."""
    end = reader.latestOffset(start, limit)
    return bodies_of(reader, reader.partitions(start, end)), end


def test_x05_a_subscription_reads_messages_that_were_consumed_and_reclaimed(space: spool.Space, query: Query) -> None:
    reader = query()
    start = reader.initialOffset()
    ids = space.put_many("orders", [b"1", b"2"])
    space.put("replies", b"of another queue")
    space.move(ids[1], "errors")
    with space.transaction() as tx:
        tx.put("orders", b"3", headers={"tenant": "acme"})
        tx.put("replies", b"other")
        tx.put("orders", b"4", time_to_live=0.001)
    consumed(space)
    assert [*space.browse("orders")] == []
    for _ in range(2):  # a batch that is read again is the same
        found, end = behind(reader, start)
        assert found == [b"1", b"2", b"3", b"4"]
    again = query()  # another process, from the checkpoint
    assert bodies_of(again, again.partitions(start, end)) == [b"1", b"2", b"3", b"4"]
    rows = read(again, again.partitions(start, end))
    assert [row["queue"] for row in rows] == ["orders"] * 4, "a row is as the message was put"
    assert [dict(row["headers"]) for row in rows] == [{}, {}, {"tenant": "acme"}, {}]
    kept = set(door.index(space).unread)
    assert len(kept) == 2
    reader.commit(end)
    reclaimed(space)
    assert not kept & set(door.index(space).files), "what it has read goes"
    assert behind(again, end) == ([], end)


def test_x05_two_subscriptions_and_a_plain_query_read_independently(space: spool.Space, query: Query) -> None:
    one, two = query("one"), query("two")
    starts = [one.initialOffset(), two.initialOffset()]
    plain = StreamReader(StreamOptions.of({"path": space.path, "queue": "orders"}), columns(True))
    space.put("orders", b"1")
    consumed(space)
    found, end = behind(one, starts[0])
    assert found == [b"1"]
    one.commit(end)
    space.put("orders", b"2")
    consumed(space)
    assert behind(one, end)[0] == [b"2"]
    assert behind(two, starts[1], ReadMaxRows(1))[0] == [b"1"]
    assert behind(two, starts[1])[0] == [b"1", b"2"]
    assert behind(plain, {"number": 0})[0] == [], "what is gone is gone for a query without one"
    plain.stop()
    states = space.subscriptions()
    assert [(states[n].unread, states[n].queues) for n in ("one", "two")] == [(1, ("orders",)), (2, ("orders",))]
    assert states["two"].kept_bytes == 2
    space.delete_subscription("two")
    reclaimed(space)
    assert space.subscriptions().keys() == {"one"}
    with pytest.raises(spool.InvalidArgument, match=r"'seen' has not kept all .*: it was deleted, .*failOnDataLoss"):
        query().latestOffset({"number": 3, "since": 2}, ALL)
    with pytest.raises(spool.InvalidArgument, match="the query has read without a subscription until now"):
        query().latestOffset({"number": 3}, ALL)


def test_a_new_subscription_reads_older_messages_that_still_exist(space: spool.Space, query: Query) -> None:
    space.put_many("orders", [b"0", b"1"])
    space.get("orders")
    reader = query()
    start = reader.initialOffset()
    assert start["number"] == 0
    space.put("orders", b"2")
    space.get_many("orders", 2)
    space.put("orders", b"3")
    assert behind(reader, start)[0] == [b"2", b"3"]
    found, end = behind(reader, start, ReadMaxRows(1))
    assert found == [b"2"]
    assert behind(reader, end, ReadMaxRows(1))[0] == [b"3"]
    latest = query("latest", **{"from": "latest"})
    begin = latest.initialOffset()
    assert begin["number"] == begin["since"]
    space.put("orders", b"4")
    assert behind(latest, begin)[0] == [b"4"]


def test_a_compaction_keeps_messages_that_a_subscription_has_not_read(space: spool.Space, query: Query) -> None:
    """The copies that a compaction writes are no additional messages."""
    reader = query()
    start = reader.initialOffset()
    with small_compactions():
        for place in range(40):
            space.put("orders", b"%02d" % place)
        door.compact(space)
        reclaimed(space)
        assert door.index(space).messages.segments
        assert behind(reader, start)[0] == [b"%02d" % place for place in range(40)]
        consumed(space)
        door.compact(space)
        reclaimed(space)
        found, end = behind(reader, start)
    assert found == [b"%02d" % place for place in range(40)]
    reader.commit(end)
    reclaimed(space)
    assert not door.index(space).unread


def test_branches_that_were_adopted_are_kept_with_their_head(space: spool.Space, query: Query) -> None:
    import xa

    reader = query()
    start = reader.initialOffset()
    manager, xid = xa.ResourceManager(space), xa.Xid(7, b"g", b"b")
    manager.start(xid, xa.TMNOFLAGS)
    space.put("orders", b"1")
    manager.end(xid, xa.TMSUCCESS)
    manager.prepare(xid)
    manager.commit(xid, xa.TMNOFLAGS)
    consumed(space)
    assert behind(reader, start)[0] == [b"1"]


def test_a_space_that_is_opened_again_keeps_messages_that_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "again"
    with spool.create(path) as space:
        space.create_queue("orders")
        reader = StreamReader(StreamOptions.of({"path": str(path), "subscription": "all"}), columns(True))
        start = reader.initialOffset()
        reader.stop()
        for place in range(300):  # enough for a checkpoint
            space.put("orders", b"%d" % place)
            space.get("orders")
    assert (path / layout.CHECKPOINT).exists()
    for run in ("read", "gone"):
        with spool.open(path) as space:
            assert bool(door.index(space).restored) is (run == "read")
            assert len(door.index(space).unread) == 300
            reclaimed(space)
            assert space.subscriptions()["all"].unread == 300
        if run == "read":
            for name in (path / "run").iterdir():
                name.unlink()
    reader = StreamReader(StreamOptions.of({"path": str(path), "subscription": "all"}), columns(True))
    assert behind(reader, start)[0] == [b"%d" % place for place in range(300)]
    reader.stop()


def test_a_subscription_whose_query_does_not_come_back_ends_and_the_query_is_told(
    space: spool.Space, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = query(subscriptionExpiry="1h")
    start = reader.initialOffset()
    space.put("orders", b"1")
    space.put("orders", b"2")
    space.get("orders")
    clock = MovedClock()  # of this process alone: the reader's clock would renew the subscription
    monkeypatch.setattr(door.store(space), "clock", clock)
    clock.later = 3599
    end_expired(door.store(space))
    assert behind(reader, start)[0] == [b"1", b"2"]
    clock.later = 3700
    door.expire(space)
    reclaimed(space)
    assert space.subscriptions() == {}
    told = r"the subscription 'seen' has not kept all .* after commit \d+, where the query is: it was deleted"
    with pytest.raises(spool.InvalidArgument, match=told):
        reader.latestOffset(start, ALL)
    with pytest.raises(spool.InvalidArgument, match=told):
        reader.partitions(start, {"number": 4, "since": start["since"]})
    lenient = query(failOnDataLoss="false", subscriptionExpiry="1h")
    found, end = behind(lenient, start)
    assert found == [b"2"], "it goes on with what is there"
    assert end["since"] > start["since"]
    space.get("orders")
    space.put("orders", b"3")
    consumed(space)
    assert behind(lenient, end)[0] == [b"3"]


def test_an_offset_is_that_of_a_commit_that_is_durable(space: spool.Space, query: Query) -> None:
    """A power cut may take the commit of a count of attempts; the commit's number is then given out again."""
    reader = query()
    start = reader.initialOffset()
    space.put("orders", b"1")
    put = door.counters(space).published
    fail_one(space, "orders")
    page = door.counters(space)
    assert page.published > page.durable == put, "a count of attempts is not flushed"
    for limit in (ALL, ReadMaxRows(7)):
        assert reader.latestOffset(start, limit)["number"] == put


def test_a_query_that_finds_nothing_renews_its_subscription(
    space: spool.Space, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = query(subscriptionExpiry="1h")
    start = reader.initialOffset()
    clock, now = door.clock(reader._opened()), door.clock(reader._opened()).now()
    before = space.subscriptions()["seen"]
    monkeypatch.setattr(clock, "now", lambda: now + 1000.0)
    assert reader.latestOffset(start, ALL) == start
    assert space.subscriptions()["seen"] == before, "not at each look"
    monkeypatch.setattr(clock, "now", lambda: now + 2000.0)
    assert reader.latestOffset(start, ALL) == start
    assert space.subscriptions()["seen"].expires_at == pytest.approx(now + 5600.0)


def test_each_query_has_a_subscription_of_its_own(space: spool.Space, query: Query) -> None:
    reader = query()
    start = reader.initialOffset()
    assert query().initialOffset() == start, "nothing was read with it: its query may have been killed, and ask again"
    space.delete_subscription("seen")
    restarted = query().initialOffset()
    with pytest.raises(spool.InvalidArgument, match=r"commit \d+ registered it again"):
        reader.latestOffset(start, ALL)
    space.put("orders", b"1")
    end = reader.latestOffset(restarted, ALL)
    reader.commit(end)
    with pytest.raises(spool.InvalidArgument, match=r"'seen', which has read up to commit .* delete this one"):
        query().initialOffset()
    with pytest.raises(spool.InvalidArgument, match="it has been read up to commit"):
        reader.partitions(restarted, end)
    with pytest.raises(spool.InvalidArgument, match="registered for orders, and the query reads orders, replies"):
        query(queue="replies,orders").latestOffset(end, ALL)
    with pytest.raises(spool.InvalidArgument, match="the query has read without a subscription until now"):
        query().latestOffset({"number": end["number"]}, ALL)
    reader.commit({"number": 1, "since": 1})  # of one that has ended: nothing happens
    assert space.subscriptions()["seen"].read_to == end["number"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscription": ""}, "the option subscription is a text of 1 to 255 characters, not ''"),
        ({"subscription": "s", "subscriptionExpiry": "soon"}, "is a number of seconds, minutes, hours or days"),
        ({"subscription": "s", "subscriptionExpiry": "0h"}, "is a number of seconds, minutes, hours or days"),
        ({"subscriptionExpiry": "1h"}, "the option subscriptionExpiry is about a subscription: name it"),
        ({"failOnDataLoss": "false"}, "the option failOnDataLoss is about a subscription: name it"),
    ],
)
def test_options_that_say_nothing_are_refused(space: spool.Space, options: dict[str, str], told: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=re.escape(told)):
        StreamOptions.of({"path": space.path, **options})


def test_a_damaged_message_fails_the_query_unless_fail_on_data_loss_is_false(space: spool.Space, query: Query) -> None:
    reader = query()
    start = reader.initialOffset()
    space.put_many("orders", [b"first", b"second"])
    space.put("orders", b"third")
    number = start["since"] + 2  # (the commit between says the number of the registration)
    disk = door.disk(space)
    with opened(disk, layout.committed(number), write=True) as handle:
        data = disk.read_at(handle, 0, 1 << 20)
        disk.write_at(handle, data.index(b"second"), b"SECOND")
    with pytest.raises(spool.CorruptedFile, match=r"put into queue orders cannot be read: .*failOnDataLoss"):
        behind(reader, start)
    assert behind(query(failOnDataLoss="false"), start)[0] == [b"first", b"third"]
    with opened(disk, layout.committed(number), write=True) as handle:
        disk.write_at(handle, data.index(b"orders"), b"ORDERS")
    with pytest.raises(spool.CorruptedFile, match=rf"commit {number} is kept .* cannot be read"):
        behind(reader, start)
    assert behind(query(failOnDataLoss="false"), start)[0] == [b"third"]


@pytest.mark.spark
class TestSpark:
    @pytest.mark.slow
    def test_x05_a_stopped_query_reads_messages_consumed_and_reclaimed_meanwhile(
        self, spark: "SparkSession", space: spool.Space, tmp_path: Path
    ) -> None:
        seen: dict[str, list[bytes]] = {"one": [], "two": []}

        def run(name: str, fails_at: int | None = None) -> None:
            heard = Heard(fails_at)
            options = {"subscription": name, "maxMessagesPerTrigger": "2"}
            query = start_query(spark, space, heard, tmp_path / name, **options)
            if fails_at is None:
                query.awaitTermination()
            else:
                with pytest.raises(Exception, match="the sink fails"):
                    query.awaitTermination()
            seen[name] += [body for number, some in heard.batches if number != fails_at for body in some]

        space.put("orders", b"0")
        for name in seen:
            run(name)
        for place in range(1, 6):
            space.put("orders", b"%d" % place)
            consumed(space)
        run("one", fails_at=2)
        space.put_many("orders", [b"6", b"7"])
        consumed(space)
        for name in seen:
            run(name)
        assert seen == {"one": [b"%d" % n for n in range(8)], "two": [b"%d" % n for n in range(8)]}
        assert space.subscriptions()["one"].unread == 2, (
            "Spark tells that it is done with a batch when it plans the next"
        )
