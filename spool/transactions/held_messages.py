"""The calls that end messages which a program holds: the same for ``spool.Claims`` and for a space by HTTP."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from spool.errors import BadMessageId, InvalidArgument, ProtocolError
from spool.model.checks import ValueCheck, check, seconds
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.model.text import shown
from spool.runtime.closing import Closing
from spool.runtime.pickling import refuse_pickling

_DELAY = ValueCheck("a number of seconds from 0", partial(seconds, most=1e12), "TIME", optional=True)


class HeldMessages(Closing):
    """Messages that a program holds, each until the program ends its hold.

    ``_held``: the holds by message id. ``_closed``: whether ``close`` was called. ``_end_by``: ends messages by one
    commit, without waiting: ``commit``, which removes the messages, ``fail`` or ``reject``.
    """

    __reduce_ex__ = refuse_pickling
    _held: Mapping[str, Any]
    _closed = False
    _end_by: Callable[..., "Future[Any]"]
    _release: Callable[[list[Message]], None]

    @property
    def held(self) -> int:
        """The number of messages that this object holds, with those whose removal is not committed yet."""
        return len(self._held)

    def remove(self, messages: Iterable[Message]) -> "Future[None]":
        """Acknowledge messages: remove them from their queues, in one commit.

        Calls of one moment share a commit. The order of the messages does not matter. Removals also succeed on a full
        disk. The call waits only while more than 65,536 messages or 32 MiB are being committed.

        Raises:
            BadMessageId: this object does not hold one of the messages. Then no message is removed.
        """
        return self._end_by("commit", _listed("remove", messages))

    def commit(
        self, messages: Iterable[Message], puts: Iterable[tuple[str, Any, PutOptions]]
    ) -> "Future[list[str] | None]":
        """Acknowledge messages, and put new ones, in one commit: all of it happens, or nothing.

        Args:
            puts: the queue, the body and the options of each new message, as ``Space.put`` takes them. The option
                ``deduplication_key`` is not accepted, because the removal already makes the puts happen once.

        Returns:
            A future of the ids of the new messages. If the call is repeated after an unknown outcome, and the earlier
            call has committed, the future has None, and nothing is put.

        Raises:
            BadMessageId: this object does not hold one of the messages.
            the errors of ``Space.put``. Then nothing is committed, and the messages remain held.
        """
        return self._end_by("commit", _listed("commit", messages), puts=_listed_puts(puts))

    def fail(self, message: Message, reason: str, delay: float | None = None) -> "Future[None]":
        """Count a failed attempt, and release the message.

        The message is due again after the retry delay of its queue. If no attempt is left, the message moves to the
        error queue, even into a full one, or is dropped if none is set, as after a failure in ``Space.work``. The next
        attempt is never before the due time of the message.

        Args:
            reason: the text that the message gets as its ``failure_reason``, in one line.
            delay: the seconds before the next attempt, instead of the queue's retry delay.

        Raises:
            BadMessageId: this object does not hold the message.
            InvalidArgument: ``delay`` is not a number of seconds from 0.
        """
        return self._end_by("fail", [message], reason=reason, delay=check("delay", delay, _DELAY))

    def reject(self, messages: Iterable[Message], reason: str, delay: float | None = None) -> "Future[None]":
        """Fail messages for good, in one commit: they move to the error queue at once, as after ``spool.Reject``.

        Without an error queue and without a ``delay``, the messages are dropped. The log names each dropped message,
        and ``QueueStats.failed`` counts it. If the queue names an error queue that does not exist, an attempt is
        counted instead, and the messages are due again after at least 60 s.

        Args:
            reason: the text that the messages get as their ``failure_reason``, in one line.
            delay: the seconds after which the messages are due again, if no error queue is set. No attempt is counted
                then, so no number of rejections drops a message.

        Raises:
            BadMessageId: this object does not hold one of the messages. Then no message is rejected.
            InvalidArgument: ``delay`` is not a number of seconds from 0.
        """
        delay = check("delay", delay, _DELAY)
        return self._end_by("reject", _listed("reject", messages), reason=reason, delay=delay)

    def release(self, messages: Iterable[Message]) -> None:
        """Return messages to their places in their queues, and wake waiting calls of all processes. No attempt is
        counted.

        Raises:
            BadMessageId: this object does not hold one of the messages. Then no message is released.
        """
        self._release(_listed("release", messages))

    def _check_open(self) -> None:
        if self._closed:
            text = "these claims were closed, which released their messages: call space.claims() for new ones"
            raise ProtocolError(text)

    def _find(self, message: Message) -> Any:
        """Return the hold of a message. The caller holds the mutex of these fields."""
        self._check_open()
        if not isinstance(message, Message):
            raise InvalidArgument(f"claims take messages that take() returned, not {shown(message)}")
        held = self._held.get(message.id)
        if held is None:
            raise BadMessageId(
                f"message {message.id} is not held by these claims: it was removed, failed or released already, or "
                "another program took it"
            )
        return held


def _listed_puts(puts: Iterable[tuple[str, Any, PutOptions]]) -> list[tuple[str, Any, dict[str, Any]]]:
    """List the puts of a commit."""
    given = [(queue, body, dict(options)) for queue, body, options in puts]
    if any(options.get("deduplication_key") is not None for _, _, options in given):
        raise InvalidArgument("a commit of claims takes no deduplication_key: its removal makes it happen once")
    return given


def _listed(call: str, messages: Iterable[Message]) -> list[Message]:
    """List the messages of a call. (The iterable may be the application's own code, so no call of the space runs.)"""
    if isinstance(messages, Message):
        raise InvalidArgument(f"{call} takes messages, e.g. a list, not one message: use {call}([message])")
    return list(messages)
