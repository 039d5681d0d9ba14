"""Ctrl-C while a program runs, real processes: exit code 130 and one line, or its own clean end; never a traceback.

A line may be empty first: it follows the terminal's own ^C.
"""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from forwarder import Forwarder
from tests.at_once import AT_ONCE
from tests.environment.pressed import Instructions, PressedDisk, begin, expect_whole
from tests.histories.contents import EMPTY
from tests.histories.table import BY_NAME
from xaspool_scripts import forward
from xaspool_scripts.terminal import program as common
from xaspool_scripts.terminal.signals import ENDING

# Python tells a hook of everything that matters: imports, opened files, locks. At one of these SIGINT comes.
PROGRAM = """if True:
    import signal, sys, threading
    name, at, counted = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    sys.argv[:4] = [f"spool-{name}"]
    seen = 0

    def hook(event, args):
        global seen
        seen += 1
        if seen == at and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)

    import xaspool_scripts.start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(hook)
    try:
        getattr(xaspool_scripts.start, name)()
    finally:
        if at == 0:
            with open(counted, "w") as file:
                file.write(str(seen))
"""

# (program, arguments, exit code of a clean end, whether Ctrl-C may end it cleanly)
COMMANDS = {
    "put": ("admin", ("message", "put", "a", "--body", "new 1"), False),
    "check": ("admin", ("check",), False),
    "recover": ("recover", (), False),
    "intake": ("intake", ("--once",), True),
}


INTAKE = BY_NAME["intake"]
ALLOWED = [EMPTY.put("a", *new, *files) for new in ((), ("new 1",)) for files in permutations(INTAKE.begin.queues[0])]


def run(program: str, at: int, directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, program, str(at), str(directory / "counted"), *words]
    return subprocess.run(
        [*command, "-s", str(directory / "space")] if program != "admin" else
        [*command[:6], "-s", str(directory / "space"), *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_wherever_it_comes_the_program_ends_in_one_line(
    name: str, memory: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    program, words, cleanly = COMMANDS[name]
    begin(memory / "0" / "space", INTAKE)
    clean = run(program, 0, memory / "0", *words)
    events = int((memory / "0" / "counted").read_text())
    points = 300 if request.config.getoption("--long") else 4
    for at in range(1, events, max(1, events // points)):
        path = memory / str(at) / "space"
        begin(path, INTAKE)
        done = run(program, at, memory / str(at), *words)
        if (cleanly and done.returncode == 0) or (done.returncode == clean.returncode and done.stdout == clean.stdout):
            assert done.stderr == clean.stderr
        else:
            assert done.returncode == 130, (at, done)
            assert done.stderr.lstrip("\n") == f"spool-{program}: interrupted\n", (at, done)
        space = spool.open(PressedDisk(str(path)))
        assert space.recovery.alone
        expect_whole(path, space, ALLOWED, INTAKE)
    record_property("interrupts of a program", len(range(1, events, max(1, events // points))))


def test_spool_forward_ends_in_one_line_before_spark_is_there(memory: Path) -> None:
    begin(memory / "space", INTAKE)
    words = ("--route", "orders=http://localhost:1/", "--once")
    for at in (1, 200, 1000):
        done = run("forward", at, memory, *words)
        assert (done.returncode, done.stderr.lstrip("\n")) == (130, "spool-forward: interrupted\n"), (at, done)


HANDLING = ("forward.py", "forwarder.py", "threading.py", "common.py", "start.py")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="needs a trace of every instruction: Python 3.11")
@pytest.mark.timeout(60)
def test_a_second_signal_in_the_forwarders_handler_ends_the_program_at_once(
    memory: Path, capfd: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    handlers = {number: signal.getsignal(number) for number in ENDING}
    usual, at = sys.gettrace(), 0
    try:
        while True:
            at += 1
            forwarder = Forwarder(str(memory), {"orders": "http://localhost:1/"})
            ended: list[int] = []
            forward._stop_on_signals(forwarder)
            instructions = Instructions(at, HANDLING, lambda _: signal.raise_signal(signal.SIGTERM))
            with mock.patch.object(os, "_exit", ended.append):
                sys.settrace(instructions)
                signal.raise_signal(signal.SIGTERM)
                sys.settrace(usual)
            assert forwarder._stop.is_set()
            if instructions.left > 0:
                break
            assert ended == [128 + signal.SIGTERM], "the second one ends the program"
    finally:
        sys.settrace(usual)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert {line.split(": ")[-1][:9] for line in capfd.readouterr().err.splitlines()} == {"finishing", "ending at"}
    record_property("second signals in the forwarder's handler", at - 1)


class Pressing(io.RawIOBase):
    """A standard error that sends SIGTERM to this process at each write."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Any) -> int:
        signal.raise_signal(signal.SIGTERM)
        return os.write(self.fileno(), data)


def test_a_signal_that_comes_while_something_is_said_is_answered_all_the_same(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffered stream refuses to be entered twice; the handler does not."""
    usual = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    forwarder = Forwarder(str(memory), {"orders": "http://localhost:1/"})
    stream = io.TextIOWrapper(io.BufferedWriter(Pressing(memory / "said")), write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    try:
        forward._stop_on_signals(forwarder)
        common.note("forwarding")
        stream.flush()
    finally:
        signal.signal(signal.SIGTERM, usual[0])
        signal.signal(signal.SIGINT, usual[1])
    assert forwarder._stop.is_set()
    program = common._running[-1]
    said = (memory / "said").read_text().splitlines()
    assert f"{program}: forwarding" in said
    assert any(line.startswith(f"{program}: SIGTERM: finishing") for line in said)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)], ids=len)
def test_one_signal_lets_spool_forward_finish_and_a_second_one_does_not(
    signals: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    """One signal while the service works: each message of the round is answered, and the exit code is 0. Two signals:
    no message of the round is answered, and the call under way counts as an attempt."""
    (tmp_path / "slow_services.py").write_text(
        "import os, time\n"
        "def answer(message):\n"
        "    open('reached', 'w').close()\n"
        "    while not os.path.exists('go_on'): time.sleep(0.01)\n"
        "    return b'answer'\n"
    )
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("replies")
        space.create_queue("requests", reply_queue="replies")
        ids = space.put_many("requests", ["one", "two"])
    code = "from xaspool_scripts.start import forward; forward()"
    words = ["--master", "local[1]", "--json", "--route", "requests=python:slow_services:answer", "-s", "space"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "reached").exists():
            assert process.poll() is None, process.stderr
            threading.Event().wait(0.05)
        assert process.stderr is not None
        said = ""
        for number in signals:  # each when the one before was answered
            process.send_signal(number)
            said += next(line for line in process.stderr if "at once" in line)
        if len(signals) == 1:
            (tmp_path / "go_on").touch()
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in said + err
    if len(signals) == 1:
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["errors"] == []
    else:
        assert process.returncode == 128 + signal.SIGTERM
        assert json.loads(out.splitlines()[-1])["event"] == "stopping"  # and no summary
    with spool.open(tmp_path / "space") as space:
        if len(signals) == 1:
            assert space.stats("replies").ready == 2
            assert space.recovery.alone
        else:
            assert [space.show(id_).attempts for id_ in ids] == [1, 0]
            assert (space.stats("replies").ready, space.stats("requests").claimed) == (0, 0)
