"""A space by HTTP behaves as the space in its directory: each test runs with both."""

import threading
import time
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest

import spool
from tests.client.conftest import QUEUES, WAIT
from tests.shown import shown

BODIES = [
    b"",
    b"\x00\xff",
    "",
    "text \u2028 \U0001f600\r\n",
    7,
    None,
    1.5,
    [1, "two", None],
    {"a": {"b": [True]}},
    {1: b"x"},
]


def plain(summary: spool.WorkSummary) -> dict[str, int]:
    return {name: value for name, value in vars(summary).items() if name != "reasons" and value}


# -- puts and gets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_a_body_comes_back_as_it_was_put(space: Any, body: Any) -> None:
    id_ = space.put("other", body)
    found = space.get("other")
    assert (type(found), found.id, found.body, type(found.body)) == (spool.Message, id_, body, type(body))


def test_json_comes_back_as_its_value_and_bytes_as_bytes(space: Any) -> None:
    space.put("other", {"a": 1}, content_type="application/json")
    space.put("other", b'{"a": 1}', content_type="application/json")
    space.put("other", b"x\n", content_type="application/x-ndjson")
    found = space.get_many("other", 9)
    assert [message.body for message in found] == [{"a": 1}, b'{"a": 1}', b"x\n"]
    assert [message.codec for message in found] == ["json", None, None]
    assert found[2].content_type == "application/x-ndjson"


def test_all_options_of_a_put_arrive(space: Any) -> None:
    given: dict[str, Any] = {
        "priority": 90,
        "correlation_id": "ä % b",
        "reply_queue": "replies",
        "failure_queue": "failures",
        "user_code": -3,
        "client_id": " blank ",
        "application_key": "k",
        "headers": {"Ü b": "line\r\nbreak", "x": "", "X%4F": "capital"},
        "group": "g",
        "content_type": 'text/csv; a="50%"; t=ü',
        "not_before": datetime(2026, 1, 1, tzinfo=UTC),
        "expires_at": 2_000_000_000.25,
    }
    space.put("other", "a,b", **given)
    found = space.get("other")
    expected = {**given, "not_before": given["not_before"].timestamp()}
    assert {name: getattr(found, name) for name in given} == expected
    space.put("other", b"later", delay=1000.0, time_to_live=5000.0)
    [delayed] = space.browse("other")
    begun = delayed.enqueued_at
    assert (round(delayed.not_before - begun), round(delayed.expires_at - begun)) == (1000, 5000)


def test_many_messages_are_put_and_taken_in_order(space: Any) -> None:
    ids = space.put_many("important", [b"a", "b", {"c": 1}], priority=3, headers={"n": "1"})
    space.put("important", "first", priority=9)
    found = space.get_many("important", 10)
    assert [message.body for message in found] == ["first", b"a", "b", {"c": 1}]
    assert [message.id for message in found[1:]] == ids
    assert found[1].headers == {"n": "1"}
    assert space.put_many("important", []) == []
    assert space.stats("important").dequeued == 4


def test_a_key_puts_once(space: Any) -> None:
    first, again = (space.put("once", "x", deduplication_key="k 1") for _ in range(2))
    assert (str(first), first.duplicate, again.duplicate) == (again, False, True)
    assert [type(id_) for id_ in space.put_many("once", ["x"], deduplication_key="k 1")] == [spool.MessageId]
    assert type(space.put("once", "x")) is str
    with pytest.raises(spool.InvalidArgument, match="deduplication_key"):
        space.put_many("once", ["x", "y"], deduplication_key="k 2")


def test_a_get_by_id_and_by_correlation_id(space: Any) -> None:
    one, _ = space.put_many("other", ["a", "b"])
    later = space.put("other", "c", correlation_id="c 1", delay=1000)
    assert space.get("other", correlation_id="c 1").id == later
    assert space.get("other", message_id=one).body == "a"
    for wanted in ({"correlation_id": "c 1"}, {"message_id": one}, {"message_id": one, "timeout": 0.05}):
        with pytest.raises(spool.Empty, match="queue other has no"):
            space.get("other", **wanted)


