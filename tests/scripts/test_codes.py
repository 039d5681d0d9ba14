"""A job of the night sees by the exit code how a run ended: one decision for all programs."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import flip, newest
from xaspool_scripts.forward import main as spool_forward
from xaspool_scripts.terminal.exit_codes import exit_code
from xaspool_scripts.worker import main as spool_worker

Program = Callable[..., int]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (set(), 0),
        ({"left"}, 5),
        ({"left", "failed_for_good"}, 6),
        ({"left", "failed_for_good", "failed"}, 1),
        ({"left", "failed_for_good", "failed", "damaged"}, 4),
    ],
)
def test_of_several_outcomes_the_one_that_no_later_run_tells_decides(outcomes: set[str], code: int) -> None:
    assert exit_code(**dict.fromkeys(outcomes, True)) == code


# -- messages that a function or a service handles ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _functions(own_modules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the current directory; and the handlers of signals stay as they are."""
    Path("night.py").write_text(
        "import signal, spool\n"
        "def take(message):\n"
        "    if message.body == 'bad': raise spool.Reject('no such article')\n"
        "    if message.body == 'weak': raise ValueError('no such article')\n"
        "    if message.body == 'later': raise spool.Retry('closed')\n"
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def worker(path: Path, *words: str) -> int:
    return CliRunner().invoke(spool_worker, ["-s", str(path), "orders=night:take", *words]).exit_code


def forwarder(path: Path, *words: str) -> int:
    arguments = ["-s", str(path), "--route", "orders=python:night:take", "--no-spark", *words]
    return CliRunner().invoke(spool_forward, arguments).exit_code


def pipeline(path: Path, *words: str) -> int:
    """Run a pipeline with the function as inbound hook. The hook returns None, so a message goes on to the file."""
    Path("out").mkdir(exist_ok=True)
    Path("orders.toml").write_text(
        'name = "orders"\ninbound = "night:take"\nretries = 0\n'
        '[[routes]]\nname = "all"\nto = "out"\n[destinations.out]\nservice = "file:out"\n'
    )
    arguments = ["-s", str(path), "--pipeline", "orders.toml", "--no-spark"]
    CliRunner().invoke(spool_forward, [*arguments[:4], "--create-queues"])
    return CliRunner().invoke(spool_forward, [*arguments, *words]).exit_code


PROGRAMS = [worker, forwarder]


@pytest.mark.parametrize("program", [*PROGRAMS, pipeline])
def test_a_run_in_which_all_is_handled_is_0_and_one_that_rejected_a_message_is_6(path: Path, program: Program) -> None:
    for bodies, code in ((["good"], 0), (["good", "bad"], 6)):
        with spool.open(path) as space:
            space.put_many("orders", bodies)
        assert program(path, "--once") == code


@pytest.mark.every(3)
@pytest.mark.parametrize("error_queue", [None, "errors"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_message_without_attempts_left_is_6_also_if_others_are_left(
    path: Path, error_queue: str | None, program: Program
) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", retries=0, error_queue=error_queue)
        space.put("orders", "weak")
        assert program(path, "--once") == 6
        space.change_queue("orders", retries=1)
        space.put("orders", "weak")
        assert program(path, "--once") == 5
        space.put("orders", "bad")
        space.put("orders", "later")
        assert program(path, "--once") == 6
        assert space.stats("orders").ready == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_damaged_message_is_4(path: Path, program: Program) -> None:
    with spool.open(path) as space:
        space.put("orders", "good" * 20)
        flip(newest(path), -20)
        space.put("orders", "bad")
    assert program(path, "--once") == 4


def test_a_run_that_is_stopped_before_its_end_has_left_some(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", ["good"] * 5)
        worker = spool.Worker(space, "orders", lambda message: worker.stop(), once=True)
        assert worker.run().left == 4
