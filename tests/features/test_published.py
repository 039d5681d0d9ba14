"""The orders and counts that are published for Enduro/X tmqueue's own tests hold here, too."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import spool
from tests.clocks import MovedClock
from tests.features.conftest import drained

PATIENT_SECONDS = 120


def test_e09_three_correlation_ids_of_121_messages_among_126_plain_ones(space: spool.Space) -> None:
    space.create_queue("q")
    for n in range(126):
        with space.transaction() as tx:
            tx.put("q", n)
            for key in ("a", "b", "c") if n < 121 else ():
                tx.put("q", f"{key}{n}", correlation_id=key)
    for key in ("b", "a", "c"):
        with space.transaction():
            assert drained(space, "q", correlation_id=key) == [f"{key}{n}" for n in range(121)]
        with pytest.raises(spool.Empty):
            space.get("q", correlation_id=key)
    assert [message.body for message in space.get_many("q", 200)] == list(range(126))


def test_e09_a_due_delayed_message_is_found_by_its_correlation_id_and_by_its_place(
    space: spool.Space, clock: MovedClock
) -> None:
    space.create_queue("q")
    for n in range(2):
        space.put("q", n, delay=10, correlation_id="c")
    clock.later += 11
    assert space.get("q", correlation_id="c").body == 0
    assert space.get("q").body == 1


def test_e07_1000_messages_through_40_workers_in_strict_order(space: spool.Space) -> None:
    space.create_queue("q", ordered=True)
    space.put_many("q", [*range(1, 1001), *[None] * 40])
    arrived: list[int] = []

    def work(_: int) -> None:
        for _, message in space.consume("q", timeout=PATIENT_SECONDS):
            if message.body is None:
                return
            arrived.append(message.body)

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(work, range(40)))
    assert arrived == list(range(1, 1001))


def test_e08_c05_60_messages_for_a_slow_service_do_not_delay_205_for_fast_ones(space: spool.Space) -> None:
    space.create_queue("slow")
    space.create_queue("fast")
    space.put_many("slow", range(60))
    space.put_many("fast", range(205))
    may_end = threading.Event()
    began = threading.Barrier(5)
    served: list[object] = []

    def serve_slowly() -> None:
        for tx, message in space.consume("slow", timeout=0):
            served.append(message.body)
            if len(served) <= 4:
                began.wait(PATIENT_SECONDS)
            assert may_end.wait(PATIENT_SECONDS)
            assert tx is not None

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(serve_slowly) for _ in range(4)]
        began.wait(PATIENT_SECONDS)  # every worker of the slow service is busy
        assert drained(space, "fast") == list(range(205))
        assert len(served) == 4
        may_end.set()
    assert [worker.result() for worker in workers] == [None] * 4
    assert sorted(served) == list(range(60))  # type: ignore[type-var]
