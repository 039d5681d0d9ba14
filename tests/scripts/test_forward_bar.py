"""The bar of spool-forward on a terminal: a share of what waits, or, where there is none, only that it lives."""

import io

import pytest
from rich.console import Console

from forwarder import RoundResult
from xaspool_scripts.forward_bar import ForwardBar


def shown(bar: ForwardBar) -> tuple[float, float | None]:
    (task,) = bar.bar.tasks
    return task.completed, task.total


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True)


def test_it_has_no_share_while_spark_starts_nor_when_nothing_is_to_do(console: Console) -> None:
    with ForwardBar(3, console) as bar:
        assert shown(bar) == (0, None)
        bar.say("starting Spark on local[2]")
        assert shown(bar) == (0, None)
        bar.say("forwarding")
        assert shown(bar) == (0, 3)
        bar.advance("orders", RoundResult({"delivered": 2}))
        assert shown(bar) == (2, 3)
        bar.advance("orders", RoundResult({"delivered": 2}))
        assert shown(bar) == (4, None), "what comes now was not counted"
    assert shown(bar) == (4, 4)


def test_it_leaves_nothing_behind_if_nothing_was_to_do(console: Console) -> None:
    with ForwardBar(0, console) as bar:
        bar.say("forwarding")
        assert shown(bar) == (0, None)
    assert not bar.bar.tasks[0].visible
