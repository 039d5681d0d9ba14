"""The outcome of a command for every exit status, its limits, and the processes that it leaves running. Real
processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from forwarder.services import ServiceError, parse
from spool.workers.outcome import Outcome, Rejected, Replied, Retried
from tests.forwarder.processes import processes
from tests.forwarder.test_services import assert_not_reached, call, request

PATIENT_SECONDS = 30.0


def sh(script: str) -> str:
    return f"exec:sh -c {shlex.quote(script)}"


def run(script: str, **options: float) -> Outcome:
    return call(parse(sh(script), **options))  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    """Wait until a process has ended: one that got SIGKILL ends a moment later."""
    deadline = time.monotonic() + PATIENT_SECONDS
    while pid in processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    return pid not in processes()


def test_the_body_is_its_input_and_its_output_the_reply() -> None:
    large = os.urandom(1 << 20)  # more than pipes hold, in both directions
    assert call(parse("exec:cat"), request(large)) == Replied(large)
    assert call(parse("exec:cat"), request(b"")) == Replied(b"")


def test_its_output_is_whole_however_much_it_writes_at_its_end() -> None:
    assert run("cat >/dev/null; head -c 200000 /dev/zero; head -c 60000 /dev/zero") == Replied(bytes(260000))


ENLARGED = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
fcntl.fcntl(2, fcntl.F_SETPIPE_SZ, 1 << 20)
"""


def python(script: str) -> str:
    return f"exec:{sys.executable} -c {shlex.quote(ENLARGED + script)}"


def test_its_output_is_whole_if_it_enlarges_the_pipe_and_ends_at_once() -> None:
    for _ in range(20):
        assert call(parse(python("os.write(1, bytes(1 << 20)); os._exit(0)"))) == Replied(bytes(1 << 20))


def test_its_reason_is_the_last_line_of_its_errors_if_it_enlarges_the_pipe() -> None:
    for _ in range(5):
        outcome = call(parse(python("os.write(2, b'x' * 500_000 + b'\\nno paper\\n'); os._exit(3)")))
        assert outcome == Retried("exit status 3: no paper")


def test_its_output_is_refused_at_the_limit_even_if_the_pipe_held_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.services.exec.MAX_REPLY", 1_000_000)
    outcome = call(parse(python("os.write(1, bytes(1 << 20))")))
    assert isinstance(outcome, Rejected)
    assert "1000000 bytes" in outcome.reason


def test_a_process_that_left_its_group_and_writes_for_ever_delays_no_reply(tmp_path: Path) -> None:
    """The process holds the output open, and fills the pipe as fast as the service reads."""
    noted = tmp_path / "pid"
    script = f"""
os.write(1, b"done")
if not os.fork():
    os.setsid()
    open({str(noted)!r}, "w").write(str(os.getpid()))
    while True:
        os.write(1, bytes(65536))
while not os.path.exists({str(noted)!r}) or not open({str(noted)!r}).read():
    pass
"""
    try:
        outcome = call(parse(python(script)))
        assert isinstance(outcome, Replied)
        assert outcome.body.startswith(b"done")
        assert is_gone(int(noted.read_text()))  # (it writes into a pipe without a reader)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(noted.read_text()), signal.SIGKILL)


def test_the_fields_are_in_its_environment() -> None:
    script = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SPOOL_')}))"
    headers = {"Tenant-Id": "ä €", "nul": "\0", "": "x"}
    sent = request(b"x", content_type="text/csv", correlation_id="c-1", attempts=3, headers=headers)
    answer = call(parse(f"exec:{sys.executable} -c {shlex.quote(script)}"), sent)
    assert isinstance(answer, Replied)
    told = json.loads(answer.body)
    assert json.loads(told["SPOOL_HEADERS"]) == headers
    assert "SPOOL_HEADER_NUL" not in told
    assert told.items() >= {
        "SPOOL_MESSAGE_ID": "0" * 31 + "1", "SPOOL_QUEUE": "orders", "SPOOL_CONTENT_TYPE": "text/csv",
        "SPOOL_CORRELATION_ID": "c-1", "SPOOL_ATTEMPTS": "3", "SPOOL_HEADER_TENANT_ID": "ä €",
    }.items()  # fmt: skip
    assert "PATH" in os.environ


