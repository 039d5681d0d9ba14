"""Waiting requests when the space closes, forks, or is interrupted: each is committed as a whole, or not at all."""

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import spool
from spool.coordination.locks import NUMBER
from spool.runtime import call_guard
from spool.runtime.async_exceptions import mark_delivered
from tests import door
from tests.at_once import AT_ONCE
from tests.children import exit_code_of
from tests.held import PATIENT_SECONDS, Gathering
from tests.shown import bodies


def test_closing_commits_submitted_messages(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        futures = [space.submit("orders", n) for n in range(20)]
        put = gathering.join(lambda: space.put("orders", "put"))
        closing = gathering.join(space.close)
        with pytest.raises(spool.NotOpen):
            space.submit("orders", "late")
    assert closing.error is None
    assert put.error is None
    assert all(future.done() for future in futures)
    with spool.open(space.path) as again:
        assert bodies(again) == ["first", *range(20), "put"]
        assert [again.show(future.result(0)).body for future in futures] == list(range(20))


def test_closing_ends_the_store_s_thread(gathering: Gathering) -> None:
    gathering.space.submit("orders", "a").result(PATIENT_SECONDS)
    thread = door.commit_thread(gathering.space)
    assert thread is not None
    gathering.space.close()
    thread.join(PATIENT_SECONDS)
    assert not thread.is_alive()


def test_closing_fails_submissions_in_an_open_transaction(gathering: Gathering) -> None:
    tx = gathering.space.transaction()
    future = tx.submit("orders", "a")
    gathering.space.close()
    with pytest.raises(spool.TransactionRolledBack, match="closed"):
        future.result(0)


@pytest.mark.unled("the leader of this process fails, and no other one")
def test_a_torn_step_fails_waiting_requests_and_closes(gathering: Gathering) -> None:
    """The leader's step is torn, as by a second Ctrl-C."""
    space, tears = gathering.space, iter([SystemExit()])

    def tear(requests: int) -> None:
        if requests > 1:
            for error in tears:
                raise error

    with door.before_attempts(tear), gathering.held():
        leader = gathering.join(lambda: space.put("orders", "torn"))
        follower = gathering.join(lambda: space.put("orders", "waits"))
        future = space.submit("orders", "submitted")
    assert isinstance(leader.error, SystemExit)
    found = {"submitted"} if future.exception(PATIENT_SECONDS) is None else set()
    found |= {"waits"} if follower.error is None else set()
    for error in (follower.error, future.exception(0)):
        assert error is None or isinstance(error, spool.NotOpen)
    with pytest.raises(spool.NotOpen):
        space.put("orders", "late")
    with spool.open(space.path) as again:
        assert set(bodies(again)) == {"first", *found}


@pytest.mark.parametrize("delivered", [True, False], ids=["in a wait", "at any step"])
def test_after_an_interrupted_flush_no_request_is_committed_again(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    """Only the leader's caller gets the exception. The others do not know whether their messages were put."""
    space, interrupt, durable = gathering.space, KeyboardInterrupt(), gathering.disk.make_durable
    interrupts = iter([interrupt])
    if delivered:
        mark_delivered(interrupt)  # the space stays open

    def flush(handle: int, directory: str, **how: bool) -> None:
        for error in interrupts:
            raise error
        durable(handle, directory, **how)

    with gathering.held():
        callers = [gathering.join(lambda n=n: space.put("orders", n)) for n in range(2)]
        submitted = space.submit("orders", 2)
        monkeypatch.setattr(gathering.disk, "make_durable", flush)
    assert [type(caller.error) for caller in callers] == [KeyboardInterrupt, spool.CommitUnknown]
    assert isinstance(submitted.exception(PATIENT_SECONDS), spool.CommitUnknown)
    with spool.open(space.path) as again:
        assert bodies(again) in (["first"], ["first", 0, 1, 2])


def test_a_forked_child_leaves_its_parents_futures_alone(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        future = space.submit("orders", "a")

        def submit() -> None:
            with pytest.raises(spool.NotOpen):
                space.submit("orders", "from the child")
            assert not future.done()

        assert exit_code_of(submit) == 0
    future.result(PATIENT_SECONDS)
    assert bodies(space) == ["first", "a"]


@pytest.fixture
def _the_usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _press_when_joined(gathering: Gathering) -> threading.Thread:
    """Ctrl-C as soon as the main thread waits in the line."""
    main = threading.main_thread().ident

    gathering.came(threading.main_thread()).clear()

    def press() -> None:
        gathering.wait_for(threading.main_thread())
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def interrupted_leader(space: spool.Space, other: spool.Space, come: Callable[[], None]) -> None:
    """This thread commits and is interrupted while the other space holds the number lock."""
    coming = threading.Thread(target=come)
    coming.start()
    with pytest.raises(KeyboardInterrupt):
        space.put("orders", "leader")
    coming.join()
    door.store(other).shared.control.unlock(NUMBER)


@pytest.mark.usefixtures("_the_usual_handler")
def test_ctrl_c_takes_a_waiting_caller_out_of_the_line(gathering: Gathering) -> None:
    space = gathering.space
    with gathering.held():
        pressing = _press_when_joined(gathering)
        with pytest.raises(KeyboardInterrupt):
            space.put("orders", "interrupted")
        pressing.join()
        future = space.submit("orders", "next")
    future.result(PATIENT_SECONDS)
    assert bodies(space) == ["first", "next"]
    assert call_guard._deferral.depth == 0


@pytest.mark.usefixtures("_the_usual_handler")
def test_ctrl_c_in_a_leader_that_waits_leaves_the_others_to_the_next(gathering: Gathering) -> None:
    """The main thread leads, and waits for a lock of another process; the requests of other threads are not lost."""
    space = gathering.space
    with spool.open(space.path) as other:
        door.store(other).shared.control.lock(NUMBER, door.deadline(other), "the number lock")
        main = threading.main_thread().ident
        callers = []
        gathering.came(threading.main_thread()).clear()

        def come() -> None:
            gathering.wait_for(threading.main_thread())
            callers.append(gathering.join(lambda: space.put("orders", "follower")))
            signal.pthread_kill(main, signal.SIGINT)

        interrupted_leader(space, other, come)
        gathering.end()
        assert callers[0].error is None
        assert bodies(other) == ["follower"]


@pytest.mark.unled("the leader of this process fails, and no other one")
@pytest.mark.usefixtures("_the_usual_handler")
def test_ctrl_c_in_a_leader_gives_back_the_requests_of_others(gathering: Gathering) -> None:
    space, main = gathering.space, threading.main_thread()
    leads = threading.Event()

    def notice(requests: int) -> None:
        if threading.current_thread() is main and not leads.is_set():
            assert requests == 3
            leads.set()

    futures: list[Future] = []

    def come() -> None:
        gathering.wait_for(main)
        gathering.join(lambda: space.put("orders", "follower"))
        futures.append(space.submit("orders", "submitted"))
        gathering.disk.go_on.set()
        assert leads.wait(PATIENT_SECONDS)
        signal.pthread_kill(main.ident, signal.SIGINT)

    with door.before_attempts(notice), spool.open(space.path) as other:
        with gathering.held():
            door.store(other).shared.control.lock(NUMBER, door.deadline(other), "the number lock")
            gathering.came(main).clear()
            interrupted_leader(space, other, come)
        futures[0].result(PATIENT_SECONDS)
        assert bodies(other) == ["first", "follower", "submitted"]


def test_a_thread_that_gets_the_lead_as_it_gives_up_hands_it_on(gathering: Gathering, monkeypatch: pytest.MonkeyPatch):
    space, guard, error = gathering.space, door.store(gathering.space).guard, TimeoutError()
    check = guard.check
    mark_delivered(error)  # the space remains open

    def give_up() -> None:
        if threading.current_thread() is second:
            gathering.disk.go_on.set()
            first.join(PATIENT_SECONDS)  # the lead is handed over in the very moment
            raise error
        check()

    with gathering.held():
        [first] = gathering.threads
        second = gathering.join(lambda: space.put("orders", "second"))
        third = gathering.join(lambda: space.put("orders", "third"))
        submitted = space.submit("orders", "submitted")
        monkeypatch.setattr(guard, "check", give_up)
        assert gathering.disk.go_on.wait(PATIENT_SECONDS)
    assert second.error is error
    assert third.error is submitted.exception(PATIENT_SECONDS) is None
    assert bodies(space) == ["first", "third", "submitted"]


def test_a_space_without_references_is_closed(tmp_path: Path) -> None:
    """The threads of a space do not keep it in memory after its close."""
    before = {*threading.enumerate()}
    space = spool.create(tmp_path / "space", defaults=AT_ONCE)
    space.create_queue("orders")
    space.submit("orders", "a").result(PATIENT_SECONDS)
    threads, seen = {*threading.enumerate()} - before, weakref.ref(door.store(space))
    assert len(threads) == 2, "the store's, and housekeeping"
    space.close()
    for thread in threads:
        thread.join(PATIENT_SECONDS)
    del space
    import gc

    gc.collect()
    assert seen() is None
