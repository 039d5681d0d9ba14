"""Each signal that would kill a program ends it in order: calls in progress are finished, and no attempt is counted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import start
from xaspool_scripts.terminal.signals import ENDING, handle_ending

WAIT = 60


@pytest.fixture
def called() -> Path:
    """A module with a function that prints "called", and returns once a writer has opened and closed this pipe."""
    Path("finishing.py").write_text(
        "def finish(message):\n    print('called', flush=True)\n    open('gate').read()\n    return 'finished'\n"
    )
    os.mkfifo("gate")
    return Path("gate")


CASES = [*(("worker", number) for number in ENDING), ("forward", signal.SIGHUP), ("forward", signal.SIGALRM)]


@pytest.mark.every(4)
@pytest.mark.parametrize(("program", "number"), CASES, ids=[f"{name}-{number.name}" for name, number in CASES])
def test_a_message_keeps_its_attempts_whichever_signal_ends_the_program(
    path: Path, called: Path, program: str, number: signal.Signals
) -> None:
    with spool.open(path) as space:
        space.put("orders", "tea", reply_queue="errors")
    if program == "worker":
        process = start("spool-worker", "-s", path, "orders=finishing:finish")
    else:
        process = start("spool-forward", "-s", path, "--no-spark", "--route", "orders=python:finishing:finish")
    out, err = process.stdout, process.stderr
    assert out is not None
    assert err is not None
    assert any(b"called" in line for line in out)
    process.send_signal(number)
    assert any(b"finishing the calls in progress" in line for line in err)
    called.write_text("")
    process.communicate(timeout=WAIT)
    assert process.returncode == 0
    with spool.open(path) as space:
        assert space.recovery.alone
        assert [(message.body, message.attempts) for message in space.browse("errors")] == [("finished", 0)]
        assert space.stats("orders").ready == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1], ids=lambda number: number.name)
def test_the_intake_ends_in_order_at_a_signal(path: Path, number: signal.Signals) -> None:
    process = start("spool-intake", "-s", path)
    assert b"taking files" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT)
    assert (process.returncode, err) == (0, b"")


def test_nohup_keeps_a_program_alive() -> None:
    code = (
        "import os, signal\n"
        "from xaspool_scripts.terminal.signals import handle_ending\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # as nohup does
        "handle_ending(lambda number, frame: print(signal.Signals(number).name, flush=True))\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "SIGUSR1\n"


def test_the_handlers_from_before_are_returned() -> None:
    before = {number: signal.getsignal(number) for number in ENDING}
    previous = handle_ending(lambda *_: None)
    try:
        assert previous == {number: before[number] for number in previous}
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
