"""Machines that do not see the space, with a cluster of Spark: those of examples/cluster."""

import importlib.util
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.forwarder.processes import ROOT


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cluster_machines", ROOT / "examples/cluster/machines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cluster_on_machines(directory: Path, stack: ExitStack) -> Any:
    """Return a ``SparkCluster`` on two machines, which see an empty ``directory/hidden``; it ends with the stack."""
    example = _example()
    try:
        machines = stack.enter_context(example.Machines(directory / "hidden"))
    except OSError as error:
        pytest.skip(f"this takes namespaces: {error}")
    return stack.enter_context(example.SparkCluster(machines, directory))


def end(process: Any) -> None:
    _example().end(process)
