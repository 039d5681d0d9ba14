"""Workers that do not see the space: they get bodies from the forwarder's process, and hand back the outcomes."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import spool
from forwarder.network import offers
from forwarder.network.arrow import batches
from forwarder.network.offers import OUTCOMES, OfferedBranch
from forwarder.network.outcome_codec import packed, unpacked
from forwarder.network.server_calls import act, read, write
from forwarder.round import Round, Route
from forwarder.task import Chunk, TaskResult, deliver
from forwarder.web.endpoint import Endpoint
from forwarder.web.offers import OfferServer
from spool.client.problems import Unreachable
from spool.engine.remote import RemoteBranch
from spool.errors import AccessDenied, InvalidArgument, ProtocolError, SpoolError, SystemFailure, TransactionRolledBack
from spool.workers.effects import Effect
from spool.workers.outcome import NewMessage, Outcome, Passed, Rejected, Replied, Retried, Translated
from tests.forwarder.rounds import Scripted, answers, attempts, in_process, run_round
from tests.shown import bodies, left_over

ELSEWHERE = "a boot of another machine"


@pytest.fixture
def server() -> Iterator[OfferServer]:
    server = OfferServer(Endpoint("127.0.0.1"))
    yield server
    server.close()


Job = Callable[[list[Chunk]], list[TaskResult]]


def blind(chunk: Chunk) -> Chunk:
    """Return the chunk as a worker on another machine has it."""
    assert chunk.offer is not None
    return dataclasses.replace(
        chunk,
        path="/nowhere",
        offer=dataclasses.replace(chunk.offer, place=chunk.offer.place._replace(boot_id=ELSEWHERE)),
    )


@pytest.fixture
def there(server: OfferServer) -> Job:
    """A job whose workers do not see the space."""

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        with server.offering(chunks) as offered:
            return in_process([blind(chunk) for chunk in offered])

    return job


def run(space: spool.Space, job: Job, service: Any = None, limit: int = 10_000) -> Any:
    return run_round(space, Route("orders", service or Scripted("here")), job, limit=limit, tasks=2, timeout=0)


def test_x05_the_outcomes_of_a_worker_that_does_not_see_the_space_are_those_of_one_that_does(
    space: spool.Space, there: Job, server: OfferServer
) -> None:
    space.create_queue("lost")
    space.change_queue("orders", error_queue="lost", retries=3, retry_delay=0)
    said: dict[str, Outcome] = {
        "reply": Replied(b"done", "text/plain"),
        "later": Retried("not yet", 5.0),
        "never": Rejected("bad", Replied(b"why")),
        "pass": Passed("replies"),
        "many": Translated([NewMessage("replies", {"n": 1}, priority=7), NewMessage("replies", "two")], "a note"),
    }
    answers["here"] = lambda request: said[str(request.message.body)]

    def effects(job: Job) -> tuple[Any, list[Any], Any, Any]:
        for name in said:
            space.put("orders", name, reply_queue="replies", failure_queue="replies", headers={"kind": name})
        result = run(space, job)
        found = []
        for queue in ("replies", "lost", "orders"):
            for message in space.browse(queue):
                fields = message.as_dict()
                for own in ("id", "position", "enqueued_at", "failed_at", "not_before", "correlation_id"):
                    del fields[own]
                found.append((fields, message.body))
            space.purge(queue)
        return result.effects, found, [tuple(one) for one in result.failures], len(result.attempted)

    def here(chunks: list[Chunk]) -> list[TaskResult]:
        with server.offering(chunks) as offered:
            return in_process(offered)

    by_files, over_network = effects(here), effects(there)
    assert by_files == over_network
    assert by_files[0] == {Effect.DELIVERED: 3, Effect.RETRIED: 1, Effect.REJECTED: 1}


def test_x05_a_mixed_cluster_handles_one_round_and_its_result_tells_the_messages_over_the_network(
    space: spool.Space, server: OfferServer
) -> None:
    space.put_many("orders", [b"%d" % i for i in range(400)], reply_queue="replies")
    answers["here"] = lambda request: Replied(request.raw)

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        with server.offering(chunks) as offered:
            return in_process([blind(chunk) if place % 2 else chunk for place, chunk in enumerate(offered)])

    result = run(space, job)
    assert (result.effects, result.over_network) == ({Effect.DELIVERED: 400}, 200)
    assert sorted(bodies(space, "replies"), key=int) == [b"%d" % i for i in range(400)]


def test_x05_large_bodies_and_damaged_ones_go_over_the_network(space: spool.Space, there: Job) -> None:
    large = bytes(range(256)) * 40_000
    space.put_many("orders", [b"", large, b"x" * 3_000_000, b"\0"], reply_queue="replies")
    answers["here"] = lambda request: Replied(request.raw)
    assert run(space, there).effects == {Effect.DELIVERED: 4}
    assert bodies(space, "replies") == [b"", large, b"x" * 3_000_000, b"\0"]


def test_x05_a_service_that_is_not_reached_keeps_messages_and_votes_for_none(space: spool.Space, there: Job) -> None:
    space.put_many("orders", [b"a", b"b"])
    answers["here"] = lambda request: Retried("no way there", 3.0, counted=False)
    result = run(space, there)
    assert (result.effects, result.kept and result.kept.delay) == ({Effect.KEPT: 2}, 3.0)
    assert [message.attempts for message in space.browse("orders")] == [0, 0]
    assert left_over(space.path) == []


def test_x05_a_worker_that_misses_the_endpoint_keeps_its_messages(space: spool.Space, server: OfferServer) -> None:
    space.put_many("orders", [b"a", b"b"])
    answers["here"] = lambda request: Replied()

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        with server.offering(chunks) as offered:
            server.close()
            return in_process([blind(chunk) for chunk in offered])

    result = run(space, job)
    assert result.effects == {Effect.KEPT: 2}
    assert "cannot be reached" in result.down
    assert [message.attempts for message in space.browse("orders")] == [0, 0]


# -- wrong requests ----------------------------------------------------------------------------------------------------


@pytest.fixture
def offered(space: spool.Space, server: OfferServer) -> Iterator[Chunk]:
    """One chunk of three messages, which its round still holds."""
    space.put_many("orders", [b"a", b"b", b"c"])
    answers["here"] = lambda request: Replied()
    with Round(space, Route("orders", Scripted("here"))) as round_:
        assert round_.claim(10, timeout=0)
        kept = list[Chunk]()
        round_.call(lambda chunks: kept.extend(chunks) or [], tasks=1)
        [chunk] = [kept[0]] if len(kept) == 1 else [dataclasses.replace(kept[0], runs=round_.held)]
        with server.offering([chunk]) as [found]:
            yield blind(found)
    space.engine.resolve_orphans()
    assert left_over(space.path) == []


def sent(chunk: Chunk, rows: list[tuple[int, float, bytes]], schema: pa.Schema = OUTCOMES, **changed: Any) -> Any:
    assert chunk.offer is not None
    asked = {"key": chunk.offer.key, "task": 0, "attempt": next(attempts), **changed}
    return write(chunk.offer.connection, batches(schema, rows), schema, **asked)


def received(chunk: Chunk, **changed: Any) -> list[Any]:
    assert chunk.offer is not None
    asked = {"key": chunk.offer.key, "task": 0, "attempt": 0, **changed}
    return list(read(chunk.offer.connection, json.dumps(asked).encode()))


DONE = packed(Replied())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(3, 0.0, DONE)], "an outcome has the place 3 after -1, of 3 messages"),
        ([(-1, 0.0, DONE)], "has the place -1"),
        ([(1, 0.0, DONE), (1, 0.0, DONE)], "has the place 1 after 1"),
        ([(0, 0.0, b"\xc1")], "an outcome cannot be decoded"),
        ([(0, 0.0, packed(Passed("replies"))[:-1] + b"/")], "an outcome cannot be decoded"),
        ([(0, 0.0, packed(Retried("later", math.nan)))], "an outcome cannot be decoded"),
        ([(0, math.nan, packed(Retried("later")))], "nan is no number of seconds"),
        ([(0, 1e300, packed(Retried("later")))], "is no number of seconds"),
    ],
)
def test_outcomes_that_are_not_of_the_task_are_refused(offered: Chunk, rows: Any, said: str) -> None:
    with pytest.raises(SpoolError, match=said):
        sent(offered, rows)
    assert sent(offered, [(0, 0.0, DONE)])["effects"] == [["delivered", "", 1]]


def test_outcomes_with_other_columns_are_refused(offered: Chunk) -> None:
    other = pa.schema([pa.field("place", pa.int32())])
    with pytest.raises(InvalidArgument, match="outcomes have the columns"):
        sent(offered, [(0,)], other)  # type: ignore[list-item]


def test_a_task_of_a_round_that_has_ended_is_refused(space: spool.Space, server: OfferServer) -> None:
    space.put("orders", b"a")
    late: list[Chunk] = []

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        with server.offering(chunks) as offered:
            late.extend(map(blind, offered))
        return []

    answers["here"] = lambda request: Replied()
    run(space, job)
    with pytest.raises(TransactionRolledBack, match="the round of this task has ended"):
        deliver(late[0], 0, next(attempts))


@pytest.mark.parametrize("wrong", [{"task": -1}, {"task": 2**31}, {"attempt": -1}, {"attempt": 2**63}], ids=str)
def test_a_task_of_the_forwarder_has_a_bounded_number(offered: Chunk, wrong: dict[str, int]) -> None:
    for call in (lambda: sent(offered, [(0, 0.0, DONE)], **wrong), lambda: received(offered, **wrong)):
        with pytest.raises(InvalidArgument, match="wrong value"):
            call()


def test_a_task_of_the_forwarder_sends_a_bounded_number_of_bytes(offered: Chunk, server: OfferServer) -> None:
    server.transfers.most_bytes = 1 << 20
    with pytest.raises(InvalidArgument, match="at most 1,048,576 bytes"):
        sent(offered, [(0, 0.0, packed(Replied(bytes(1 << 20))))])


def test_a_bug_of_the_endpoint_is_told_as_such(offered: Chunk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise look like a fault of the network, and the round would be repeated without end."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    for part in ("bodies", "conclude"):
        monkeypatch.setattr(RemoteBranch, part, fail)
    for call in (lambda: sent(offered, [(0, 0.0, DONE)]), lambda: received(offered)):
        with pytest.raises(SystemFailure, match="a bug") as told:
            call()
        assert not isinstance(told.value, Unreachable)


def test_a_client_without_the_token_gets_no_message(offered: Chunk) -> None:
    assert offered.offer is not None
    stranger = dataclasses.replace(offered.offer.connection, token="x" * 64)
    with pytest.raises(AccessDenied, match="token is unknown"):
        OfferedBranch(dataclasses.replace(offered.offer, connection=stranger), 0, next(attempts))
    with pytest.raises(AccessDenied, match="token is unknown"):
        list(read(stranger, b"{}"))
    with pytest.raises(SystemFailure, match="no call 'stop'"):
        act(offered.offer.connection, "stop")
    assert act(offered.offer.connection, "now")
    with pytest.raises(InvalidArgument, match="wrong value"):
        received(offered, key="x")


def test_a_worker_that_takes_no_more_of_its_messages_does_not_keep_the_endpoint_from_its_end(
    space: spool.Space, server: OfferServer
) -> None:
    space.put_many("orders", [bytes(1 << 20)] * 64)
    answers["here"] = lambda request: Replied()
    held: list[Any] = []

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        whole = dataclasses.replace(chunks[0], runs=[part for chunk in chunks for part in chunk.runs])
        with server.offering([whole]) as [offered]:
            messages = OfferedBranch(blind(offered).offer, 0, next(attempts)).messages(offered.runs)  # type: ignore[arg-type]
            held.append((next(messages), messages))
            assert server.close()
        return []

    run(space, job)
    held[0][1].close()


def test_x05_a_wrong_outcome_of_a_service_costs_its_message_an_attempt(space: spool.Space, there: Job) -> None:
    space.put_many("orders", [b"good", b"bad"])
    answers["here"] = lambda request: Replied() if request.raw == b"good" else Replied(None)  # type: ignore[arg-type]
    result = run(space, there)
    assert result.effects == {Effect.DELIVERED: 1, Effect.RETRIED: 1}
    assert [message.attempts for message in space.browse("orders")] == [1]


def test_x05_large_replies_come_in_several_batches(space: spool.Space, there: Job) -> None:
    space.put_many("orders", [b"%d" % i for i in range(6)], reply_queue="replies")
    answers["here"] = lambda request: Replied(request.raw * 3_000_000)
    assert run(space, there).effects == {Effect.DELIVERED: 6}
    assert sorted(map(len, bodies(space, "replies"))) == [3_000_000] * 6


def test_x05_a_worker_may_have_a_wrong_clock(space: spool.Space, there: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of a round, and the delays of failed messages, follow the clock of the space's machine."""
    space.put_many("orders", [b"%d" % i for i in range(40)])
    answers["here"] = lambda request: Retried("later", 100.0)
    wrong = SimpleNamespace(time=lambda: time.time() + 86_400)
    monkeypatch.setattr(offers, "time", wrong)
    assert run(space, there).effects == {Effect.RETRIED: 40}
    due = [message.not_before for message in space.browse("orders")]
    assert all(when is not None and when - time.time() < 200 for when in due)


# -- outcomes, endpoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [
        Replied(b"\xff", "text/plain", "text"),
        Retried("later", None, False),
        Retried("later", 1.5),
        Rejected("no"),
        Rejected("no", Replied(b"why", None, None), 60.0),
        Passed("next"),
    ],
)
def test_an_outcome_is_the_same_after_its_way(outcome: Outcome) -> None:
    assert unpacked(packed(outcome)) == outcome


def test_a_new_message_is_checked_like_a_put() -> None:
    [new] = unpacked(packed(Translated([NewMessage("next", {"n": 1}, delay=3)]))).messages  # type: ignore[union-attr]
    stored = {"delay": 3, "codec": "msgpack", "content_type": "application/msgpack"}
    assert (new.queue, new.attributes) == ("next", stored)
    bad = NewMessage.stored("next", b"", {"priority": 1000})
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        unpacked(packed(Translated([bad])))


def test_the_files_of_an_endpoint_are_read_at_the_start() -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        OfferServer(Endpoint("127.0.0.1", certificate="/nowhere/a", key="/nowhere/b"))
