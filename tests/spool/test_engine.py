"""The engine's interface: packages built upon the engine get verbs, each with its promise, and none of the parts."""

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import spool
from spool.engine import Engine
from spool.store.store import Store
from spool.transactions.core import Core

ROOT = Path(__file__).parent.parent.parent
ALLOWED = {
    "aio", "client", "decisions", "engine", "errors", "intake", "mirrors", "model", "routing", "testing", "tracing",
    "workers",
}  # fmt: skip
"""The modules of spool that xa, the forwarder and the programs may import."""


def _public(thing: object) -> Iterator[tuple[str, object]]:
    return ((name, getattr(thing, name)) for name in dir(thing) if not name.startswith("_"))


def test_the_contract_of_the_imports_leaves_out_no_package_and_has_no_exception() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["name"].startswith("The packages above the engine")]
    there = {path.stem for path in (ROOT / "spool").iterdir() if path.is_dir() or path.suffix == ".py"}
    there = {name for name in there if not name.startswith("_")}
    forbidden = [name.split(".") for name in contract["forbidden_modules"] if "*" not in name]
    assert {package for _, package, *_ in forbidden} == there - ALLOWED  # (of ``watch``, the modules with files)
    assert contract["source_modules"] == ["xa", "forwarder", "xaspool_console", "xaspool_scripts", "pyspark_xaspool"]
    assert "ignore_imports" not in contract


def test_the_engine_of_a_space_hands_out_none_of_its_parts(space: spool.Space) -> None:
    parts = [name for name, value in _public(space.engine) if isinstance(value, Store | Core)]
    returned = {name: inspect.signature(verb).return_annotation for name, verb in _public(Engine) if callable(verb)}
    assert parts == []
    assert not {name for name, kind in returned.items() if kind in (Store, Core, "Store", "Core")}


def test_each_verb_has_a_docstring() -> None:
    assert [name for name, verb in _public(Engine) if not inspect.getdoc(verb)] == []
