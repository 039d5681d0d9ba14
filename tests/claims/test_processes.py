"""Claims of several processes: a death releases them at once, and no message is taken twice while its holder lives."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.model import layout
from spool.policies.attempt_journal import Journal
from spool.runtime import call_guard
from spool.runtime.async_exceptions import mark_delivered
from spool.transactions.hold import Hold
from tests import door
from tests.at_once import AT_ONCE
from tests.beside.company import two_that_commit
from tests.children import die, exit_code, exit_code_of, let_die, living, start
from tests.held import PATIENT_SECONDS, committed_here
from tests.led import another_process_leads
from tests.spaces import path_with

path = path_with(orders={"retries": None})


def another(act: Callable[[spool.Claims], object], path: Path) -> AbstractContextManager[int]:
    """Run ``act`` with claims of a child process, which then waits until it is killed. Yields the process id."""

    def program(ready: Callable[[], object]) -> object:
        act(claims := spool.open(path).claims())
        ready()
        return claims

    return living(program)


def test_x14_a_killed_holder_frees_its_messages_at_once_and_only_begun_ones_count_an_attempt(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", range(60))

    def holds(claims: spool.Claims) -> None:
        taken = claims.take("orders", 50)
        for message in taken[:8]:
            claims.begin(message)
        claims.release([taken[0]])
        claims.begin(claims.take("orders")[0])
        claims.begin(taken[9])
        claims.remove([taken[1]]).result(PATIENT_SECONDS)
        claims.fail(taken[2], "it broke").result(PATIENT_SECONDS)
        claims.release([taken[3]])

    with spool.open(path) as space:
        with another(holds, path):
            assert space.stats("orders").claimed == 47
            assert space.get_many("orders", 60)[0].position.ordinal == 2
        with space.claims() as claims:
            left = {message.body: message.attempts for message in claims.take("orders", 60)}
    assert len(left) == 47
    assert {body for body, attempts in left.items() if attempts} == {0, 4, 5, 6, 7, 9}
    assert set(left.values()) == {0, 1}


def test_x14_a_message_that_a_killed_holder_took_by_its_id_is_free_at_once(path: Path) -> None:
    with spool.open(path) as space:
        ids = space.put_many("orders", range(3))
        with another(lambda claims: claims.begin(claims.take("orders", message_id=ids[1])[0]), path):
            assert space.entry(ids[1]).state == "claimed"
            with space.claims() as claims:
                assert claims.take("orders", message_id=ids[1]) == []
        with space.claims() as claims:
            [message] = claims.take("orders", message_id=ids[1])
            assert (message.body, message.attempts) == (1, 1)


def all_ended(claims: spool.Claims) -> None:
    taken = claims.take("orders", 4)
    for message in taken:
        claims.begin(message)
    claims.remove(taken[:2]).result(PATIENT_SECONDS)
    claims.release(taken[2:])


@pytest.mark.parametrize(
    ("act", "count"),
    [
        (lambda claims: claims.take("orders", 4), 0),
        (all_ended, 0),
        (lambda claims: claims.begin(claims.take("orders")[0]), 1),
    ],
    ids=["only taken", "all ended", "begun"],
)
def test_the_recovery_tells_of_a_killed_holder_only_if_an_attempt_was_counted(
    path: Path, act: Callable[[spool.Claims], object], count: int
) -> None:
    with spool.open(path) as space:
        space.put_many("orders", range(4))
    with another(act, path):
        pass
    assert [finding.kind for finding in spool.plan_recovery(path).findings] == ["counted"] * count
    with spool.open(path) as space:
        assert [finding.kind for finding in space.recovery.findings] == ["counted"] * count
        assert sum(message.attempts for message in space.browse("orders")) == count
    assert not list((path / layout.ACTIVE).iterdir())


def fails(space: spool.Space) -> object:
    claims = space.claims()
    failed, held = claims.take("tea", 2)
    claims.begin(failed)
    claims.begin(held)
    return claims.fail(failed, "it broke").result(PATIENT_SECONDS)


def rolls_back(space: spool.Space) -> None:
    transaction = space.transaction()
    transaction.get_many("tea", 2)
    transaction.rollback("it broke")


@pytest.mark.parametrize("retries", [3, 0])
@pytest.mark.parametrize(("act", "second"), [(fails, "the process that held it died"), (rolls_back, "it broke")])
def test_x14_a_failure_whose_process_is_killed_right_after_the_commit_counts_once(
    path: Path, act: Callable[[spool.Space], object], second: str, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spool.open(path) as space:
        space.create_queue("errors")
        space.create_queue("tea", retries=retries, error_queue="errors")
        space.put("tea", 0)
        space.put("tea", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "end", die)
        let_die(lambda: act(spool.open(path)))
    with spool.open(path) as space:
        left = [(one.body, one.attempts, one.failure_reason) for one in space.browse("tea")]
        moved = [(one.body, one.origin_attempts, one.failure_reason) for one in space.browse("errors")]
    once = [(0, 1, "it broke"), (1, 1, second)]
    assert (left, moved) == ((once, []) if retries else ([], once))


@pytest.mark.parametrize("led", [False, True])
def test_x14_two_processes_take_ten_thousand_messages_each_exactly_once(path: Path, tmp_path: Path, led: bool) -> None:
    """Each process notes the messages that it has acknowledged; afterwards each message is noted once."""
    with spool.open(path) as space:
        for some in range(20):
            space.put_many("orders", range(500 * some, 500 * some + 500))

    def work(name: str) -> Callable[[], None]:
        def run() -> None:
            done = []
            with another_process_leads() if led else nullcontext(), spool.open(path) as space, space.claims() as claims:
                while taken := claims.take("orders", 37):
                    claims.begin(taken[0])
                    claims.release(taken[36:])
                    done += [message.body for message in taken[:36]]
                    futures = [claims.remove([message]) for message in reversed(taken[:36])]
                    assert [future.result(PATIENT_SECONDS) for future in futures] == [None] * len(futures)
            (tmp_path / name).write_text("\n".join(map(str, done)))

        return run

    children = [start(work(name)) for name in ("one", "two")]
    assert [exit_code(child) for child in children] == [0, 0]
    noted = [int(line) for name in ("one", "two") for line in (tmp_path / name).read_text().split()]
    assert sorted(noted) == list(range(10_000))
    with spool.open(path) as space:
        assert (space.stats("orders").dequeued, space.stats("orders").ready) == (10_000, 0)


def test_x14_a_forked_child_holds_nothing(path: Path) -> None:
    with spool.open(path) as space, space.claims() as claims:
        space.put_many("orders", range(2))
        taken = claims.take("orders", 2)
        claims.begin(taken[0])

        def child() -> None:
            for call in (lambda: claims.take("orders"), lambda: claims.remove(taken), lambda: claims.release(taken)):
                with pytest.raises(spool.NotOpen, match="open it again in the child"):
                    call()
            claims.close()
            with spool.open(path) as again, again.claims() as own:
                assert own.take("orders", 2) == []

        assert exit_code_of(child) == 0
        claims.remove(taken).result(PATIENT_SECONDS)
        assert space.stats("orders").dequeued == 2


def test_x14_another_process_that_leads_commits_removals_and_failures(path: Path) -> None:
    counts = Counter[str]()
    with spool.open(path) as space, space.claims() as claims, another_process_leads(counts):
        space.put_many("orders", range(9))
        taken = claims.take("orders", 9)
        before = counts["posted"]
        with committed_here(space):
            futures = [claims.remove(taken[:3]), claims.fail(taken[4], "it broke"), claims.remove(taken[7:])]
        assert [future.result(0) for future in futures] == [None] * 3
        assert counts["posted"] == before + 3
        claims.release([taken[3], *taken[5:7]])
        assert [(one.body, one.attempts) for one in space.browse("orders")] == [(3, 0), (4, 1), (5, 0), (6, 0)]


def test_x14_claims_work_beside_two_processes_that_commit_all_the_while(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
    with two_that_commit(tmp_path), spool.open(tmp_path / "space") as space, space.claims() as claims:
        space.put_many("orders", range(500))
        while taken := claims.take("orders", 10):
            claims.begin(taken[0])
            claims.release(taken[4:5])
            futures = [claims.remove([message]) for message in [*taken[:4], *taken[5:]][::-1]]
            assert [future.result(PATIENT_SECONDS) for future in futures] == [None] * len(futures)
        assert (space.stats("orders").dequeued, space.stats("orders").claimed) == (500, 0)


# -- signals ----------------------------------------------------------------------------------------------------------


class Pressed(Exception):
    """A signal handler raises this exception."""


@pytest.fixture
def handler() -> Iterator[None]:
    def raise_it(*_: object) -> None:
        raise Pressed

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield
    signal.signal(signal.SIGUSR1, before)


def _signals_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let a signal arrive in the middle of the next call of ``owner.name``."""
    function = getattr(owner, name)

    def signalled(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, function)
        signal.raise_signal(signal.SIGUSR1)
        return function(*args, **options)

    monkeypatch.setattr(owner, name, signalled)


