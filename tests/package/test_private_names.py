"""A name that begins with one underscore is its module's own: no other package uses it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OUTSIDE = ("xa", "forwarder", "recovery", "scripts", "bench", "docs")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


_WITH_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.Attribute, ast.ImportFrom)
Nodes = list[ast.AST]


def _nodes(text: str) -> Nodes:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, _WITH_NAMES)]


@pytest.fixture(scope="module")
def modules() -> dict[Path, Nodes]:
    """The trees of all modules. They are too large to be kept for the tests of other modules."""
    return {path: _nodes(path.read_text()) for name in ("spool", *OUTSIDE) for path in (ROOT / name).rglob("*.py")}


def _defined(nodes: Nodes) -> Iterator[str]:
    """Private names of functions, classes, variables, and attributes of an object's own."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _used(nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Private names of other objects and modules, with the line. Inherited names count as a class's own."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name, lineno=line):
                yield name, line
            case ast.ImportFrom(names=names, lineno=line):
                yield from ((one.name, line) for one in names)


def _of_a_space(nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Private names of an open space or its parts, under any name that a module gives them."""
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name(name) | ast.Attribute(attr=name), attr, lineno=line):
                if name in ("space", "sync", "store", "engine", "transaction", "tx") and _is_private(attr):
                    yield attr, line


def _room(path: Path) -> str:
    """A module outside of ``spool/``; a package inside of it."""
    inside = path.relative_to(ROOT)
    return str(inside.parent if inside.parts[0] == "spool" and len(inside.parts) > 2 else inside)


def test_no_package_uses_a_private_name_of_another(modules: dict[Path, Nodes]) -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for path, nodes in modules.items():
        rooms[_room(path)].update(filter(_is_private, _defined(nodes)))
    ours = set().union(*rooms.values())  # names that no module of ours defines belong to libraries
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, nodes in modules.items()
        for name, line in _used(nodes)
        if _is_private(name) and name in ours and name not in rooms[_room(path)]
    ]
    assert wrong == []


def test_no_package_uses_a_private_name_of_a_space_that_it_was_given(modules: dict[Path, Nodes]) -> None:
    of_transactions = ROOT / "spool" / "transactions" / "transaction.py"
    uses = [(path, *use) for path, nodes in modules.items() if path != of_transactions for use in _of_a_space(nodes)]
    assert [f"{path.relative_to(ROOT)}:{line}: {name}" for path, name, line in uses] == []


def test_the_tests_look_into_a_space_through_one_module() -> None:
    behind = {"_store", "_core", "_housekeeper"}
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path != ROOT / "tests" / "door.py"]
    uses = [(path, *use) for path in paths for use in _used(_nodes(path.read_text())) if use[0] in behind]
    assert [f"{path.relative_to(ROOT)}:{line}: {name}" for path, name, line in uses] == []


def test_a_private_name_of_another_package_would_be_found() -> None:
    uses = _nodes("from spool import _a\nspace._store\nself._own\nsuper()._own\nx.__class__\ntable._replace(a=1)")
    assert [name for name, _ in _used(uses) if _is_private(name)] == ["_a", "_store", "_replace"]


def test_few_tests_name_a_class_between_a_call_and_its_file():
    """Other tests say what happens, by calls of a space or by ``tests/door.py``."""
    named = re.compile(r"\b(log\.leader|(?<=import )(Ring|Write)|CommitFileWriter|WriteSet|FileContents)\b")
    found = {path.name for path in (ROOT / "tests").rglob("*.py") if named.search(path.read_text())}
    assert found <= {"door.py", "led.py", "planted.py", "test_format.py", Path(__file__).name}
