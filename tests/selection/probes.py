"""Probes: while calls are recorded, each function of the product first sets a byte of a file.

The bytes are shared memory. So a function also counts if another process enters it, even one that is killed. A probe
costs less than a trace function of Python, and the tests that trace the product themselves do not disturb it.
"""

import ast
import builtins
import importlib
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRODUCT = ("spool", "xa", "recovery", "forwarder", "scripts")
RECORD = "XASPOOL_CALLS"
"""Variable of the environment: the directory of the record."""
ENTERED = "XASPOOL_ENTERED"
"""Variable of the environment: the file with a byte for each function."""
MOST = 1 << 14
"""The most functions of the product."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, _Function]]:
    """Yield the functions of a module with their qualified names, such as ``Space.put``, in the order of the text."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            yield inside + node.name, node
        yield from functions(node, f"{inside}{node.name}." if isinstance(node, _Function | ast.ClassDef) else inside)


def product_files() -> list[str]:
    """Return the paths of the product's modules, relative to the repository."""
    files = (file for name in PRODUCT for file in (ROOT / name).rglob("*.py"))
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def number_functions(record: Path) -> None:
    """Write the names of each module's functions. The place of a name among all names is the function's number."""
    names = {path: [name for name, _ in functions(ast.parse((ROOT / path).read_text()))] for path in product_files()}
    assert sum(map(len, names.values())) <= MOST
    record.joinpath("functions.json").write_text(json.dumps(names))


def names_of_functions(record: Path) -> dict[str, list[str]]:
    """Return the names of each module's functions."""
    found: dict[str, list[str]] = json.loads(record.joinpath("functions.json").read_text())
    return found


def install() -> None:
    """Give each function of the product a probe, in the modules that this process imports afterwards."""
    record = Path(os.environ[RECORD])
    count_in(shared_bytes(Path(os.environ[ENTERED])) if ENTERED in os.environ else bytearray(MOST))
    first, begin = {}, 0
    for path, names in names_of_functions(record).items():
        first[str(ROOT / path)] = begin
        begin += len(names)
    machinery: Any = importlib._bootstrap_external
    compile_usually, usual_cache = machinery.SourceLoader.source_to_code, machinery.cache_from_source

    def compile_with_probes(loader: object, source: Any, path: str, **options: Any) -> Any:
        if path in first and isinstance(source, bytes):
            source = with_probes(source.decode(), first[path])
        return compile_usually(loader, source, path, **options)

    def separate_cache(path: str, *arguments: Any, **options: Any) -> Any:
        if path in first:
            return str(record / "compiled" / path.lstrip("/")) + "c"
        return usual_cache(path, *arguments, **options)

    machinery.SourceLoader.source_to_code = compile_with_probes
    machinery.cache_from_source = separate_cache


def count_in(entered: mmap.mmap | bytearray) -> None:
    """Let the probes of this process set these bytes."""
    setattr(builtins, "__entered__", entered)  # noqa: B010 (a name that the builtins do not have)


def shared_bytes(file: Path) -> mmap.mmap:
    """Return the bytes of a file of ``MOST`` bytes; other processes see each change."""
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), MOST)


def with_probes(source: str, first: int) -> ast.Module:
    """Return the module with a statement ``__entered__[number] = 1`` at the begin of each function."""
    tree = ast.parse(source)
    for number, (_, function) in enumerate(functions(tree), first):
        begin = ast.get_docstring(function, clean=False) is not None
        at = function.body[min(begin, len(function.body) - 1)]
        probe = ast.parse(f"__entered__[{number}] = 1").body[0]
        for node in ast.walk(probe):
            ast.copy_location(node, at)
        function.body.insert(begin, probe)
    return tree