@pytest.mark.usefixtures("handler")
def test_x14_a_signal_handler_that_raises_in_a_take_leaves_no_message_held(path: Path, monkeypatch: pytest.MonkeyPatch):
    with spool.open(path) as space, space.claims() as claims:
        space.put_many("orders", range(3), group="a")
        for owner, name in ((Hold, "take"), (spool.Claims, "_split")):
            _signals_in(monkeypatch, owner, name)
            with pytest.raises(Pressed):
                claims.take("orders", 3)
            assert (claims.held, space.stats("orders").claimed) == (0, 0)
        assert space.get("orders").body == 0, "the lock of the group is free"
        assert not call_guard.is_in_a_call()


@pytest.mark.usefixtures("handler")
def test_x14_a_signal_handler_that_raises_in_a_removal_does_not_undo_the_removal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spool.open(path) as space, space.claims() as claims:
        space.put_many("orders", range(2))
        taken = claims.take("orders", 2)
        _signals_in(monkeypatch, *door.SUBMISSION)
        with pytest.raises(Pressed):
            claims.remove(taken[:1])
        _signals_in(monkeypatch, spool.Claims, "_end")
        with pytest.raises(Pressed):
            claims.release(taken[1:])
        space.put("orders", "last")  # after the removal
        assert (claims.held, [message.body for message in space.browse("orders")]) == (0, [1, "last"])


