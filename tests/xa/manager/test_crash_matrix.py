"""The crash matrix: the program, its coordinator or PostgreSQL ends at each step; row and message agree afterwards.

Each transaction takes an order, inserts a row, and puts an answer (or only takes and inserts). One victim is hit before
or after one step:

* the program is killed (SIGKILL); another program recovers.
* the coordinator is stopped (SIGSTOP), another program recovers meanwhile, and the coordinator continues.
* PostgreSQL is killed and started again; the program goes on with a new connection, and recovers.

docs/reliability.md has the number of cases.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import spool
import xa
from spool.engine import WaitExpired
from tests import door
from tests.children import die, exit_code, start
from tests.postgresql import Server
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import STEPS, Step, acting

ORDERS = ["milk", "tea"]

CASES = [
    pytest.param(two_phase, step, when, id=f"{way}-{when} {step.text}")
    for two_phase, way in ((False, "last resource"), (True, "two phases"))
    for step in STEPS[two_phase]
    for when in ("before", "after")
]
at_each_step = pytest.mark.parametrize(("two_phase", "step", "when"), CASES)
with_and_without_answers = pytest.mark.parametrize(
    "answers", [pytest.param(True, id="take and put"), pytest.param(False, id="take", marks=pytest.mark.slow)]
)


@pytest.fixture
def server(request: pytest.FixtureRequest, two_phase: bool) -> Server:
    found: Server = request.getfixturevalue("with_two_phases" if two_phase else "by_default")
    return found


def child(shop: Shop, step: Step, when: str, act: Callable[[], object]) -> Callable[[], None]:
    """A program that books one order, and acts at a step."""

    def program() -> None:
        with shop, acting(step, when, act) as acted, shop.manager() as manager:
            shop.book(manager)
        if not acted:
            os._exit(3)

    return program


def recover_and_check(shop: Shop, *living: xa.TransactionManager) -> list[str]:
    """Recover as a program does that starts now; return the booked orders."""
    with shop, shop.manager() as manager:
        assert manager.recover(shop.space, shop.database).left == []
        booked = shop.check_agreement(ORDERS)
        assert shop.dead_logs(manager, *living) == 0
        assert shop.decisions() == 0
        while shop.waiting():  # the shop works on
            shop.book(manager)
        door.settle(manager)  # (a branch that only takes messages is committed in the background)
        assert shop.check_agreement(ORDERS) == ORDERS
        return booked


@pytest.fixture
def shop(memory: Path, server: Server, two_phase: bool, step: Step, answers: bool) -> Shop:
    """A shop with two orders, which no process has open."""
    if not answers and step.text == "the commit of the space":
        pytest.skip("a branch that only takes messages is committed in the background")
    with Shop(memory, server, two_phase, answers) as found:
        found.space.put_many("orders", ORDERS)
    return found


@at_each_step
@with_and_without_answers
@pytest.mark.every(9)
def test_x03_the_program_is_killed(shop: Shop, two_phase: bool, step: Step, when: str, answers: bool) -> None:
    killed = start(child(shop, step, when, die))
    assert exit_code(killed) == -signal.SIGKILL
    recover_and_check(shop)


@at_each_step
@with_and_without_answers
@pytest.mark.every(9, first=1)
def test_x03_the_coordinator_is_stopped_while_another_program_recovers(
    shop: Shop, two_phase: bool, step: Step, when: str, answers: bool
) -> None:
    """A stopped coordinator lives: its branches are left to it, however long it is stopped."""
    stopped = start(child(shop, step, when, lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    try:
        _, status = os.waitpid(stopped, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        with shop, shop.manager() as manager:
            with suppress(WaitExpired):  # (its background commit may be stopped while it holds the space's lock)
                found = manager.recover(shop.space, shop.database)
                assert (found.committed, found.rolled_back) == ([], [])
    finally:
        os.kill(stopped, signal.SIGCONT)
        code = exit_code(stopped)
    assert code == 0
    assert len(recover_and_check(shop)) == 1, "the coordinator has finished its transaction"


@at_each_step
@with_and_without_answers
@pytest.mark.every(9, first=2)
def test_x03_postgresql_is_killed(shop: Shop, two_phase: bool, step: Step, when: str, answers: bool) -> None:
    outcome: Any = None
    with shop, shop.manager() as manager:
        try:
            with acting(step, when, shop.server.kill) as acted:
                outcome = shop.book(manager)
                door.settle(manager)
        except (spool.SpoolError, psycopg.Error) as error:
            outcome = error
        finally:
            shop.server.start()
        assert acted
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        booked = shop.check_agreement(ORDERS)
        if not isinstance(outcome, spool.CommitUnknown):
            assert bool(booked) is isinstance(outcome, str), "the program was told the truth"
        with suppress(spool.Empty):
            while True:
                shop.book(manager)
        door.settle(manager)
        assert shop.check_agreement(ORDERS) == ORDERS
    recover_and_check(shop)
