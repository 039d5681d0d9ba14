"""A plugin of pytest for ``scripts/test --for FILE…``: run the tests that notice changes of these files.

For a file of the product, these are the recorded ones (``tests.selection.choice``); for a page, its tests of
``tests/test_docs.py``; for another module, the test file itself, or the test files that import the module.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.selection.choice import ALL, Tests, read
from tests.selection.probes import ROOT

_NONE = "no tests are recorded for {}: run scripts/test, or record tests of it with scripts/test --record-calls TESTS"
_PAGES = "tests/test_docs.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for", nargs="+", dest="changed", metavar="FILE", help="run tests that notice its changes")


class Selection:
    """The tests for some files. ``unknown``: the files for which no tests are known."""

    def __init__(self, files: list[str]) -> None:
        self._recorded = read()
        self.tests: dict[str, set[str]] = {}
        self.found: list[str] = []
        self.unknown: list[str] = []
        for file in dict.fromkeys(Path(os.path.relpath(ROOT / name, ROOT)).as_posix() for name in files):
            if not (ROOT / file).exists() and not _was_deleted(file):
                raise pytest.UsageError(f"no such file: {file}")
            found: dict[str, set[str]] = {}
            for path, names in self._of(file):
                found.setdefault(path, set()).update(names)
                self.tests.setdefault(path, set()).update(names)
            if found:
                self.found.append(f"{file}: {_counted(found)}")
            else:
                self.unknown.append(file)
        if not self.tests:
            raise pytest.UsageError(_NONE.format(", ".join(self.unknown)))

    def _of(self, file: str) -> Iterator[tuple[str, set[str]]]:
        if (ROOT / file).is_dir():
            inside = [path.relative_to(ROOT).as_posix() for path in (ROOT / file).rglob("*.py")]
            for path in inside if file.partition("/")[0] == "tests" else {*inside} & {*self._recorded}:
                yield from self._of(path)
        elif file in self._recorded:
            yield from ((path, {*names}) for path, names in self._recorded[file].items())
        elif file.endswith(".md") and (ROOT / file).parent in (ROOT, ROOT / "docs"):
            yield _PAGES, {f"[{Path(file).name}]"}
            if Path(file).name.startswith("reference-"):
                yield "tests/test_reference.py", {ALL}
        elif file.endswith(".py") and (ROOT / file).is_file():
            yield from ((path, {ALL}) for path in _users(file))

    def names(self, item: pytest.Item) -> bool:
        """Return whether the selection names this test, perhaps without the other tests of its file."""
        path, _, name = item.nodeid.partition("::")
        names = self.tests.get(path, ())
        if pages := tuple(name for name in names if name.startswith("[")):
            return name.endswith(pages) or not name.endswith(".md]")
        return name in names


def _counted(tests: Tests) -> str:
    whole = sorted(path for path, names in tests.items() if ALL in names)
    single = sum(len(names) for names in tests.values()) - len(whole)
    parts = [f"{single} single test{'s' * (single > 1)}"] * (single > 0) + [f"all of {path}" for path in whole[:9]]
    return ", ".join(parts + [f"all of {len(whole) - 9} other files"] * (len(whole) > 9))


def _was_deleted(file: str) -> bool:
    return subprocess.run(["git", "cat-file", "-e", f"HEAD:{file}"], cwd=ROOT, capture_output=True).returncode == 0


def _users(file: str) -> set[str]:
    """Return this test file, or the test files that import this module or have the fixtures of this ``conftest.py``."""
    if Path(file).name.startswith("test_"):
        return {file}
    if Path(file).name == "conftest.py":
        return {path.relative_to(ROOT).as_posix() for path in (ROOT / file).parent.rglob("test_*.py")}
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    found, new = set[str](), [file]
    while new:
        name = new.pop().removeprefix("scripts/").removesuffix(".py").removesuffix("/__init__")
        package, _, module = name.replace("/", ".").rpartition(".")
        named = rf"(from|import) {package}\.{module}\b|from {package} import (\([^)]*|.*)\b{module}\b"
        users = {path for path in texts.keys() - found if re.search(rf"^ *({named})", texts[path], re.MULTILINE)}
        found |= users
        new += [path for path in users if not Path(path).name.startswith("test_")]
    return {path for path in found if Path(path).name.startswith("test_")}


_SELECTION = pytest.StashKey[Selection]()


def pytest_configure(config: pytest.Config) -> None:
    if files := config.getoption("changed"):
        selection = config.stash[_SELECTION] = Selection(files)
        config.args = sorted(selection.tests)
        config.args_source = pytest.Config.ArgsSource.ARGS


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[_SELECTION].found if _SELECTION in config.stash else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the other tests. A named test runs even if it is one of many cases."""
    if selection := config.stash.get(_SELECTION, None):
        for item in items:
            if selection.names(item):
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "every"]
        kept = [item for item in items if selection.names(item) or ALL in selection.tests[item.nodeid.split("::")[0]]]
        config.hook.pytest_deselected(items=[item for item in items if item not in {*kept}])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if unknown := config.stash[_SELECTION].unknown if _SELECTION in config.stash else []:
        terminalreporter.write_line(_NONE.format(", ".join(unknown)), yellow=True)
