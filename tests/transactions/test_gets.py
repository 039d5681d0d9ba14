"""A get without a transaction: the conditions that it waits for, and the claims that it releases."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.coordination.locks import ClaimLocks
from spool.disk.disk import FlushFailed
from spool.errors import CorruptedFile
from spool.maintenance import triggers
from spool.store.store import Store
from spool.transactions import hold
from tests import door
from tests.clocks import SimulatedClock, timed
from tests.held import PATIENT_SECONDS


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def space(tmp_path: Path, clock: SimulatedClock) -> Any:
    with spool.create(timed(tmp_path / "space", clock)) as made:
        made.create_queue("orders")
        yield made


def cannot_be_read(*_: object, **__: object) -> None:
    raise CorruptedFile("it is damaged")


def test_the_time_of_a_get_goes_on_when_a_damaged_message_is_set_aside(
    space: spool.Space, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The get waits for a message after the damaged one, but not longer than its timeout."""
    begun = clock.time

    def set_aside(store: Store, ranges: Any, only_shown: bool) -> Any:
        clock.time = begun + 7.0
        return [], ranges

    monkeypatch.setattr(hold, "read_messages", cannot_be_read)
    monkeypatch.setattr(hold, "messages_one_by_one", set_aside)
    space.put("orders", "damaged")
    monkeypatch.setattr(hold.Hold, "give_back", lambda *_: None)  # it stays claimed: nothing else is there
    with pytest.raises(spool.Empty):
        space.get("orders", timeout=10)
    assert 10.0 <= clock.time - begun < 11.0


def test_the_time_in_which_another_thread_has_the_transaction_counts(space: spool.Space, clock: SimulatedClock) -> None:
    begun, ended = clock.time, []
    with space.transaction(timeout=None) as tx:

        def get() -> None:
            with pytest.raises(spool.Empty):
                tx.get("orders", timeout=10)
            ended.append(clock.time)

        other = threading.Thread(target=get)
        lock, waits = tx.mutex, threading.Event()

        class Held:
            def __enter__(self) -> None:
                waits.set()
                lock.acquire()

            def __exit__(self, *_: object) -> None:
                lock.release()

        with lock:
            tx.mutex = Held()  # type: ignore[assignment]
            other.start()
            assert waits.wait(PATIENT_SECONDS)
            clock.time += 8.0
        other.join(PATIENT_SECONDS)
        tx.mutex = lock
    assert 10.0 <= ended[0] - begun < 11.0


def test_the_space_stops_before_a_claim_is_free_when_a_flush_fails(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    """Rule 7. The flush is that of a damaged body, which goes to quarantine."""
    seen: list[str] = []
    stop, release = Store.stop, ClaimLocks.release

    def note_release(claims: ClaimLocks, *stretch: int) -> None:
        seen.append("release")
        release(claims, *stretch)

    def fails(*_: object) -> None:
        raise FlushFailed(5, "it fails")

    monkeypatch.setattr(hold, "read_messages", cannot_be_read)
    monkeypatch.setattr(hold, "messages_one_by_one", fails)
    monkeypatch.setattr(Store, "stop", lambda store: (seen.append("stop"), stop(store)))
    monkeypatch.setattr(ClaimLocks, "release", note_release)
    space.put("orders", "one")
    with pytest.raises(spool.DiskFailure, match="it fails"):
        space.get("orders")
    assert seen == ["stop", "release"]


def test_a_message_of_a_queue_that_is_gone_can_be_moved_and_deleted(space: spool.Space) -> None:
    """A user removed its queue from space.toml by hand: no get can ask for the message, so an administrator rescues
    it."""
    space.create_queue("old")
    ids = space.put_many("old", ["moved", "deleted"])
    file = Path(space.path, "space.toml")
    text = file.read_text()
    file.write_text(text[: text.index("[queues.old]")])
    door.housekeep(space)
    with pytest.raises(spool.QueueNotFound):
        space.get("old")
    space.move(ids[0], "orders")
    space.delete(ids[1])
    assert [message.body for message in space.browse("orders")] == ["moved"]


def test_large_files_come_back_as_soon_as_there_are_many_bytes(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    """Each commit wakes the housekeeper once enough bytes are idle, so the recycler has files for the next writer."""
    looks: list[int] = []
    monkeypatch.setattr(door.housekeeper(space), "committed", lambda: looks.append(door.index(space).idle_bytes))
    door.housekeeper(space).next_look = 1 << 60
    monkeypatch.setattr("spool.space.RECLAIM_BYTES", 1000)
    for _ in range(3):
        space.put("orders", b"x" * 600)
        space.get("orders")
    assert triggers.RECLAIM_BYTES > 1000
    assert looks
    assert min(looks) >= 1000


# -- gets of a process that holds many messages -----------------------------------------------------------------------

MESSAGES, CLAIMS = 200, 100


def _put(space: spool.Space, **options: Any) -> Iterator[None]:
    yield
    space.put("orders", b"first", **options)


def _released(space: spool.Space) -> Iterator[None]:
    space.put("orders", b"first", priority=90)
    with space.claims() as claims:
        claims.take("orders")
        yield


@pytest.mark.parametrize("change", [_put, partial(_put, priority=90), _released])
@pytest.mark.parametrize("at_once", [1, MESSAGES])
def test_a_message_that_becomes_free_before_many_held_ones_is_next(space: spool.Space, change: Any, at_once: int):
    """A search begins behind the messages that this process holds."""
    space.change_queue("orders", order="priority", retry_delay=0.0)
    for begin in range(0, MESSAGES, at_once):
        space.put_many("orders", range(begin, begin + at_once), priority=40)
    under_way = change(space)
    next(under_way)
    transaction = space.transaction(timeout=None)
    assert [transaction.get("orders").body for _ in range(CLAIMS)] == list(range(CLAIMS))
    passed = door.index(space).messages.queue("orders").passed
    assert max(passed.key[1] - 2, passed.ordinal) >= CLAIMS - hold.MANY_OWN - 2
    next(under_way, None)
    assert [transaction.get("orders").body for _ in range(2)] == [b"first", CLAIMS]
    transaction.rollback()
