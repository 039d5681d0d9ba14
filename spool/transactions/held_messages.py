"""The calls that end messages which a program holds: the same for ``spool.Claims`` and for a space by HTTP."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from spool.errors import BadMessageId, InvalidArgument, ProtocolError
from spool.model.checks import ValueCheck, check, seconds
from spool.model.message import Message
from spool.model.options import PutOptions
from spool.model.text import shown
from spool.runtime.closing import Closing
from spool.runtime.pickling import refuse_pickling
from spool.transactions.claiming import Wanted, check_wanted

_DELAY = ValueCheck("a number of seconds from 0", partial(seconds, most=1e12), "TIME", optional=True)


class HeldMessages(Closing):
    """Messages that a program holds, each until the program ends its hold.

    ``_held``: the holds by message id; ``is_ending`` of a hold says whether a commit removes or changes the message at
    this moment. ``_closed``: whether ``close`` was called. ``_mutex``: guards these fields. ``_place``: the space, for
    texts. ``_end_by``: ends messages by one commit, without waiting: ``commit``, which removes the messages, ``fail``
    or ``reject``.
    """

    __reduce_ex__ = refuse_pickling
    _closed = False
    _take: Callable[[Wanted], list[Message]]
    _end_by: Callable[..., "Future[Any]"]
    _release: Callable[[list[Message]], None]

    def __init__(self, place: str) -> None:
        # The mutex is never held during a wait for a lock or a commit, because the thread that leads the group commit
        # takes it.
        self._place, self._held, self._mutex = place, dict[str, Any](), threading.Lock()

    def __repr__(self) -> str:
        return f"<claims of {self._place}: {'closed' if self._closed else f'{self.held} messages'}>"

    @property
    def held(self) -> int:
        """The number of messages that this object holds, with those whose removal is not committed yet."""
        return len(self._held)

    def take(
        self, queue: str, max_messages: int = 1, *, message_id: str | None = None, correlation_id: str | None = None,
        undecoded: bool = False,
    ) -> list[Message]:  # fmt: skip
        """Claim messages that can be taken now, in the queue's order; return at most ``max_messages``, [] if none.

        The call does not wait for messages. Of a group, and of an ``ordered`` queue, the call takes at most one
        message, and only if no other message of the group is held.

        Args:
            message_id: take only the message with this id, even before it is due.
            correlation_id: take only messages with this correlation id, even before they are due; excludes
                ``message_id``.
            undecoded: whether a message whose body this process cannot decode is taken, too, with the stored bytes as
                its body, e.g. to reject the message.

        Raises:
            QueueNotFound: the queue does not exist.
            BadMessageId: ``message_id`` is no message id.
            InvalidArgument: another argument has a value that is not allowed.
            UnknownCodec: this process cannot decode the body of the next message, and ``undecoded`` is not set.
            SystemFailure: another process held a lock of the space for 30 s. No message was claimed.
        """
        wanted = check_wanted(queue, max_messages, message_id=message_id, correlation_id=correlation_id)
        return self._take(replace(wanted, spread=True, only_shown=undecoded))

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
            InvalidArgument: there is no message to acknowledge.
            the errors of ``Space.put``. Then nothing is committed, and the messages remain held.
        """
        given, new = _listed("commit", messages), _listed_puts(puts)
        if new and not given:
            raise InvalidArgument("a commit of claims acknowledges at least one message: put messages alone with put")
        return self._end_by("commit", given, puts=new)

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
        return self._end_by("reject", _listed("reject", messages), reason=reason, delay=check("delay", delay, _DELAY))

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

    def _mark(self, messages: Iterable[Message]) -> list[Any]:
        """Mark messages, so that no other call ends them; return their holds. All of them, or none if one is not
        held."""
        with self._mutex:
            found = list(dict.fromkeys(map(self._find, messages)))
            for held in found:
                held.is_ending = True
        return found

    def _find(self, message: Message) -> Any:
        """Return the hold of a message that is not being ended. The caller holds the mutex."""
        self._check_open()
        if not isinstance(message, Message):
            raise InvalidArgument(f"claims take messages that take() returned, not {shown(message)}")
        if (held := self._held.get(message.id)) is None:
            raise BadMessageId(
                f"message {message.id} is not held by these claims: it was removed, failed or released already, or "
                "another program took it"
            )
        if held.is_ending:
            raise BadMessageId(f"message {message.id} is being removed or failed by an earlier call")
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
