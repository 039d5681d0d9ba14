"""A service that is no URL: sent to the workers, opened there once, and refused where it cannot be."""

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import spool
from forwarder import Caller, Effect, Forwarder, Outcome, Replied, Request, Service, ServiceError
from forwarder import forwarder as driver
from forwarder.task import Chunk, TaskResult
from tests.forwarder.rounds import SPARK, in_process
from tests.shown import bodies


@dataclass(frozen=True)
class Shout:
    mark: str
    threads: int = 2
    watched: float | None = None

    def check(self) -> None:
        if not self.mark:
            raise ServiceError("give a mark")

    def open(self) -> "Shouting":
        opened.append(self)
        return Shouting(self.mark)


@dataclass(frozen=True)
class Shouting:
    mark: str

    def __call__(self, request: Request) -> Outcome:
        return Replied(request.raw.upper() + self.mark.encode())

    def close(self) -> None:
        pass


opened: list[Shout] = []


def sent(context: object, chunks: list[Chunk], tasks: int) -> list[TaskResult]:
    """Pickle and unpickle the chunks, as Spark does when it sends them to workers, and run them."""
    return in_process(pickle.loads(pickle.dumps(chunks)))


def test_a_service_is_sent_to_the_workers_and_opened_there_once(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "spark_job", sent)
    service: Service = Shout("!")
    caller: Caller = service.open()
    assert caller(Request(SimpleNamespace(), b"a")) == Replied(b"A!")  # type: ignore[arg-type]
    opened.clear()
    for _ in range(2):
        space.put_many("work", [b"a", b"b", b"c"])
        summary = Forwarder(space.path, {"work": Shout("!")}, SPARK).run(once=True)
        assert summary.effects == {"work": {Effect.DELIVERED: 3}}
    assert bodies(space, "replies") == [b"A!", b"B!", b"C!"] * 2
    assert opened == [Shout("!")]


@dataclass(frozen=True)
class Unhashable(Shout):
    marks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Unpicklable(Shout):
    file: Any = None


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (Shout(""), "give a mark"),
        (Unhashable("!"), "frozen dataclass"),
        (Unpicklable("!", file=lambda: None), "frozen dataclass"),
    ],
)
def test_an_unusable_service_object_is_refused_before_a_message_is_taken(space: spool.Space, service: Any, text: str):
    with pytest.raises(ServiceError, match=text):
        Forwarder(space.path, {"work": service}, SPARK).run(once=True)


def test_a_service_that_does_not_equal_its_copy_is_refused(space: spool.Space) -> None:
    class Changing(Shout):
        def __eq__(self, other: object) -> bool:
            return False

        __hash__ = Shout.__hash__

        def __reduce__(self) -> Any:
            return Shout, (self.mark,)

    with pytest.raises(ServiceError, match="does not equal a copy of itself"):
        Forwarder(space.path, {"work": Changing("!")}, SPARK).run(once=True)
