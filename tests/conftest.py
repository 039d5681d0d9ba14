"""What all tests share: the option --long, and which tests this machine cannot run."""

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import spool
from spool.model import codecs
from tests.held import Gathering
from tests.meanwhile import Processes, Watched

# A flush takes as long as the disk likes, so no example has a deadline.
settings.register_profile("xaspool", deadline=None)
settings.load_profile("xaspool")


# A shell ignores Ctrl-C for what it runs in the background, and Python leaves it at that: the tests of it would wait in
# vain, and so would the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _handlers_of_signals_as_before() -> Iterator[None]:
    """A program that a module's tests run in this process sets its own, for as long as the process lives."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption("--schedules", type=int, default=5, help="how many of each sort the interleavings try (5)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {}
    if not config.getoption("--long"):
        missing["slow"] = "slow: runs with --long"
    if os.geteuid() != 0:
        missing["root"] = "needs root"
    if shutil.which("strace") is None:
        missing["strace"] = "needs the program strace, which is not installed"
    for item in items:
        for mark, reason in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


# -- the rows of docs/features.md -------------------------------------------------------------------------------------

FEATURES = Path(__file__).parents[1] / "docs" / "features.md"


def rows(*states: str) -> set[str]:
    """The ids of the behaviours that are in one of these states: those that are promised if none is named."""
    found = re.findall(
        r"^\| ([A-Z][0-9]{2}) \| .* \| (there|in part|not yet)\b[^|]* \|", FEATURES.read_text(), re.MULTILINE
    )
    return {row for row, state in found if state in (states or ("there", "in part"))}


def rows_of(test: str) -> set[str]:
    """Those that a test's name carries: ``test_q05_e09_…``."""
    found = re.match(r"test_((?:[a-z][0-9]{2}_)+)", test)
    return set(found[1].upper().rstrip("_").split("_")) if found else set()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A row of which no test passed fails the run, if the whole suite was asked for, or all but some directories; one
    whose tests this machine cannot run is told. (That each row has a test, ``test_docs`` looks after.)"""
    config = session.config
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword:
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    outcomes = {
        outcome: {row for report in reporter.getreports(outcome) for row in rows_of(_function(report.nodeid))}
        for outcome in ("passed", "skipped")
    }
    asked = {row for item in session.items for row in rows_of(_function(item.nodeid))}
    missing = rows() & asked - outcomes["passed"]
    config.stash[_ROWS] = sorted(missing)
    if missing - outcomes["skipped"] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_ROWS = pytest.StashKey[list[str]]()


def _function(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests recorded that they tried; and what failed before pytest began, so that green cannot hide it."""
    for name, count in sorted(_evidence(terminalreporter).items()):
        terminalreporter.write_line(f"{name}: {count:,}")
    if missing := terminalreporter.config.stash.get(_ROWS, []):
        terminalreporter.write_line(
            f"rows of docs/features.md without a test that passed: {', '.join(missing)}", red=True
        )
    if failed := os.environ.get("XASPOOL_FAILED_CHECKS", "").split():
        terminalreporter.write_line(f"CHECKS FAILED before the tests: {', '.join(failed)}; see above", red=True)


def _evidence(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """The sums of what tests recorded as properties: numbers, or numbers by kind."""
    sums: Counter[str] = Counter()
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, value in getattr(report, "user_properties", ()) if report.when == "call" else ():
            if isinstance(value, dict):
                sums.update({f"{name}, {kind}": count for kind, count in value.items()})
            else:
                sums[name] += value
    return sums


@pytest.fixture
def codecs_of_its_own() -> Iterator[None]:
    """What a test registers is forgotten."""
    before = dict(codecs.CODECS)
    yield
    codecs.CODECS.clear()
    codecs.CODECS.update(before)
    codecs._TYPES.clear()


# -- processes that have one simulated space open; callers behind a held flush (a module may make its own space) -------


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def space(processes: Processes) -> spool.Space:
    return processes.space()


@pytest.fixture
def other(processes: Processes, space: spool.Space) -> spool.Space:
    return processes.space()


@pytest.fixture
def watched(processes: Processes, space: spool.Space) -> Watched:
    """A process to which things happen."""
    return processes.open()


@pytest.fixture
def gathering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gathering]:
    found = Gathering(tmp_path / "space", monkeypatch)
    for queue in ("orders", "replies"):
        found.space.create_queue(queue)
    yield found
    found.disk.go_on.set()
    found.space.close()
