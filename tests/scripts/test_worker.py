"""spool-worker: functions for queues, its end, and its output."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import Result, start
from xaspool_scripts.forward import main as forward
from xaspool_scripts.worker import main

WAIT = 60


@pytest.fixture(autouse=True)
def _functions(own_modules: None) -> None:
    """A module in the current directory."""
    Path("work_demo.py").write_text(
        "import pathlib, time\n"
        "import spool\n"
        "def shout(message): return message.body.upper()\n"
        "def copy(message): spool.current_space().put('errors', message.body)\n"
        "def fail(message): raise ValueError('no such article')\n"
        "def hang(message):\n"
        "    pathlib.Path('called').touch()\n"
        "    print('called', flush=True)\n"
        "    time.sleep(1000)\n"
        "def two(message, other): pass\n"
        "def tell(message): print('told')\n"
        "def draw(message): raise ValueError('red \\x1b[31m bell \\x07 moved \\x9b2J')\n"
    )


def work(path: Path, *args: str) -> Result:
    done = CliRunner().invoke(main, ["-s", str(path), *args], color=True)
    return Result(done.exit_code, done.stdout_bytes, done.stderr)


def put(path: Path, *bodies: object) -> None:
    with spool.open(path) as space:
        for body in bodies:
            space.put("orders", body, reply_queue="errors")


@pytest.mark.parametrize("program", ["worker", "forward"])
def test_control_characters_of_an_exception_do_not_reach_the_terminal(path: Path, program: str) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", retries=0, error_queue="errors")
    put(path, "a")
    if program == "worker":
        done = work(path, "orders=work_demo:draw", "--once")
    else:
        args = ["-s", str(path), "--no-spark", "--once", "--route", "orders=python:work_demo:draw"]
        ran = CliRunner().invoke(forward, args, color=True)  # as on a terminal
        done = Result(ran.exit_code, ran.stdout_bytes, ran.stderr)
    shown = done.text + done.err
    assert r"red \x1b[31m bell \x07 moved \x9b2J" in shown
    assert {c for c in shown if not c.isprintable()} == {"\n"}


def test_with_json_a_function_prints_to_stderr(path: Path) -> None:
    put(path, "a")
    done = work(path, "orders=work_demo:tell", "--once", "--json")
    assert (json.loads(done.text)["delivered"], done.err) == (1, "told\n")


def test_with_json_programs_that_a_function_starts_print_to_stderr() -> None:
    code = (
        "import os\n"
        "from xaspool_scripts.terminal.output import prints_to_stderr, write_json\n"
        "with prints_to_stderr():\n"
        "    os.system('echo told')\n"
        "    write_json(1)\n"
        "os.system('echo after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\nafter\n", "told\n")


def test_once_says_which_messages_are_delayed(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", ["a", "b"], not_before=4e9)
    done = work(path, "orders=work_demo:tell", "--once")
    assert done.code == 0, "they are not due: nothing is left that could be done"
    assert done.text.startswith("orders: no messages; 2 delayed, the first until 2096-10-0")
    forwarded = CliRunner().invoke(
        forward, ["-s", str(path), "--route", "orders=python:work_demo:tell", "--no-spark", "--once"]
    )
    assert forwarded.stdout.startswith("orders: 2 delayed, the first until 2096-10-0")


def test_each_message_is_handled_and_its_function_s_result_is_the_reply(path: Path) -> None:
    put(path, "a", "b")
    done = work(path, "orders=work_demo:shout", "--once", "--threads", "2")
    assert (done.code, done.text, done.err) == (0, "orders: 2 delivered\n", "")
    with spool.open(path) as space:
        assert sorted(message.body for message in space.browse("errors")) == ["A", "B"]


def test_a_function_may_put_in_the_same_commit(path: Path) -> None:
    put(path, "a")
    assert work(path, "orders=python:work_demo:copy", "--once").code == 0
    with spool.open(path) as space:
        assert [message.body for message in space.browse("errors")] == ["a", b""]
    with pytest.raises(spool.ProtocolError, match="no worker calls"):
        spool.current_space()


def test_a_message_left_for_later_has_an_exit_code_and_a_reason(path: Path) -> None:
    put(path, "a")
    done = work(path, "orders=work_demo:fail", "--once")
    assert (done.code, done.text) == (5, "orders: 1 retried; 1 left\n")
    assert "the function failed, attempt 1: ValueError: no such article\n" in done.err
    assert "orders: the last failure: ValueError: no such article\n" in done.err
    assert "Traceback" not in done.err
    with spool.open(path) as space:
        [message] = space.browse("orders")
        space.change(message.id, not_before=0)
    done = work(path, "orders=work_demo:fail", "errors=work_demo:shout", "--once", "--json", "-v")
    assert "Traceback" in done.err
    assert "in fail" in done.err
    orders, errors = done.objects
    assert (orders["queue"], orders["retried"], orders["left"]) == ("orders", 1, 1)
    assert orders["reasons"] == {"retried": "ValueError: no such article"}
    assert (errors["queue"], errors["delivered"], errors["error"]) == ("errors", 0, None)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["orders"], 2, "'orders' is not QUEUE=MODULE:FUNCTION"),
        (["orders=work_demo:shout", "orders=work_demo:fail"], 2, "the queue orders has two functions"),
        (["orders=work_demo:shuot"], 2, "the module work_demo has no 'shuot'"),
        (["orders=work_dmo:shout"], 2, "there is no Python module 'work_dmo'"),
        (["orders=work_demo:two"], 2, "give it one parameter"),
        (["orders=work_demo:shout", "--timeout", "0"], 2, "--timeout is a number of seconds above 0 for a call"),
        (["orders=work_demo:shout", "--threads", "0"], 2, "--threads"),
        (["order=work_demo:shout"], 1, "did you mean orders?"),
    ],
)
def test_wrong_arguments_are_refused_before_a_message_is_taken(path: Path, args: list[str], code: int, text: str):
    put(path, "a")
    done = work(path, *args, "--once")
    assert (done.code, done.text) == (code, "")
    assert text in done.err
    assert "Traceback" not in done.err
    with spool.open(path) as space:
        assert space.stats("orders").ready == 1


def hanging(path: Path, *args: str) -> "subprocess.Popen[bytes]":
    put(path, "a")
    process = start("spool-worker", "-s", path, "orders=work_demo:hang", *args)
    assert isinstance(process.stdout, io.BufferedIOBase)
    assert process.stdout.readline() == b"called\n"
    return process


def test_the_first_signal_ends_calls_under_way_within_the_time_limit(path: Path) -> None:
    process = hanging(path, "--timeout", "0.5")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT)
    assert (process.returncode, b"took longer than 0.5 s" in err) == (0, True)
    with spool.open(path) as space:
        assert [(message.body, message.attempts) for message in space.browse("orders")] == [("a", 1)]


@pytest.mark.every(2)
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_it_at_once_with_nothing_lost(path: Path, second: signal.Signals) -> None:
    process = hanging(path)
    process.send_signal(signal.SIGINT)
    assert b"finishing the calls in progress" in process.stderr.readline()
    process.send_signal(second)
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + second
    with spool.open(path) as space:
        assert not space.recovery.damaged
        assert [(message.body, message.attempts) for message in space.browse("orders")] == [("a", 1)]


def test_the_worker_program_imports_no_spark() -> None:
    code = (
        "import sys, spool, spool.workers.functions, xaspool_scripts.worker; "
        "print({'pyspark', 'forwarder'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