def test_a_get_waits_and_is_woken(space: Any) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(space.get("other", timeout=WAIT))),
        threading.Thread(target=lambda: found.append(space.get("other", timeout=None, correlation_id="c"))),
    ]
    for thread in threads:
        thread.start()
    for body in ("a", "b", "c"):  # (the first thread may take any one of them)
        space.put("other", body, correlation_id="c")
    for thread in threads:
        thread.join(WAIT)
    assert len(found) == 2


def test_an_empty_queue(space: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(spool.Empty, match="queue other has no message that can be taken now"):
        space.get("other", timeout=0.2)
    assert time.monotonic() - begun >= 0.2


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda space: space.put("none", "x"), spool.QueueNotFound, "none"),
    (lambda space: space.put("a/b", "x"), spool.InvalidArgument, "a/b"),
    (lambda space: space.put("other", "x", priority=0), spool.InvalidArgument, "priority"),
    (lambda space: space.put("other", "x", delay=1, not_before=1), spool.InvalidArgument, "delay and not_before"),
    (lambda space: space.put("other", {1, 2}), spool.InvalidArgument, "list"),
    (lambda space: space.put("other", "x", colour=1), TypeError, "colour"),
    (lambda space: space.put("other", "x", top=True), spool.InvalidArgument, "top"),
    (lambda space: space.put("once", "x", before="00"), spool.BadMessageId, "00"),
    (lambda space: space.put("other", "x", transaction="y"), spool.InvalidArgument, "transaction is JOIN"),
    (lambda space: space.put_many("other", "text"), spool.InvalidArgument, "put_many"),
    (lambda space: space.put_many("none", []), spool.QueueNotFound, "none"),
    (lambda space: space.put_many("small", ["a", "b"]), spool.Full, "small"),
    (lambda space: space.get("none"), spool.QueueNotFound, "none"),
    (lambda space: space.get("other", timeout=-1), spool.InvalidArgument, "timeout"),
    (lambda space: space.get("other", message_id="x"), spool.BadMessageId, "x"),
    (lambda space: space.get("other", colour=1), TypeError, "colour"),
    (lambda space: space.get_many("other", 0), spool.InvalidArgument, "max_messages"),
    (lambda space: space.stats("none"), spool.QueueNotFound, "none"),
    (lambda space: space.browse("none"), spool.QueueNotFound, "none"),
    (lambda space: space.browse("other", colour=1), TypeError, "the filters are message_id"),
    (lambda space: space.browse("other", headers=7), spool.InvalidArgument, "headers is a map"),
    (lambda space: space.browse("other", since=datetime(2026, 1, 1)), spool.InvalidArgument, "since is a number"),
    (lambda space: space.work("none", print), spool.QueueNotFound, "none"),
    (lambda space: space.work("other", 7), spool.InvalidArgument, "function"),
    (lambda space: space.work("other", print, threads=0), spool.InvalidArgument, "threads"),
    (lambda space: space.request("other", "x", timeout=0.1), spool.InvalidArgument, "reply_queue"),
    (lambda space: space.request("none", "x", timeout=0.1), spool.QueueNotFound, "none"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_a_refused_call(space: Any, call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        call(space)
    assert type(raised.value) is error
    assert sum(stats.enqueued for stats in space.stats().values()) == 0


def test_a_full_queue_is_named(space: Any) -> None:
    space.put("small", "x")
    with pytest.raises(spool.Full) as raised:
        space.put("small", "y")
    assert raised.value.queue == "small"


# -- looks ------------------------------------------------------------------------------------------------------------


def test_figures_and_options(space: Any) -> None:
    space.put("other", "abc")
    stats = space.stats()
    assert list(stats) == list(QUEUES) or set(stats) == set(QUEUES)
    assert (stats["other"].ready, stats["other"].bytes, type(stats["other"])) == (1, 3, spool.QueueStats)
    assert space.stats("other").enqueued == 1
    found = space.queues()
    assert found["orders"] == spool.QueueConfig("orders", **QUEUES["orders"])
    assert found["important"].order == ("priority", "fifo")


def test_all_messages_are_browsed_and_none_is_taken(space: Any) -> None:
    space.put_many("important", [f"line\n{number}" for number in range(1200)])
    space.put("important", "first", priority=90, headers={"kind": "x"}, correlation_id="c")
    found = list(space.browse("important"))
    assert (len(found), found[0].body, found[1].body, found[-1].body) == (1201, "first", "line\n0", "line\n1199")
    filters: list[dict[str, Any]] = [
        {"headers": {"kind": "x"}},
        {"correlation_id": "c"},
        {"message_id": found[0].id},
        {"message_id": {found[0].id}, "since": datetime(2026, 1, 1, tzinfo=UTC)},
        {"headers": {"kind": "x"}, "until": 2e9},
    ]
    for given in filters:
        assert list(space.browse("important", **given)) == found[:1], given
    assert list(space.browse("important", older_than=1000.0)) == []
    assert space.stats("important").ready == 1201


# -- claims -----------------------------------------------------------------------------------------------------------


def test_messages_are_claimed_and_each_is_ended(space: Any) -> None:
    ids = space.put_many("orders", range(8))
    with space.claims() as claims:
        assert claims.take("other") == []
        taken = claims.take("orders", 8)
        assert ([message.body for message in taken], claims.held) == (list(range(8)), 8)
        claims.begin(taken[0])
        assert space.stats("orders").claimed == 8
        assert claims.remove([taken[1], taken[0]]).result(WAIT) is None
        assert claims.fail(taken[2], "too\nhot", delay=1000).result(WAIT) is None
        assert claims.reject([taken[3], taken[4]], "no").result(WAIT) is None
        claims.release([taken[5]])
        puts = [("other", {"n": 1}, {"priority": 2}), ("replies", "text", {})]
        new = claims.commit([taken[6]], puts).result(WAIT)
        assert (len(new), claims.held) == (2, 1)
        assert repr(claims).endswith(": 1 messages>")
        for call in (claims.begin, lambda message: claims.remove([message]), lambda message: claims.fail(message, "x")):
            with pytest.raises(spool.BadMessageId, match=ids[0]):
                call(taken[0])
        with pytest.raises(spool.InvalidArgument, match="deduplication_key"):
            claims.commit([taken[7]], [("once", "x", {"deduplication_key": "k"})])
        with pytest.raises(spool.InvalidArgument, match="acknowledges at least one message"):
            claims.commit([], [("once", "x", {})])
        with pytest.raises(spool.QueueNotFound):
            claims.commit([taken[7]], [("none", "x", {})]).result(WAIT)
        assert claims.held == 1, "a refused commit ends nothing"
    assert claims.held == 0
    with pytest.raises(spool.ProtocolError, match="closed"):
        claims.take("orders")
    left = [(5, 0, None), (7, 0, None), (2, 1, "too hot")]
    assert shown(space.browse("orders"), "body attempts failure_reason") == left
    assert shown(space.browse("errors"), "id body failure_reason") == [(ids[3], 3, "no"), (ids[4], 4, "no")]
    assert shown(space.browse("other"), "id body priority") == [(new[0], {"n": 1}, 2)]
    assert space.stats("orders").dequeued == 3


def test_a_claim_by_id_and_by_correlation_id(space: Any) -> None:
    space.put_many("other", ["a", "b"], correlation_id="c")
    third = space.put("other", "x")
    with space.claims() as claims:
        assert claims.take("other", message_id=third)[0].body == "x"
        assert claims.take("other", message_id=third) == []
        assert [message.body for message in claims.take("other", 5, correlation_id="c")] == ["a", "b"]


def test_of_a_group_one_message_is_held(space: Any) -> None:
    space.put_many("other", ["a", "b"], group="g")
    with space.claims() as claims:
        [first] = claims.take("other", 2)
        assert claims.take("other", 2) == []
        claims.remove([first]).result(WAIT)
        assert [message.body for message in claims.take("other", 2)] == ["b"]


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_gets_its_reply_or_its_failure(space: Any) -> None:
    def answer(message: spool.Message) -> Any:
        if message.body == "reject":
            raise spool.Reject("sold out", reply={"left": 0})
        return {"got": message.body}

    stop = threading.Event()
    thread = threading.Thread(target=lambda: space.work("orders", answer, stop=stop))
    thread.start()
    reply = space.request("orders", [1, 2], timeout=WAIT, headers={"a": "b"})
    assert (reply.body, reply.queue, reply.headers) == ({"got": [1, 2]}, "replies", {"a": "b"})
    with pytest.raises(spool.RequestFailed, match="sold out") as raised:
        space.request("orders", "reject", timeout=WAIT, correlation_id="c 7")
    assert (raised.value.correlation_id, raised.value.reply.body) == ("c 7", {"left": 0})
    assert raised.value.message_id == next(iter(space.browse("errors"))).id
    stop.set()
    thread.join(WAIT)
    with pytest.raises(spool.Empty) as empty:
        space.request("orders", "late", timeout=0.1)
    assert empty.value.correlation_id is not None
    assert empty.value.message_id == next(iter(space.browse("orders"))).id


# -- workers ----------------------------------------------------------------------------------------------------------


def test_the_outcomes_of_a_worker(space: Any) -> None:
    def function(message: spool.Message) -> Any:
        match message.body:
            case "retry":
                raise spool.Retry("later", delay=1000)
            case "reject":
                raise spool.Reject("never", reply="no")
            case "raise":
                raise ValueError("no such article")
            case "translate":
                return spool.Translated([spool.NewMessage("other", {"new": 1}, priority=7)], "made 1")
            case "no reply":
                return None
            case "a set":
                return {1}
        return message.body

    bodies = ["reply", b"bytes", {"v": 1}, "retry", "reject", "raise", "translate", "no reply", "a set"]
    ids = space.put_many("orders", bodies, application_key="app", headers={"h": "1"})
    summary = space.work("orders", function, once=True)
    assert plain(summary) == {"delivered": 5, "retried": 3, "rejected": 1, "left": 3}
    assert summary.reasons["delivered"] == "made 1"
    assert "never" in summary.reasons["rejected"]
    replies = list(space.browse("replies"))
    expected = [("reply", ids[0]), (b"bytes", ids[1]), ({"v": 1}, ids[2]), (b"", ids[7])]
    assert shown(replies, "body correlation_id") == expected
    assert {(message.application_key, message.headers["h"]) for message in replies} == {("app", "1")}
    [failure] = space.browse("failures")
    assert (failure.body, failure.correlation_id) == ("no", ids[4])
    [error] = space.browse("errors")
    assert (error.id, error.failure_reason, error.origin_queue) == (ids[4], "never", "orders")
    [new] = space.browse("other")
    assert (new.body, new.priority, new.correlation_id) == ({"new": 1}, 7, ids[6])
    left = {message.body: (message.attempts, message.failure_reason) for message in space.browse("orders")}
    assert left["retry"] == (1, "later")
    assert left["raise"] == (1, "ValueError: no such article")
    assert left["a set"][0] == 1
    assert space.stats("orders").claimed == 0


def test_a_message_without_attempts_left_is_dead_lettered(space: Any) -> None:
    space.put("orders", "x")

    def fail(message: spool.Message) -> None:
        raise spool.Retry("busy", delay=0)

    found = [plain(space.work("orders", fail, once=True)) for _ in range(3)]
    assert found == [{"retried": 1, "left": 1}, {"retried": 1, "left": 1}, {"dead_lettered": 1}]
    assert next(iter(space.browse("errors"))).failure_reason == "busy"


def test_a_worker_with_threads_calls_once_for_each_message(space: Any) -> None:
    space.put_many("orders", range(60))
    seen, together = [], threading.Barrier(4)

    def function(message: spool.Message) -> int:
        if message.body < 4:
            together.wait(WAIT)
        seen.append(message.body)
        if message.body % 10 == 5:
            raise spool.Retry("again", delay=0)
        return int(message.body)

    summary = space.work("orders", function, threads=4, once=True, timeout=None)
    assert (sorted(seen), plain(summary)) == (list(range(60)), {"delivered": 54, "retried": 6, "left": 6})
    assert sorted(message.body for message in space.browse("replies")) == [n for n in range(60) if n % 10 != 5]


def test_a_call_that_takes_too_long_is_given_up(space: Any) -> None:
    space.put_many("orders", ["long", "short"])
    goes_on = threading.Event()

    def function(message: spool.Message) -> None:
        if message.body == "long":
            goes_on.wait(WAIT)

    summary = space.work("orders", function, once=True, timeout=0.3)
    goes_on.set()
    assert plain(summary) == {"delivered": 1, "retried": 1, "left": 1, "abandoned": 1}
    [left] = space.browse("orders")
    assert (left.body, left.attempts, left.failure_reason) == ("long", 1, "took longer than 0.3 s")


def test_a_reply_without_room_waits_and_counts_no_attempt(space: Any, caplog: pytest.LogCaptureFixture) -> None:
    space.put("small", "in the way")
    space.put("orders", "x", reply_queue="small")
    stop, worker = threading.Event(), []

    def work() -> None:
        worker.append(space.work("orders", lambda message: "reply", stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    while "a message of queue orders waits" not in caplog.text:
        time.sleep(0.01)
    assert space.get("small", timeout=WAIT).body == "in the way"
    assert space.get("small", timeout=WAIT).body == "reply"
    stop.set()
    thread.join(WAIT)
    assert worker[0].delivered == 1
    assert worker[0].retried == 0


def test_a_missing_reply_queue_is_a_failed_attempt(space: Any) -> None:
    space.put("orders", "x", reply_queue="nowhere")
    summary = space.work("orders", lambda message: "reply", once=True)
    assert plain(summary) == {"retried": 1, "left": 1}
    assert "'nowhere' does not exist" in summary.reasons["retried"]


def test_a_storm_of_failures_pauses(space: Any) -> None:
    space.put_many("other", range(9))
    seen: list[int] = []
    stop = threading.Event()

    def fail(message: spool.Message) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            threading.Timer(0.3, stop.set).start()
        raise spool.Retry("the service is down", delay=1000)

    summary = space.work("other", fail, pause_after=3, stop=stop)
    assert (seen, summary.retried) == ([0, 1, 2], 3)


def test_the_puts_of_a_function_join_its_commit(space: Any) -> None:
    space.put_many("orders", ["reply", "translate", "raise", "reject", "refused"], correlation_id="c")
    seen, ids = list[Any](), list[list[str]]()

    def function(message: spool.Message) -> Any:
        own = spool.current_space()
        seen.append(own)
        ids.append([own.put("other", [message.body, 1], priority=3, headers={"a": "b"})])
        ids[-1] += own.put_many("other", [message.body, b"x"])
        with pytest.raises(spool.ProtocolError, match="a request inside a transaction"):
            own.request("orders", "x", timeout=0.1)
        own.put("important", message.body, transaction=None)
        if message.body == "refused":
            own.put("nowhere", "x")
        if message.body == "raise":
            raise spool.Retry("no", delay=1000)
        if message.body == "reject":
            raise spool.Reject("never", reply="no")
        return message.body if message.body == "reply" else spool.Translated([spool.NewMessage("replies", "new")])

    summary = space.work("orders", function, once=True)
    assert plain(summary) == {"delivered": 2, "retried": 2, "rejected": 1, "left": 2}
    assert "nowhere" in summary.reasons["retried"]
    assert set(seen) == {space}
    put = [[([body, 1], 3, None), (body, 50, None), (b"x", 50, None)] for body in ("reply", "translate")]
    assert shown(space.browse("other"), "body priority correlation_id") == [*chain(*put)]
    assert [message.id for message in space.browse("other")] == ids[0] + ids[1]
    assert len({*chain(*ids)}) == 15
    assert shown(space.browse("replies"), "body correlation_id") == [("reply", "c"), ("new", "c")]
    assert len(list(space.browse("important"))) == 5


def test_a_closed_space(space: Any) -> None:
    space.close()
    space.close()
    for call in (lambda: space.put("other", "x"), lambda: space.get("other"), space.stats, space.claims):
        with pytest.raises(spool.NotOpen):
            call()
