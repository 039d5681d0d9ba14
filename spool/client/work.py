"""The attempts of a worker in a space by HTTP: the claims, and the ends, are calls of the server."""

import threading
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from spool.client.claims import WAIT_SECONDS, RemoteClaims
from spool.client.fields import MOST_BODY_BYTES, check_bytes, fields_of_put, outcome_object, put_object
from spool.client.problems import NotByHTTP, Unreachable
from spool.errors import (
    AccessDenied,
    BadMessageId,
    CommitUnknown,
    DiskFailure,
    InvalidArgument,
    NotOpen,
    ProtocolError,
    QueueNotFound,
    SpoolError,
    SystemFailure,
    UnknownCodec,
)
from spool.model.message import Message
from spool.model.objects import message_of
from spool.model.options import PutOptions
from spool.model.text import one_line
from spool.transactions.claiming import Wanted
from spool.workers.attempt import Attempt, Attempts, working_in, works_in
from spool.workers.conclusion import Conclusion
from spool.workers.effects import Effect
from spool.workers.outcome import Outcome, Rejected, Retried
from spool.workers.states import ENDS, Event
from spool.workers.worker_run import WorkerRun

_CHECK_SECONDS = 0.2

_current: "ContextVar[RemoteAttempt | None]" = ContextVar("spool.client.work.current", default=None)


def current_attempt(space: object) -> "RemoteAttempt | None":
    """Return the attempt of a worker of this space that calls this function, or None."""
    return _current.get() if works_in(space) else None


class RemoteAttempts(Attempts):
    """Makes the attempts of one run.

    passed: messages that the run passes over. They remain held, so that a claim finds the others.
    """

    store = None

    def __init__(self, claims: RemoteClaims) -> None:
        self.claims = claims
        self.passed: dict[tuple[int, int], Message] = {}

    def new(self, run: WorkerRun) -> Attempt:
        return RemoteAttempt(self, run)

    def release(self, messages: list[Message]) -> None:
        """Return messages to their queue. If that fails, their leases end."""
        with suppress(SpoolError):
            self.claims.release(messages)

    def pass_only(self, passed: Set[tuple[int, int]]) -> None:
        """Release the held messages that the run does not pass over any more."""
        over = [position for position in list(self.passed) if position not in passed]
        self.release([message for position in over if (message := self.passed.pop(position, None)) is not None])

    def close(self) -> None:
        self.claims.close()


class _Hold:
    """In place of the transaction of an attempt: the lease of its message, and the lock of its end."""

    is_active = False

    def __init__(self, abandon: Callable[[], None]) -> None:
        self.abandon, self.mutex = abandon, threading.RLock()

    def refuse(self, reason: str) -> None:
        """(The calls of the function are no part of the attempt.)"""


class RemoteAttempt(Attempt):
    """One attempt for a message of a space by HTTP."""

    most_bytes = MOST_BODY_BYTES

    def __init__(self, attempts: RemoteAttempts, run: WorkerRun) -> None:
        self._begin(run)
        self._attempts, self._claims = attempts, attempts.claims
        self.transaction: Any = _Hold(self._abandon)
        self._puts: list[dict[str, Any]] = []
        self._bytes = 0  # of the bodies of these puts

    def take(self, queue: str, seconds: float | None, passed: Set[tuple[int, int]] = frozenset()) -> None:
        self._attempts.pass_only(passed)
        wait = WAIT_SECONDS if seconds is None else min(seconds, WAIT_SECONDS)
        try:
            while (found := self._poll(Wanted(queue), wait)) is not None:
                message = self._read_found(found)
                if message.position not in passed:
                    self._held, self.message, self.claimed_at = message, message, self._run.clock.monotonic()
                    return
                self._attempts.passed[message.position] = message
        except (SystemFailure, DiskFailure, NotOpen) as error:
            self._run.pause(one_line(error))

    def _poll(self, wanted: Wanted, wait: float) -> dict[str, Any] | None:
        """Claim a message; return None if none came in time, or the worker stops."""
        found = Future[list[dict[str, Any]]]()
        if wait == 0:
            return next(iter(self._claims.claim(wanted, wait)), None)

        def claim() -> None:
            try:
                found.set_result(self._claims.claim(wanted, wait))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=claim, name=f"spool-poll-{wanted.queue}", daemon=True).start()
        while not self._stopping():
            with suppress(TimeoutError):
                return next(iter(found.result(_CHECK_SECONDS)), None)
        found.add_done_callback(self._give_back)
        return None

    def _give_back(self, found: "Future[list[dict[str, Any]]]") -> None:
        if found.exception() is None:
            self._attempts.release([message_of(each, undecoded=True) for each in found.result()])

    def _read_found(self, found: dict[str, Any]) -> Message:
        try:
            return message_of(found)
        except UnknownCodec as error:
            self.unreadable = one_line(error.__cause__ or error)
            return message_of(found, undecoded=True)

    def begin(self) -> bool:
        return self._move(Event.BEGIN)

    @contextmanager
    def calling(self, space: object) -> Iterator[None]:
        token = _current.set(self)
        try:
            with working_in(space):
                yield
        finally:
            _current.reset(token)

    def join(self, queue: str, bodies: list[Any], options: PutOptions) -> list[str]:
        """Put messages in the commit of this attempt; return their ids. ProtocolError if the attempt has ended."""
        if options.get("deduplication_key") is not None:
            raise NotByHTTP(
                "by HTTP, a put that joins the commit of a worker's message has no deduplication_key: leave it out, "
                "because the removal of the message makes the put happen once, or give transaction=None"
            )
        puts = [fields_of_put(body, options) for body in bodies]
        with self.transaction.mutex:
            if self.state in ENDS or self.message is None:
                raise ProtocolError("the attempt of this call has ended, e.g. because the call took too long")
            self._bytes += sum(len(raw) for raw, _ in puts)
            check_bytes(self._bytes)
            first, branch = len(self._puts), self._claims.branch_of(self.message)
            self._puts += (put_object(*each, queue=queue) for each in puts)
        return [f"{branch}{ordinal:08x}" for ordinal in range(first, first + len(puts))]

    def _abandon(self) -> None:
        """Release the message, unless the run passes over it."""
        if (message := self.message) is None:
            return
        if message.position in self._run.wanted()[1]:
            self._attempts.passed[message.position] = message
        else:
            self._attempts.release([message])

    def _commit(self, outcome: Outcome) -> Conclusion:
        with self.transaction.mutex:
            try:
                try:
                    found = self._conclude(outcome)
                except (AccessDenied, InvalidArgument, QueueNotFound) as error:  # of a message that the call puts
                    found = self._conclude(Retried(one_line(error)))
            except (BadMessageId, CommitUnknown, Unreachable) as error:  # the lease has ended, or is about to end
                self._move(Event.ROLLED_BACK)
                return Conclusion(Effect.RETRIED, one_line(error))
            if found.effect is Effect.KEPT:
                self._hold_back(found)
                self.transaction.abandon()
            self._move(Event.COMMITTED)
            return found

    def _conclude(self, outcome: Outcome) -> Conclusion:
        assert self.message is not None
        given = {"on_failure": self._handler.on_failure, "also": self._puts, **outcome_object(outcome)}
        if isinstance(outcome, Retried | Rejected):
            del given["also"]
        found = self._claims.end("conclude", [self.message], lambda: not self._stopping(), **given)
        return Conclusion(**{**found, "effect": Effect(found["effect"]), "event": Event[found["event"]]})