def test_without_a_correlation_id_there_is_no_such_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOOL_CORRELATION_ID", "of another")
    monkeypatch.setenv("SPOOL_HEADER_X", "of another")
    assert run("echo $SPOOL_CORRELATION_ID$SPOOL_HEADER_X") == Replied(b"\n")


def test_no_shell_reads_the_command() -> None:
    assert call(parse("exec:echo '$HOME' ; *")) == Replied(b"$HOME ; *\n")


@pytest.mark.parametrize("status", [65, 66, 67, 68, 76, 77])
def test_a_status_about_the_message_is_final_and_the_output_its_reply(status: int) -> None:
    assert run(f"echo no such account >&2; echo sorry; exit {status}") == Rejected(
        f"exit status {status}: no such account", Replied(b"sorry\n")
    )
    assert run(f"exit {status}") == Rejected(f"exit status {status}")


@pytest.mark.parametrize("status", [1, 64, 70, 73, 74, 75, 126, 127, 255])
def test_any_other_status_is_an_attempt(status: int) -> None:
    assert run(f"echo late >&2; echo >&2; exit {status}") == Retried(f"exit status {status}: late")


@pytest.mark.parametrize("status", [69, 78])
def test_q12_a_status_that_says_not_available_burns_no_attempt(status: int) -> None:
    assert run(f"exit {status}") == Retried(f"exit status {status}", counted=False)


def test_a_signal_is_an_attempt() -> None:
    assert run("kill -SEGV $$") == Retried("signal 11")


def test_a_command_that_reads_nothing_is_no_failure() -> None:
    assert call(parse("exec:true"), request(bytes(1 << 20))) == Replied(b"")


def test_the_reason_from_a_command_s_output_is_bounded() -> None:
    outcome = run("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1")
    assert isinstance(outcome, Retried)
    assert len(outcome.reason) < 2000


def test_an_endless_output_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.services.exec.MAX_REPLY", 100_000)
    outcome = call(parse("exec:yes"))
    assert isinstance(outcome, Rejected)
    assert "100000 bytes" in outcome.reason


def test_at_the_time_limit_the_whole_group_ends(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    outcome = run(f"sleep 1000 & echo $! $$ > {noted}; sleep 1000", timeout=1.0)
    assert outcome == Retried("took longer than 1 s")
    assert all(is_gone(int(pid)) for pid in noted.read_text().split())


def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.services.exec.GRACE_SECONDS", 0.1)
    noted = tmp_path / "pid"
    outcome = run(f"trap '' TERM; echo $$ > {noted}; while :; do sleep 1; done", timeout=1.0)
    assert outcome == Retried("took longer than 1 s")
    assert is_gone(int(noted.read_text()))


def test_processes_that_a_command_leaves_running_end_with_it() -> None:
    outcome = run("sleep 1000 & echo $!")  # (it has the output open, too)
    assert isinstance(outcome, Replied)
    assert is_gone(int(outcome.body))


def test_several_run_side_by_side(tmp_path: Path) -> None:
    """Each command waits for the other."""
    from concurrent.futures import ThreadPoolExecutor

    for name in ("a", "b"):
        os.mkfifo(tmp_path / name)
    caller = parse(f"exec:sh -c 'read other; cd {tmp_path}; if [ $other = a ]; then echo > b; else cat b; fi'").open()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(caller, [request(b"a\n"), request(b"b\n")])) == [Replied(b""), Replied(b"\n")]


def test_a_command_that_went_away_burns_no_attempt(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    caller = parse(f"exec:{tool}").open()
    tool.unlink()
    assert_not_reached(caller(request()))


@pytest.mark.parametrize(
    ("command", "text"), [("", "names no command"), ("'", "cannot be split"), ("no-such-tool x", "'no-such-tool'")]
)
def test_a_command_that_cannot_be_run_is_found_before_any_work(command: str, text: str) -> None:
    with pytest.raises(ServiceError, match=text):
        parse(f"exec:{command}").check()


def test_no_descriptor_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.services.exec.MAX_REPLY", 1000)
    of_this_thread = Path(f"/proc/self/task/{os.getpid()}/children")  # (Java may be one, from other tests)
    before, children = len(os.listdir("/proc/self/fd")), of_this_thread.read_text()
    for script in ("exit 0", "exit 1", "yes"):
        run(script)
    assert len(os.listdir("/proc/self/fd")) == before
    assert of_this_thread.read_text() == children
    assert subprocess._active == []  # type: ignore[attr-defined]
