"""The tool that counts the calls of a put, a get and a transaction misses none of them."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from bench import walk
from bench.walk import Tracer, Walk, layers, traced, walks


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Walk]:
    return walks(str(tmp_path_factory.mktemp("walks")))


def test_the_layers_are_those_of_the_package() -> None:
    found = layers()
    directory = Path(walk.ROOT / "spool")
    there = {entry.stem for entry in directory.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}
    assert set(found) == there - {"__init__"}
    assert found["errors"] < found["disk"] < found["log"] < found["transactions"] < found["space"]


def test_a_step_is_counted_from_its_call_to_its_flush(counted: dict[str, Walk]) -> None:
    commits = {name: found for name, found in counted.items() if not name.startswith("each further")}
    assert len(commits) >= 5
    for name, found in commits.items():
        assert {"disk.disk", "coordination.counters", "log.write"} <= set(found.entered), name
        assert found.entered.total() <= found.frames
        assert found.climbs.total() <= found.changes < found.entered.total()
        assert 2 < found.flush_depth < 40, "the flush is below the call"
        assert len(found.calls) == found.entered.total()
        assert min(depth for depth, _ in found.calls) >= 1


def test_a_further_call_of_a_transaction_flushes_nothing(counted: dict[str, Walk]) -> None:
    further = [found for name, found in counted.items() if name.startswith("each further")]
    assert len(further) == 3
    assert {found.flush_depth for found in further} == {0}
    assert all("log.write" not in found.entered for found in further)


def test_a_step_without_a_flush_has_no_depth() -> None:
    def nothing() -> None:
        """One call of a Python function outside spool."""

    found = traced(lambda: nullcontext(nothing))
    assert found == Walk(frames=1)
    assert found.packages == set()


def test_a_call_up_a_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "layers", lambda: {"errors": 0, "space": 1})
    names = {"above": "spool.space", "below": "spool.errors"}
    functions = {}
    for name, text in (("above", "lambda call=None: call and call()"), ("below", "lambda call: call()")):
        functions[name] = eval(compile(text, f"{name}.py", "eval"), {"__name__": names[name]})
    tracer = Tracer()
    found = traced(lambda: nullcontext(lambda: functions["above"](lambda: functions["below"](functions["above"]))))
    assert tracer.walk == Walk()
    assert found.climbs.total() == 1
    assert [call.split(":")[0] for call in found.climbs] == ["errors -> space"]
    assert found.changes == 2


def test_the_mean_of_many_calls_is_the_cost_of_one_call() -> None:
    walked = Walk(frames=101, c_calls=249, changes=10)
    walked.climbs["a -> b"] = 10
    found = walked.each(10)
    assert (found.frames, found.c_calls, found.changes, found.climbs.total()) == (10, 25, 1, 1)
