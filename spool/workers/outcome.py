"""The outcomes of a service call, and two exceptions that a Python function raises to choose its outcome."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

from spool.errors import InvalidArgument
from spool.model.codecs import encode
from spool.model.message import attributes_of, check_content_type
from spool.model.options import PutOptions
from spool.model.settings import check_queue_name
from spool.model.text import class_name, one_line, shown

LONGEST_DELAY = 7 * 86400.0
"""Seconds. A longer delay is reduced to this limit, because a mistake of a service must not delay a message for
years."""


@dataclass(frozen=True, slots=True)
class Replied:
    """Success. The reply goes to the reply queue, if one is set; an empty reply has the body b"".

    codec: the codec that decodes `body` into a value ("text", "json" or "msgpack"). None means that the value is bytes.
    """

    body: bytes = b""
    content_type: str | None = None
    codec: str | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Temporary failure.

    delay: the seconds before the next attempt; None if the service named none.
    counted: False if the service was not reached: no attempt is counted, and the route pauses.
    """

    reason: str
    delay: float | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Rejected:
    """Final failure; `reply` goes to the failure queue, if one is set.

    delay: the seconds for which the message remains in its queue, if no error queue is set; None drops the message.
    """

    reason: str
    reply: Replied | None = None
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """The message moves, unchanged, to another queue of the space, in the same commit."""

    queue: str


class NewMessage:
    """A message that replaces another message: see ``Translated``. ``options`` are the options of ``put``.

    ``top``, ``before`` and ``deduplication_key`` are not accepted, because they depend on the contents of the queue.

    queue: the queue of the put. raw: the body as stored. attributes: the control fields as stored.

    Raises:
        InvalidArgument: the body, or an option, cannot be put.
    """

    __slots__ = ("attributes", "queue", "raw")

    queue: str
    raw: bytes
    attributes: Mapping[str, Any]

    def __init__(self, queue: str, body: Any, **options: Unpack[PutOptions]) -> None:
        given: dict[str, Any] = dict(options)
        content_type = check_content_type(given.pop("content_type", None))
        for name in _OF_PUT_ALONE:
            if given.get(name):
                raise InvalidArgument(f"{name} depends on the contents of the queue: put the message with space.put")
        self.queue = check_queue_name(queue)
        self.raw, codec, content_type = encode(body, content_type)
        stored = {"codec": codec, "content_type": content_type}
        self.attributes = {**attributes_of(**given), **{name: value for name, value in stored.items() if value}}

    @classmethod
    def stored(cls, queue: str, raw: bytes, attributes: Mapping[str, Any]) -> Self:
        """Return a message for a body and control fields that have their stored form already."""
        message = cls.__new__(cls)
        message.queue, message.raw, message.attributes = queue, raw, attributes
        return message

    def __repr__(self) -> str:
        return f"NewMessage({self.queue!r}, {shown(self.raw)})"


_OF_PUT_ALONE = ("top", "before", "deduplication_key")


@dataclass(frozen=True, slots=True, init=False)
class Translated:
    """Any number of new messages, in any queues, replace the message. The commit that puts them removes the message.

    A function returns this outcome instead of a reply. By default, a new message has the correlation id of its source.
    If the source has none, the new message has the source's id as its correlation id.

    note: a note for the summary; "" for none.
    """

    messages: tuple[NewMessage, ...]
    note: str

    def __init__(self, messages: Iterable[NewMessage], note: str = "") -> None:
        object.__setattr__(self, "messages", tuple(messages))
        object.__setattr__(self, "note", one_line(note))
        for one in self.messages:
            if not isinstance(one, NewMessage):
                raise InvalidArgument(f"Translated takes messages, each a spool.NewMessage, not {shown(one)}")


Outcome = Replied | Retried | Rejected | Passed | Translated


class Retry(Exception):
    """A function raises this exception if the attempt has failed and another attempt has to follow.

    delay: the seconds before the next attempt. None means the queue's own delay. Raises InvalidArgument if the delay is
        negative or not a number.
    counted: False if the function has not begun, e.g. because a database that it needs cannot be reached: no attempt
        is counted, and the worker pauses.
    """

    # These defaults apply in a subclass whose __init__ does not call this __init__.
    reason: str = ""
    delay: float | None = None
    counted: bool = True

    def __init__(self, reason: str = "", delay: float | None = None, *, counted: bool = True) -> None:
        super().__init__(reason)
        self.reason = one_line(reason)
        self.delay, self.counted = bounded(delay), counted


