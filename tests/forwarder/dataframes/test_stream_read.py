"""Stream reads: offsets, limits of a batch, queries that end after the existing messages, restarts, and queries side by
side."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

import spool
from forwarder.dataframes import stream as stream_module
from forwarder.dataframes.stream import StreamReader
from tests import door
from tests.compaction import small_compactions
from tests.forwarder.dataframes.queries import Heard, Query, start_query
from tests.forwarder.dataframes.rows import bodies_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = ReadAllAvailable()


def batches(reader: StreamReader, start: dict[str, int], limit: ReadLimit) -> Iterator[list[bytes]]:
    """The bodies of batch after batch, until there is nothing to read."""
    while (end := reader.latestOffset(start, limit)) != start:
        yield bodies_of(reader, reader.partitions(start, end))
        start = end


def test_x05_an_offset_is_that_of_a_durable_commit(space: spool.Space, query: Query) -> None:
    """A power cut could take any other, and its number would be given to a message that the query never reads."""
    space.create_queue("readings", durability="none")
    space.put("readings", b"1")
    counters = door.store(space).shared.counters
    assert counters.read().durable == 0
    assert query(queue="orders").latestOffset({"number": 0}, ALL) == {"number": 0}
    assert counters.read().durable == 1
    assert query(queue="readings").latestOffset({"number": 0}, ALL) == {"number": 1}


def test_x05_a_batch_goes_from_commit_to_commit(space: spool.Space, query: Query) -> None:
    reader = query(queue="orders")
    assert reader.initialOffset() == {"number": 0}
    assert reader.latestOffset({"number": 0}, ALL) == {"number": 0}
    space.put("orders", b"1")
    space.put("replies", b"other")
    assert reader.latestOffset({"number": 0}, ALL) == {"number": 2}
    assert bodies_of(reader, reader.partitions({"number": 0}, {"number": 2})) == [b"1"]
    assert reader.latestOffset({"number": 2}, ALL) == {"number": 2}
    space.put("replies", b"other")
    assert reader.latestOffset({"number": 2}, ALL) == {"number": 2}, "a batch without messages is none"
    space.put_many("orders", [b"2", b"3"])
    assert reader.reportLatestOffset() == {"number": 4}
    assert [*batches(reader, {"number": 2}, ALL)] == [[b"2", b"3"]]
    assert [*batches(reader, {"number": 0}, ALL)] == [[b"1", b"2", b"3"]], "an earlier offset is asked for again"
    assert reader.partitions({"number": 4}, {"number": 4}) == []


def test_a_stream_begins_where_it_is_told(space: spool.Space, query: Query) -> None:
    for place in range(5):
        space.put("orders", b"%d" % place)
    assert query(from_="earliest").initialOffset() == {"number": 0}
    assert query(from_="latest").initialOffset() == {"number": 5}
    assert query(from_="3").initialOffset() == {"number": 2}
    for wrong in ("0", "newest"):
        with pytest.raises(spool.InvalidArgument, match="the option from is earliest, latest or the number"):
            query(from_=wrong)
    with pytest.raises(spool.InvalidArgument, match="as a stream has no option 'to'"):
        query(to="3")


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize(
    ("options", "limit", "expected"),
    [
        ({}, ReadMaxRows(3), [[b"a", b"b"], [b"c" * 10] * 4, [b"d", b"e"]]),
        ({}, ReadMaxRows(2), [[b"a", b"b"], [b"c" * 10] * 4, [b"d", b"e"]]),
        ({}, ReadMaxRows(1), [[b"a"], [b"b"], [b"c" * 10] * 4, [b"d"], [b"e"]]),
        ({}, ReadMaxBytes(42), [[b"a", b"b", *[b"c" * 10] * 4], [b"d", b"e"]]),
        ({"maxBytesPerTrigger": "41"}, ReadMaxRows(6), [[b"a", b"b"], [*[b"c" * 10] * 4, b"d"], [b"e"]]),
        ({"maxBytesPerTrigger": "41"}, ALL, [[b"a", b"b", *[b"c" * 10] * 4, b"d", b"e"]]),
    ],
)
def test_x05_a_batch_has_as_many_whole_commits_as_its_limit_allows(
    space: spool.Space, query: Query, monkeypatch: pytest.MonkeyPatch, window: int,
    options: dict[str, str], limit: ReadLimit, expected: list[list[bytes]],
) -> None:  # fmt: skip
    monkeypatch.setattr(stream_module, "_COMMITS", window)
    reader = query(**options)
    for some in ([b"a"], [b"b"], [b"c" * 10] * 4, [b"d"], [b"e"]):
        space.put_many("orders", some)
    assert [*batches(reader, {"number": 0}, limit)] == expected


def test_the_options_are_the_default_limit(query: Query) -> None:
    assert query().getDefaultReadLimit() == ALL
    assert query(maxMessagesPerTrigger="7", maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxRows(7)
    assert query(maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)


def test_compacted_messages_come_in_batches_too(space: spool.Space, query: Query) -> None:
    with small_compactions():
        for place in range(40):
            space.put("orders", b"%02d" % place)
        door.compact(space)
        assert door.index(space).messages.segments
        expected = [[b"%02d" % place for place in range(begin, min(begin + 11, 40))] for begin in (7, 18, 29)]
        assert [*batches(query(from_="8"), {"number": 7}, ReadMaxRows(11))] == expected


def test_x05_consumed_messages_are_not_read_and_moved_ones_keep_their_number(space: spool.Space, query: Query) -> None:
    reader = query(queue="orders")
    ids = space.put_many("orders", [b"1", b"2", b"3"])
    space.delete(ids[0])
    space.move(ids[1], "errors")
    assert [*batches(reader, {"number": 0}, ALL)] == [[b"3"]]
    assert [*batches(query(queue="errors"), {"number": 0}, ALL)] == [[b"2"]]
    assert [*batches(query(queue="errors"), {"number": 1}, ALL)] == []


def test_a_query_with_available_now_reads_no_newer_message(space: spool.Space, query: Query) -> None:
    reader = query()
    space.put("orders", b"1")
    space.put("orders", b"2")
    reader.prepareForTriggerAvailableNow()
    space.put("orders", b"3")
    assert [*batches(reader, {"number": 0}, ReadMaxRows(1))] == [[b"1"], [b"2"]]


def test_the_checkpoint_of_another_space_is_refused(query: Query) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"the checkpoint of the query is at commit 9, .* has 0 commits"):
        query().latestOffset({"number": 9}, ALL)


# -- Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.spark
class TestSpark:
    def test_x05_a_query_goes_on_behind_its_checkpoint_and_reads_a_batch_again_that_failed(
        self, spark: "SparkSession", space: spool.Space, tmp_path: Path
    ) -> None:
        for place in range(5):
            space.put_many("orders", [b"%d" % place] * 2)
        heard = Heard(fail_at=1)
        query = start_query(spark, space, heard, tmp_path / "one", maxMessagesPerTrigger="4")
        with pytest.raises(Exception, match="the sink fails"):
            query.awaitTermination()
        first = [(0, [b"0", b"0", b"1", b"1"]), (1, [b"2", b"2", b"3", b"3"])]
        assert heard.batches == first
        space.get("orders", message_id=next(m.id for m in space.browse("orders") if m.body == b"3"))
        space.put("orders", b"new")
        while door.reclaim(space):
            pass
        again = Heard()
        start_query(spark, space, again, tmp_path / "one", maxMessagesPerTrigger="4").awaitTermination()
        assert again.batches == [(1, [b"2", b"2", b"3"]), (2, [b"4", b"4", b"new"])]
        assert space.stats("orders").ready == 10
