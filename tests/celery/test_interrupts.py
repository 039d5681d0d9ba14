"""A signal whose handler raises an exception, at any line of the transport: nothing is lost, doubled or held."""

import gc
import json
import os
import signal
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue

import celery_xaspool
import spool.space
import spool.transactions.claims
from tests.celery.workers import until
from tests.strides import Stride

PACKAGE = os.path.dirname(celery_xaspool.__file__)
ENGINE = {spool.space.__file__, spool.transactions.claims.__file__}


class Terminated(BaseException):
    """The handler of SIGTERM raises this exception."""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    yield
    signal.signal(signal.SIGTERM, before)


def interrupted(act: Callable[[], object], line: int) -> tuple[bool, bool]:
    """Call ``act``, and send SIGTERM at the n-th line of the transport or its calls of the space.

    Returns whether that line came, and whether the call raised.
    """
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        file = frame.f_code.co_filename
        if os.path.dirname(file) != PACKAGE and file not in ENGINE:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGTERM)
        return trace

    usual = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Terminated:
        return True, True
    finally:
        sys.settrace(usual)
    return left <= 0, False


def publish(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    Producer(connection).publish("last", routing_key="tea")


def deliver(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    connection.drain_events(timeout=1)


def ack(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    held[0].ack()


def requeue(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    held[0].requeue()


def cancel(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    consumer.cancel()


def release(connection: Connection, consumer: Consumer, held: list[Any]) -> None:
    connection.release()


CALLS = [
    (publish, {"abc", "abcl"}),
    (deliver, {"abc"}),
    (ack, {"abc", "bc"}),
    (requeue, {"abc"}),
    (cancel, {"abc"}),
    # Kombu closes no connection twice, so the housekeeper releases the messages after seconds.
    pytest.param(release, {"abc"}, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]


@pytest.mark.parametrize(("act", "allowed"), CALLS)
def test_a_signal_at_any_line_loses_and_doubles_nothing(
    tmp_path: Path, act: Callable[..., None], allowed: set[str], stride: Stride, record_property: Any
) -> None:
    """A default run sends the signal at every third line."""
    path, came, line = tmp_path / "space", True, 1 - stride(3)
    while came:
        line += stride(3)
        connection = Connection(f"xaspool://{path}", transport_options={"queue": {"retries": None}})
        for body in "abc":
            Producer(connection).publish(body, routing_key="tea", declare=[Queue("tea")])
        held: list[Any] = []
        consumer = Consumer(connection, [Queue("tea")], on_message=held.append)
        consumer.consume()
        connection.drain_events(timeout=1)
        came, raised = interrupted(partial(act, connection, consumer, held), line)
        assert raised or not came, f"line {line}"
        connection.release()
        del connection, consumer, held
        gc.collect()
        space = spool.shared(path)
        until(lambda space=space: space.stats("tea").claimed == 0)
        found = [b64decode(json.loads(message.body)["body"])[:1].decode() for message in space.browse("tea")]
        assert "".join(sorted(found)) in allowed, f"line {line}"
        space.purge("tea")
    record_property("celery interrupts", {act.__name__: line // stride(3)})
