"""``scripts/test --for`` chooses tests that exist, for each file of the product, and says which input it cannot use."""

import ast
import builtins
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mutation.memory import noticed
from tests.selection.choice import ALL, SECONDS, Recorded, choose, read
from tests.selection.option import Selection
from tests.selection.probes import ROOT, functions, product_files, with_probes

# Only a program with an environment of its own calls these files.
RUN_APART = {"forwarder/dataframes/coordination/lock_holder.py"}
_RENAME = "rename it in tests/selection/chosen.toml and tests/mutation/noticed.toml, too"


def test_the_chosen_and_the_noticing_tests_exist() -> None:
    chosen = {(path, name) for tests in read().values() for path, names in tests.items() for name in names}
    noticing = {(path, name) for test, *_ in noticed().values() for path, _, name in [test.partition("::")]}
    texts = {path: (ROOT / path).read_text() for path in {path for path, _ in chosen | noticing}}
    for path, name in chosen | noticing - {(path, ALL) for path in texts}:
        function = name.partition("[")[0].rpartition("::")[2]
        assert name == ALL or f"def {function}(" in texts[path], f"no {path}::{name}: {_RENAME}"


def test_each_file_with_functions_has_tests() -> None:
    files = {file for file in product_files() if any(functions(ast.parse((ROOT / file).read_text())))}
    assert read().keys() <= files, _RENAME
    for file in files - read().keys() - RUN_APART:
        assert Selection([file]).tests, "scripts/test --record-calls TESTS, with tests that call this file"


def test_noticing_tests_are_first_and_each_function_is_entered_by_two_tests() -> None:
    def test(path: str, name: str, seconds: float, *entered: str) -> Recorded:
        return Recorded(path, name, seconds, 1, frozenset(entered), len(entered) / 10)

    tests = [
        test("a", "noticing", 20, "f"),
        test("a", "slow", 15, "f", "g"),
        test("a", "quick", 1, "f", "g"),
        test("a", "later", 2, "f", "g"),
        test("b", "other", 1, "h"),
        test("c", "unfit", SECONDS, "f"),
    ]
    whole = {"a": 40.0, "b": 5.0, "c": SECONDS}
    assert choose(tests, whole, ["a::noticing"]) == {"a": ["noticing", "quick", "later"], "b": [ALL]}


def test_each_function_has_a_probe_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__entered__", entered := bytearray(9), raising=False)
    source = """
class C:
    def f(self):
        "text"
        def inner(): pass

    async def g(self): pass

def h():
    yield 1

C().f()
list(h())
"""
    assert [name for name, _ in functions(ast.parse(source))] == ["C.f", "C.f.inner", "C.g", "h"]
    exec(compile(with_probes(source, 5), "c.py", "exec"), {})
    assert entered == bytes([0, 0, 0, 0, 0, 1, 0, 0, 1])


def test_the_selection_of_each_kind_of_file() -> None:
    engine, page = "spool/log/engine_commit.py", "docs/words.md"
    assert Selection([engine]).tests == {path: {*names} for path, names in read()[engine].items()}
    assert Selection(["spool/log", engine]).tests.keys() > Selection([engine]).tests.keys()
    assert Selection(["tests/selection/"]).tests == {"tests/selection/test_selection.py": {ALL}}
    assert "tests/test_reference.py" in Selection(["tests/reference_pages/source.py"]).tests
    assert Selection([page, "pyproject.toml"]).unknown == ["pyproject.toml"]
    both = Selection([page, "tests/test_reference.py"])
    for name, is_named in (("test_a[words.md]", True), ("test_a[guide.md]", False), ("test_a", True)):
        item: Any = SimpleNamespace(nodeid=f"tests/test_docs.py::{name}")
        assert both.names(item) == is_named


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["nothing.md"], "no such file: nothing.md"),
        (["spool/log/engine_commit.py", "nothing"], "no such file: nothing"),
        (["pyproject.toml"], "run scripts/test, or"),
    ],
)
def test_files_without_tests_are_named(files: list[str], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        Selection(files)
