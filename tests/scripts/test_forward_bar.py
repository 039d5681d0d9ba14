"""The bar of spool-forward on a terminal shows the share of finished messages, or only activity if no share is
known."""

import io

import pytest
from rich.console import Console

from forwarder.events import Begun, Claimed, Done, Down, Stopping, Up
from xaspool_scripts.forward_bar import ForwardBar


def shown(bar: ForwardBar) -> tuple[float, float | None]:
    (task,) = bar.bar.tasks
    return task.completed, task.total


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True)


def texts(bar: ForwardBar) -> tuple[str, str]:
    (task,) = bar.bar.tasks
    return task.description, task.fields["under_way"]


def test_the_bar_has_no_share_while_spark_starts_nor_when_nothing_is_to_do(console: Console) -> None:
    with ForwardBar(3, console) as bar:
        assert shown(bar) == (0, None)
        bar.say("starting Spark on local[2]")
        assert shown(bar) == (0, None)
        bar.say("forwarding")
        bar.show(Begun(["orders"]))
        assert shown(bar) == (0, 3)
        bar.show(Done("orders", "1", {"delivered": 2, "kept": 7}, 0.1))
        assert shown(bar) == (2, 3)
        bar.show(Done("orders", "2", {"delivered": 2}, 0.1))
        assert shown(bar) == (4, None), "what comes now was not counted"
    assert shown(bar) == (4, 4)


def test_the_bar_shows_messages_under_way_routes_that_are_down_and_the_end(console: Console) -> None:
    with ForwardBar(5000, console) as bar:
        bar.say("forwarding")
        bar.show(Begun(["orders", "bills"]))
        bar.show(Claimed("orders", "1", 1000, ahead=False))
        bar.show(Claimed("orders", "2", 2000, ahead=True))
        assert texts(bar) == ("forwarding", "3,000 under way")
        bar.show(Done("orders", "1", {"delivered": 1000}, 0.1))
        assert texts(bar) == ("forwarding", "2,000 under way")
        bar.show(Done("orders", "2", {"kept": 2000}, 0.1))
        bar.show(Down("orders", "refused"))
        bar.show(Down("bills", "refused"))
        assert texts(bar) == ("forwarding; down: orders, bills", "")
        bar.show(Up("orders", 3.0))
        assert texts(bar) == ("forwarding; down: bills", "")
        bar.show(Stopping("it was asked to"))
        assert texts(bar) == ("finishing", "")


def test_the_bar_leaves_nothing_behind_if_nothing_was_to_do(console: Console) -> None:
    with ForwardBar(0, console) as bar:
        bar.say("forwarding")
        bar.show(Begun(["orders"]))
        assert shown(bar) == (0, None)
    assert not bar.bar.tasks[0].visible


def test_x05_the_bar_counts_messages_that_went_over_the_network(console: Console) -> None:
    with ForwardBar(5000, console) as bar:
        bar.show(Begun(["orders"]))
        bar.show(Claimed("orders", "1", 1000, ahead=False))
        bar.show(Done("orders", "1", {"delivered": 1000}, 0.1, over_network=1000))
        bar.show(Claimed("orders", "2", 2000, ahead=False))
        bar.show(Done("orders", "2", {"delivered": 2000}, 0.1, over_network=500))
        assert texts(bar)[1] == "1,500 over the network"
