"""The time limit of a Python service: a call that stops counts as an attempt, and other calls end with their
process."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from forwarder.services.python import PythonCaller
from forwarder.time_limits import TookTooLong, Watchdog
from spool.runtime import call_guard
from spool.workers.outcome import Outcome, Reject, Rejected, Replied, Retried
from tests.forwarder.test_services import request

SHORT = 0.02


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Expect that pytest-timeout's handler and timer are restored in the end."""
    handler = signal.getsignal(signal.SIGALRM)
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    yield
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (left > 0)


def call(function: Any, seconds: float = SHORT) -> Outcome:
    return PythonCaller(function, timeout=seconds)(request())


def wait_for_ever(_: object = None) -> None:
    threading.Event().wait(60)


def test_a_service_that_hangs_is_an_attempt_that_took_too_long() -> None:
    assert call(wait_for_ever) == Retried("took longer than 0.02 s")


def test_except_exception_does_not_keep_the_end_of_its_time_from_a_service() -> None:
    def careless(message: object) -> str:
        with suppress(Exception):
            wait_for_ever()
        return "unreachable"

    assert call(careless) == Retried("took longer than 0.02 s")


def test_a_service_may_use_the_end_of_its_time_to_answer() -> None:
    def careful(message: object) -> str:
        try:
            wait_for_ever()
        except TookTooLong:
            return "half"
        return ""

    def final(message: object) -> str:
        try:
            wait_for_ever()
        except TookTooLong:
            raise Reject("never in time") from None
        return ""

    outcome = call(careful)
    assert isinstance(outcome, Replied)
    assert outcome.body == b"half"
    assert call(final) == Rejected("never in time")


def test_an_error_that_follows_from_the_end_of_its_time_is_told_as_that() -> None:
    def wrapping(message: object) -> None:
        try:
            wait_for_ever()
        except BaseException as error:
            raise RuntimeError("something went wrong") from error

    assert call(wrapping) == Retried("took longer than 0.02 s")


def test_a_service_in_time_hears_nothing_of_its_limit() -> None:
    assert call(lambda message: None, 60) == Replied()


def test_a_service_may_set_an_alarm_of_its_own() -> None:
    usual, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)

    def own(number: int, frame: object) -> None:
        raise ValueError("mine")

    def service(message: object) -> None:
        signal.signal(signal.SIGALRM, own)
        signal.setitimer(signal.ITIMER_REAL, SHORT)
        wait_for_ever()

    try:
        assert call(service, 60) == Retried("ValueError: mine")
        assert signal.getsignal(signal.SIGALRM) is own
    finally:
        signal.signal(signal.SIGALRM, usual)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_the_end_of_a_service_s_time_waits_for_the_end_of_a_step_of_its_space() -> None:
    """An exception that is raised into a step tears the step, and closes the space."""
    steps = []

    def service(message: object) -> None:
        with call_guard.deferred():
            signal.raise_signal(signal.SIGALRM)
            steps.append("whole")
        wait_for_ever()

    assert call(service, 60) == Retried("took longer than 60 s")
    assert steps == ["whole"]


def test_in_another_thread_there_is_no_alarm() -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(call(lambda message: b"done")))
    thread.start()
    thread.join()
    assert outcomes == [Replied(b"done")]


STUBBORN = """
import ctypes
from forwarder import time_limits
time_limits.GRACE_SECONDS, time_limits._SLACK_SECONDS = 0.0, 0.0
with time_limits.Watchdog(0.05) as watchdog:
    watchdog.begin_call()
    {call}
print("alive")
"""
C_CODE = "ctypes.PyDLL(None).sleep(60)  # C code that lets no Python run"


@pytest.mark.parametrize(("call", "code", "said"), [(C_CODE, 1, ""), ("pass", 0, "alive\n")])
def test_a_call_that_does_not_stop_ends_with_its_process(call: str, code: int, said: str) -> None:
    program = [sys.executable, "-c", STUBBORN.format(call=call)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_a_watchdog_of_a_service_that_sees_to_its_own_time_does_nothing() -> None:
    with Watchdog(None) as watchdog:
        watchdog.begin_call()