def test_x14_a_removal_that_is_withdrawn_while_it_waits_for_room_leaves_the_messages_held(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, while the queue of the commits is full."""
    with spool.open(path) as space, space.claims() as claims:
        space.put("orders", "one")
        taken = claims.take("orders")

        def interrupted(*_: object) -> None:
            error = KeyboardInterrupt()
            mark_delivered(error)
            raise error

        with door.full_line(space, interrupted), pytest.raises(KeyboardInterrupt):
            claims.remove(taken)
        assert claims.held == 1
        claims.remove(taken).result(PATIENT_SECONDS)
        assert space.stats("orders").dequeued == 1


def test_x14_an_administrator_sees_the_process_that_holds_a_message(path: Path) -> None:
    with spool.open(path) as space:
        taken_only, begun, free = space.put_many("orders", range(3))

        def holds(claims: spool.Claims) -> None:
            _, second = claims.take("orders", 2)
            claims.begin(second)

        with another(holds, path) as child:
            seen = [space.entry(id).holder for id in (taken_only, begun, free)]
            assert [None if holder is None else (holder.state, holder.pid) for holder in seen] == [
                ("claimed", child), ("claimed", child), None
            ]  # fmt: skip
            assert [holder.pid for holder in space.holders("orders").values()] == [child, child]
            assert [entry.holder for entry in space.entries("orders")] == seen
            of_metrics = [(each.pid, each.takes) for each in space.metrics().transactions]
            assert of_metrics == [(child, {"orders": 1})] * 2
        with space.claims() as claims:
            claims.take("orders", 3)
            holder = space.entry(taken_only).holder
            assert holder is not None
            assert holder.pid == os.getpid()
