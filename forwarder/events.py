"""The events of a running forwarder: a class for each kind of event, and the JSON form of events."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Begun:
    """The forwarder has begun. ``queues``: the queues of its routes."""

    queues: list[str]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A round has claimed messages.

    round: the id of the round, in hexadecimal digits.
    ahead: whether the round is prefetched, i.e. claimed while the previous round still calls the service.
    """

    queue: str
    round: str
    messages: int
    ahead: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A round has ended, and its effects are durable.

    effects: the number of messages for each ``Effect``. Claimed messages without an effect went back to the queue.
    seconds: the seconds since the claim.
    over_network: the number of messages for workers that do not see the space and got the messages over the network.
        All other messages were read from the space's files.
    """

    queue: str
    round: str
    effects: Mapping[str, int]
    seconds: float
    over_network: int = 0


@dataclass(frozen=True, slots=True)
class Down:
    """The route has gone down, because the service was not reached or a queue has no room for replies."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The route is down and claims no message for ``seconds``. ``reason``: why the route is down."""

    queue: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Up:
    """The route reaches its service again. ``seconds``: how long the route was down."""

    queue: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """The forwarder claims no further message, and finishes the calls in progress. ``reason``: why it stops."""

    reason: str


Event = Begun | Claimed | Done | Down | Paused | Up | Stopping


def as_json(event: Event, time: float) -> dict[str, Any]:
    """Return an event as an object for JSON: its name, its time in seconds since the epoch, and its fields."""
    fields = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(event).items()}
    return {"event": type(event).__name__.lower(), "time": round(time, 6), **fields}
