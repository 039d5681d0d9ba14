"""A plugin of pytest: skips the tests that reasons.toml names, limits the time of each test, and notes each outcome.

``SUITE`` is a table of reasons.toml, or empty: then the plugin skips nothing. ``OUTCOMES`` is the file of the outcomes.
"""

import faulthandler
import json
import os
import signal
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

REASONS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text())

_SECONDS = 180.0  # a step of a test that lasts longer fails
_AGAIN_SECONDS = 10.0  # after the limit, each further subtest that lasts longer fails, too
_LAST_SECONDS = 600.0  # a step that no signal ends, ends the run

_outcome = ("passed", "")


def reason_of(suite: str, kind: str, name: str) -> str | None:
    """Return the reason for a test. ``kind``: "skipped" or "fails". ``name``: as in ``pytest -v``, a pattern."""
    for entry in REASONS.get(suite, {}).get(kind, []):
        if any(fnmatchcase(name, f"*{pattern}".replace("[", "[[]")) for pattern in entry["tests"]):
            return str(entry["reason"])
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := reason_of(os.environ["SUITE"], "skipped", item.nodeid):
            item.add_marker(pytest.mark.skip(reason=reason))


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def _limited() -> Iterator[None]:
    """End a step of a test at its limit. pytest-timeout cannot: a subtest swallows its only signal."""

    def late(*_: Any) -> None:
        pytest.fail(f"lasts longer than {_SECONDS:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _AGAIN_SECONDS)
    faulthandler.dump_traceback_later(_LAST_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _limited


# -- outcomes --------------------------------------------------------------------------------------------------------


def _note(test: str, outcome: str, why: str) -> None:
    """Append an outcome, which replaces earlier outcomes of the test."""
    with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps([test, outcome, why.partition("\n")[0]]) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _note(item.nodeid, "failed", "did not run, because pytest ended before")


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(nodeid, "failed", "did not end")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global _outcome
    if report.when == "setup":  # of the first run, or of a repeated run of a flaky test
        _outcome = ("passed", "")
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        _outcome = ("failed", str(crash.message if crash else report.longrepr))
    elif report.outcome == "skipped" and _outcome[0] == "passed":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        _outcome = ("skipped", why.removeprefix("Skipped: "))


def pytest_runtest_logfinish(nodeid: str) -> None:
    _note(nodeid, *_outcome)
