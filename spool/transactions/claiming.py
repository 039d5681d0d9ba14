"""The messages that a get asks for, and how they stand in the queues: free, held, or not there."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import lru_cache

from spool.errors import Argument, Empty, InvalidArgument, MessageInUse, SpoolError
from spool.index.run import Run
from spool.model.checks import SHORT_TEXT, check, check_timeout
from spool.model.message import exclusive, parse_message_id
from spool.model.position import PositionRanges, positions
from spool.model.text import shown
from spool.runtime.clock import Clock
from spool.store.awaited import Awaited
from spool.store.parts import View


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a get asks for.

    These are the head of a queue, one message by id, or the first message with a correlation id.

    ``timeout``: the seconds to wait; None: for ever. ``spread``: whether to claim at most one message of each group,
    because the caller does not handle the messages in order. ``passed``: the positions of messages that the get must
    not take. ``only_shown``: whether a body that this process cannot decode is delivered as its stored bytes.
    """

    queue: str
    count: int = 1
    message_id: str | None = None
    correlation_id: str | None = None
    timeout: float | None = 0
    spread: bool = False
    passed: Set[tuple[int, int]] = frozenset()
    only_shown: bool = False

    @property
    def by_key(self) -> bool:
        return self.message_id is not None or self.correlation_id is not None

    @property
    def head(self) -> str | None:
        """The queue, if the get takes the head of it."""
        return None if self.by_key else self.queue

    @property
    def awaited(self) -> Awaited:
        """The message that ends a wait of the get. Raises BadMessageId if the id is not valid."""
        id = None if self.message_id is None else parse_message_id(self.message_id)
        return Awaited(self.queue, id, self.correlation_id)


def check_wanted(
    queue: str,
    count: int,
    *,
    timeout: float | None = 0,
    message_id: str | None = None,
    correlation_id: str | None = None,
) -> Wanted:
    """Check the arguments of a get: the largest number of messages to take, and ``GetOptions``."""
    if type(count) is not int or count < 1:
        raise InvalidArgument(Argument("max_messages"), f" is a whole number from 1, not {shown(count)}")
    if type(timeout) is not int or timeout:
        check_timeout(timeout, "0, a number of seconds, or None to wait for ever")
    if correlation_id is not None:
        correlation_id = check("correlation_id", correlation_id, SHORT_TEXT)  # else the get might wait for ever
    wanted = Wanted(queue, count, message_id, correlation_id, timeout)
    if message_id is not None and correlation_id is not None:
        raise exclusive("message_id", "correlation_id")
    return wanted


check_wanted.__qualname__ = "get"  # Python's own errors about wrong options then name the public call

# The request of a get without options; shared, because it is immutable.
next_of = lru_cache(maxsize=1024)(Wanted)


def in_group_order(view: View, clock: Clock, queue: str, group: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of a group's messages, in the order of delivery, up to the first expired message."""
    now = clock.now()
    for run in view.index.messages.queue(queue).in_group(group):
        if run.is_expired(now):
            return  # the later messages wait until the expired one is removed
        for ordinal in run.ordinals:
            yield run.number, ordinal


def asked_for(view: View, wanted: Wanted, now: float) -> tuple[Iterable[Run], int | None]:
    """Return the runs that match the id or correlation id in ``wanted``, in the order of delivery.

    Expired runs are included.

    For a get by id, the second returned value is the ordinal of the message.
    """
    messages = view.index.messages
    if wanted.message_id is not None:
        run, ordinal = messages.with_id(*parse_message_id(wanted.message_id))
        return ((run,), ordinal) if run is not None and run.queue.name == wanted.queue else ((), None)
    if wanted.correlation_id is not None:  # like a get by id, this get takes a delayed message at once
        return messages.correlated(wanted.queue, wanted.correlation_id), None
    return messages.in_order(wanted.queue, now), None


def is_there(view: View, clock: Clock, wanted: Wanted) -> bool:
    """Return whether the queue has a message that fits the get, either free or held."""
    now = clock.now()
    with view.mutex:
        return any(not run.is_expired(now) for run in asked_for(view, wanted, now)[0])


def check_not_own(view: View, wanted: Wanted, claims: PositionRanges) -> None:
    """Raise MessageInUse if the get asks for a message by id, and ``claims`` contains this message.

    ``claims``: the claims of the get's own transaction.
    """
    if wanted.message_id is None or not claims:
        return
    with view.mutex:
        run, ordinal = view.index.messages.with_id(*parse_message_id(wanted.message_id))
    if run is not None and (run.number, ordinal) in set(positions(claims)):
        raise MessageInUse(f"message {wanted.message_id} was taken in this transaction already")


def nothing_free(view: View, clock: Clock, wanted: Wanted) -> SpoolError:
    """Return the error of a get that claimed nothing."""
    if wanted.message_id is not None and is_there(view, clock, wanted):
        return MessageInUse(f"message {wanted.message_id} is held by a transaction: try again later")
    return no_message(wanted)


def no_message(wanted: Wanted) -> Empty:
    """Return the error of a get for which there is no message."""
    if wanted.message_id is not None:
        return Empty(f"queue {wanted.queue} has no message {wanted.message_id}")
    if wanted.correlation_id is not None:
        return Empty(f"queue {wanted.queue} has no free message with the correlation id {shown(wanted.correlation_id)}")
    return Empty(f"queue {wanted.queue} has no message that can be taken now")
