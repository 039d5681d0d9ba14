"""A request puts a message and waits for its reply; it hears of a failure, and a late reply can still be had."""

import asyncio
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spool
import spool.aio
from spool.transactions import request_reply
from tests.held import PATIENT_SECONDS
from tests.meanwhile import elsewhere
from tests.shown import shown
from tests.spaces import opened_path, path_with

path = path_with(
    "answers",
    "more-answers",
    "failures",
    "errors",
    defaults={},
    orders={"reply_queue": "answers", "failure_queue": "failures", "error_queue": "errors", "retries": 0},
    bare={},
)
space = opened_path()


class InThreads:
    """``space.request``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *args: Any, **options: Any) -> spool.Message:
        with spool.open(self.path) as space:
            return space.request(*args, **options)


class InTasks(InThreads):
    """``await space.request``."""

    def __call__(self, *args: Any, **options: Any) -> spool.Message:
        async def main() -> spool.Message:
            async with asyncio.timeout(PATIENT_SECONDS), spool.aio.open(self.path) as space:
                return await space.request(*args, **options)

        return asyncio.run(main())


@pytest.fixture(params=[InThreads, InTasks])
def request_(request: pytest.FixtureRequest, path: Path) -> InThreads:
    return request.param(path)  # type: ignore[no-any-return]


def serve(message: spool.Message) -> str:
    if message.body == "stone":
        raise spool.Reject("no such dish", reply="we have soup")
    if message.body == "coffee":
        raise ValueError("there is none")
    return f"cooked: {message.body}"


@contextmanager
def served(space: spool.Space, queue: str = "orders") -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(space.work, queue, serve, stop=stop)
        try:
            yield
        finally:
            stop.set()
            work.result(PATIENT_SECONDS)


def test_a_rejection_would_look_like_the_reply_in_the_same_queue(space: spool.Space, request_: InThreads) -> None:
    with pytest.raises(spool.InvalidArgument, match="a failure queue other than its reply queue, answers"):
        request_("orders", "stone", failure_queue="answers")
    assert space.stats("orders").enqueued == 0


def test_the_reply_of_a_service_is_returned_and_taken(space: spool.Space, request_: InThreads) -> None:
    with served(space):
        reply = request_("orders", "soup", correlation_id="table 7", user_code=3, timeout=None)
        expected = [("cooked: soup", "answers", "table 7", 3)]
        assert shown([reply], "body queue correlation_id user_code") == expected
        assert request_("orders", "cake", reply_queue="more-answers").queue == "more-answers"
    assert not list(space.browse("answers"))


def test_many_at_once_get_each_its_own_reply(space: spool.Space) -> None:
    async def main() -> list[spool.Message]:
        async with asyncio.timeout(PATIENT_SECONDS), spool.aio.open(space.path) as tasks:
            return await asyncio.gather(*(tasks.request("orders", n) for n in range(20)))

    with served(space), ThreadPoolExecutor(9) as pool:
        found = pool.map(lambda n: space.request("orders", n).body, range(20, 40))
        assert [message.body for message in asyncio.run(main())] == [f"cooked: {n}" for n in range(20)]
        assert list(found) == [f"cooked: {n}" for n in range(20, 40)]


def test_a_rejection_is_told_with_the_services_answer(space: spool.Space, request_: InThreads) -> None:
    with served(space), pytest.raises(spool.RequestFailed, match="no such dish") as failed:
        request_("orders", "stone", correlation_id="c")
    assert failed.value.reply.body == "we have soup"
    assert failed.value.correlation_id == "c"
    assert [message.id for message in space.browse("errors")] == [failed.value.message_id]
    assert not list(space.browse("failures"))
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


@pytest.mark.parametrize("option", ["reply_queue", "failure_queue"])
def test_a_request_that_fails_into_a_queue_of_answers_is_no_answer(
    space: spool.Space, request_: InThreads, option: str
) -> None:
    with served(space), pytest.raises(spool.RequestFailed, match="there is none") as failed:
        request_("orders", "coffee", **{option: "errors"})
    assert failed.value.reply is None
    assert [message.id for message in space.browse("errors")] == [failed.value.message_id]


def test_a_failure_during_the_search_for_the_reply_is_told_with_its_reply(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service in a thread of the same process rejects the request when the search has found no reply."""
    search, services = request_reply.get_alone, [lambda: space.work("orders", serve, once=True)]

    def search_and_serve(*arguments: Any) -> list[spool.Message]:
        try:
            return search(*arguments)
        finally:
            if services and arguments[1].queue == "failures":
                with elsewhere():
                    services.pop()()

    monkeypatch.setattr(request_reply, "get_alone", search_and_serve)
    with pytest.raises(spool.RequestFailed) as failed:
        space.request("orders", "stone", timeout=PATIENT_SECONDS)
    assert failed.value.reply.body == "we have soup"
    assert services == []


def test_a_request_that_has_failed_too_often_is_told_and_stays_in_the_error_queue(
    space: spool.Space, request_: InThreads
) -> None:
    with served(space), pytest.raises(spool.RequestFailed, match=r"there is none.*is in queue errors") as failed:
        request_("orders", "coffee")
    assert failed.value.reply is None
    assert space.get("errors").id == failed.value.message_id


def test_without_a_reply_in_time_the_request_stays_and_a_late_reply_can_be_had(space: spool.Space, request_: InThreads):
    with pytest.raises(spool.Empty, match=r"stays in queue orders; get a late reply with get\('answers', corr") as late:
        request_("orders", "soup", timeout=0.05)
    assert [message.id for message in space.browse("orders")] == [late.value.message_id]
    space.work("orders", serve, once=True)
    assert space.get("answers", correlation_id=late.value.correlation_id).body == "cooked: soup"


async def test_inside_a_transaction_it_is_refused(space: spool.Space) -> None:
    with space.transaction() as tx:
        with pytest.raises(spool.ProtocolError, match="inside a transaction"):
            space.request("orders", "soup")
        tx.rollback()

    async with spool.aio.open(space.path) as tasks, tasks.transaction() as tx:
        with pytest.raises(spool.ProtocolError, match="inside a transaction"):
            await tasks.request("orders", "soup")
        await tx.rollback()
    assert space.stats("orders").enqueued == 0


def test_a_request_that_cannot_be_answered_is_refused_before_it_is_put(space: spool.Space, request_: InThreads) -> None:
    for options, error, text in (
        ({}, spool.InvalidArgument, r"pass reply_queue=.*change_queue\('bare'"),
        ({"reply_queue": "anwsers"}, spool.QueueNotFound, "did you mean answers"),
        ({"reply_queue": "answers", "failure_queue": "none"}, spool.QueueNotFound, "failure_queue"),
        ({"reply_queue": "answers", "deduplication_key": "k"}, spool.InvalidArgument, "correlation_id"),
        ({"reply_queue": "answers", "timeout": -1}, spool.InvalidArgument, "timeout"),
    ):
        with pytest.raises(error, match=text):
            request_("bare", "soup", **options)
    with pytest.raises(spool.QueueNotFound):
        request_("nowhere", "soup")
    assert space.stats("bare").enqueued == 0


async def test_a_request_that_is_cancelled_stays(space: spool.Space) -> None:
    async with spool.aio.open(space.path) as tasks:
        waiting = asyncio.create_task(tasks.request("orders", "soup", correlation_id="c"))
        while (await tasks.stats("orders")).ready == 0:
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    space.work("orders", serve, once=True)
    assert space.get("answers", correlation_id="c").body == "cooked: soup"