class Reject(Exception):
    """A function raises this exception if the message has failed for good.

    reply: bytes, str, or a value that msgpack can express.
    delay: the seconds after which the message is due again, if no error queue is set. No attempt is counted then. None
        drops the message. Raises InvalidArgument if the delay is negative or not a number.
    """

    reason: str = ""
    reply: object = None
    delay: float | None = None

    def __init__(self, reason: str = "", reply: object = None, delay: float | None = None) -> None:
        super().__init__(reason)
        self.reason = one_line(reason)
        self.reply, self.delay = reply, bounded(delay)


def of_value(value: object, max_reply: int) -> Outcome:
    """Return the outcome of a function's result: a reply. For None, the reply is empty.

    If no codec can write the value, the attempt has failed. A result that is an outcome is returned unchanged.
    ``max_reply``: the largest size of a reply in bytes.
    """
    if not isinstance(value, Outcome):
        return _reply(value, max_reply)
    try:
        return checked(value)
    except InvalidArgument as wrong:
        return Retried(describe(wrong))


def checked(outcome: Outcome) -> Outcome:
    """Return an outcome of the application with the values that a commit may have. Raises InvalidArgument."""
    if isinstance(outcome, Replied):
        texts = isinstance(outcome.content_type, str | None) and isinstance(outcome.codec, str | None)
        if not (texts and isinstance(outcome.body, bytes | None)):  # (None: an empty reply)
            raise InvalidArgument(f"a reply has bytes, and its content type and codec are texts, not {shown(outcome)}")
    elif isinstance(outcome, Retried | Rejected):
        if not isinstance(outcome.reason, str):
            raise InvalidArgument(f"the reason of a failure is a text, not {shown(outcome.reason)}")
        if isinstance(outcome, Rejected) and outcome.reply is not None:
            if not isinstance(outcome.reply, Replied):
                raise InvalidArgument(f"the reply of a rejection is a Replied or None, not {shown(outcome.reply)}")
            checked(outcome.reply)
        return replace(outcome, reason=one_line(outcome.reason), delay=bounded(outcome.delay))
    elif isinstance(outcome, Passed):
        check_queue_name(outcome.queue)
    return outcome


def _reply(value: object, max_reply: int) -> Replied | Retried | Rejected:
    if value is None:
        return Replied()
    try:
        body, codec, content_type = encode(value)
    except Exception as error:
        return Retried(describe(error))
    return replied(body, content_type, codec, max_reply)


def of_error(error: BaseException, max_reply: int) -> Retried | Rejected:
    """Return the outcome of a function's exception: a failed attempt, unless it is `Retry` or `Reject`."""
    try:
        return checked(_of_error(error, max_reply))  # type: ignore[return-value]
    except InvalidArgument as wrong:  # a subclass of `Retry` or `Reject` has wrong values
        return Retried(describe(wrong))


def _of_error(error: BaseException, max_reply: int) -> Retried | Rejected:
    if isinstance(error, Retry):
        return Retried(error.reason or "the service asks to try again", error.delay, error.counted)
    if not isinstance(error, Reject):
        return Retried(describe(error))
    reason = error.reason or "the service rejects the message"
    if error.reply is None:
        return Rejected(reason, delay=error.delay)
    reply = _reply(error.reply, max_reply)
    if isinstance(reply, Replied):
        return Rejected(reason, reply, error.delay)
    # The result is still a rejection, because another attempt would return the same useless reply.
    return Rejected(f"{reason} (its reply is lost: {reply.reason})", delay=error.delay)


def replied(body: bytes, content_type: str | None, codec: str | None, max_reply: int) -> Replied | Rejected:
    """Return the reply, or a rejection if the reply is too large. (Every further attempt would return the same
    reply.)"""
    return Replied(body, content_type, codec) if len(body) <= max_reply else too_large(max_reply)


def too_large(max_reply: int) -> Rejected:
    """Return the outcome of a call whose reply has more than `max_reply` bytes."""
    return Rejected(f"the service's reply is larger than the limit of {max_reply} bytes")


def took_too_long(seconds: float | None) -> str:
    """Return the reason of an attempt that reached its time limit."""
    return f"took longer than {seconds:g} s"


def bounded(delay: float | None) -> float | None:
    """Return a delay in seconds, reduced to at most ``LONGEST_DELAY``; None for None.

    Raises InvalidArgument if the delay is negative or not a number.
    """
    if delay is not None and (not isinstance(delay, int | float) or not delay >= 0):
        raise InvalidArgument(f"delay is a number of seconds from 0, not {shown(delay)}")
    return None if delay is None else float(min(delay, LONGEST_DELAY))


def describe(error: BaseException) -> str:
    """Return a description of an exception, for use as a reason."""
    text, name = one_line(error), class_name(error)
    return one_line(f"{name}: {text}" if text else name)
