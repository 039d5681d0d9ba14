"""The tool that counts what a put, a get and a transaction walk through sees what they do."""

import re
from pathlib import Path

import pytest

from bench import walk
from bench.walk import Tracer, Walk, layers, traced, walks


def test_the_layers_are_those_of_the_package() -> None:
    found = layers()
    directory = Path(walk.ROOT / "spool")
    there = {entry.stem for entry in directory.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert set(found) == there - {"__init__"}
    assert found["errors"] == 0
    assert found["disk"] < found["log"] < found["transactions"] < found["space"]


def test_a_step_is_counted_from_its_call_to_its_flush(tmp_path: Path) -> None:
    for name, found in walks(str(tmp_path), "ordered").items():
        assert {"disk.disk", "coordination.counters", "log.commit"} <= set(found.entered), name
        assert found.entered.total() <= found.frames
        assert found.climbs.total() <= found.changes < found.entered.total()
        assert 2 < found.flush_depth < 40, "the flush is below the call"
        assert len(found.calls) == found.entered.total()
        assert min(depth for depth, _ in found.calls) >= 1


def test_no_step_enters_more_than_the_architecture_says(tmp_path: Path) -> None:
    """Or the page is to be changed: by what ``python -m bench.walk`` prints, or by what the change is worth."""
    page = (walk.ROOT / "docs" / "architecture.md").read_text()
    for name, found in walks(str(tmp_path), "ordered").items():
        (row,) = re.findall(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
        modules, packages, _, climbs, frames, c_calls, depth = map(int, row.split(" | "))
        assert len(found.entered) <= modules, name
        assert len(found.packages) <= packages, name
        assert found.climbs.total() <= climbs, name
        assert found.frames <= 1.05 * frames, name
        assert found.c_calls <= 1.05 * c_calls, name
        assert found.flush_depth <= depth + 1, name


def test_a_step_without_a_flush_has_no_depth() -> None:
    def nothing() -> None:
        """A frame of Python that is not spool's."""

    found = traced(lambda: nothing)
    assert found == Walk(frames=1)
    assert found.packages == set()


def test_a_call_up_a_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "layers", lambda: {"errors": 0, "space": 1})
    names = {"above": "spool.space", "below": "spool.errors"}
    functions = {}
    for name, text in (("above", "lambda call=None: call and call()"), ("below", "lambda call: call()")):
        functions[name] = eval(compile(text, f"{name}.py", "eval"), {"__name__": names[name]})
    tracer = Tracer()
    found = traced(lambda: lambda: functions["above"](lambda: functions["below"](functions["above"])))
    assert tracer.walk == Walk()
    assert found.climbs.total() == 1
    assert [call.split(":")[0] for call in found.climbs] == ["errors -> space"]
    assert found.changes == 2
