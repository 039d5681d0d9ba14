"""A plugin of pytest that records the functions that each test enters, and the time that each test takes."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.selection.probes import ENTERED, MOST, RECORD, count_in, shared_bytes


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder(Path(os.environ[RECORD])))


class _Recorder:
    def __init__(self, record: Path) -> None:
        bytes_of_functions = record / f"{os.getpid()}.entered"
        bytes_of_functions.write_bytes(bytes(MOST))
        os.environ[ENTERED] = str(bytes_of_functions)
        self._entered = shared_bytes(bytes_of_functions)
        count_in(self._entered)
        self._lines = (record / f"{os.getpid()}.jsonl").open("a")
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._entered[:] = bytes(MOST)
        self._reports = []
        result = yield
        if all(report.passed for report in self._reports):
            seconds = [round(report.duration, 3) for report in self._reports]
            entered = [number for number, byte in enumerate(self._entered[:]) if byte]
            print(json.dumps([item.nodeid, seconds, entered]), file=self._lines, flush=True)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._reports.append(report)
        return report
