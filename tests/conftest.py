"""What all tests share: the option --long, and which tests this machine cannot run."""

import os
import shutil
from collections import Counter

import pytest
from hypothesis import settings

# A flush takes as long as the disk likes, so no example has a deadline.
settings.register_profile("xaspool", deadline=None)
settings.load_profile("xaspool")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption("--schedules", type=int, default=6, help="how many of each sort the interleavings try (6)")


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests recorded that they tried; and what failed before pytest began, so that green cannot hide it."""
    for name, count in sorted(_evidence(terminalreporter).items()):
        terminalreporter.write_line(f"{name}: {count:,}")
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
