"""Claims outside of any transaction: messages that a program holds until it removes, fails or releases each.

A claim is the locked byte of its message, and nothing else: no branch, no file. So a program can hold thousands of
messages, and end each hold separately. A removal is committed as that of a plain get is. A counted failure is a
batch of commands. Both go through the group commit, so the calls of one moment share a commit.

A message of a group has the group's lock with it. While a message is held, no holder gets another message of its group,
not even the same ``Claims``: the messages of a group are handled one after the other.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from spool.errors import CommitUnknown, Empty, MessageInUse, NotOpen, QueueNotFound, SpoolError
from spool.log.visibility import catch_up, revalidate
from spool.log.write_set import WriteSet, removal
from spool.model.message import Message
from spool.model.position import PositionRanges, append_range, subtract_ranges
from spool.policies.attempt_journal import become_owner
from spool.policies.retries import add_failure_outcome
from spool.runtime import call_guard
from spool.runtime.async_exceptions import raise_if_torn
from spool.runtime.call_guard import public_call
from spool.transactions.claiming import Wanted
from spool.transactions.core import Core
from spool.transactions.held_messages import HeldMessages
from spool.transactions.hold import Hold
from spool.transactions.validation import put_request


class _Held(Hold):
    """The hold of one message.

    is_ending: whether a commit removes or changes the message at this moment. is_unknown: whether the outcome of the
    last such commit is unknown.
    """

    def __init__(self, core: Core, message: Message) -> None:
        super().__init__(core, core.journal)
        self.id, self.queue, self.position = message.id, message.queue, message.position
        self.claims.append((*message.position, 1))
        self.is_ending = self.is_unknown = False


_Make = Callable[[Sequence[_Held]], WriteSet]


class Claims(HeldMessages):
    """Messages that a program holds outside of any transaction: see ``Space.claims``. Many threads may use one object.

    The death of the process releases the messages at once, and never earlier. An attempt is counted only for messages
    for which ``begin`` was called. ``close``, or the end of a ``with`` block, releases all messages and counts nothing.
    If the space is closed first, or an interrupted call has closed the space, this has the effect of the death of the
    process, and the calls raise NotOpen. A forked child holds nothing.

    ``remove``, ``fail`` and ``reject`` return futures. A future is done when the commit is durable and visible. If a
    future has an error, the messages remain held, and the call can be repeated. A message can be ended once: for a
    message that this object does not hold (any more), the calls raise BadMessageId, and change nothing.

    Each method also raises NotOpen, and ProtocolError after ``close``.
    """

    def __init__(self, core: Core) -> None:
        """Applications call ``Space.claims`` instead."""
        super().__init__(core.store.files.disk.root)
        self._core, self._store = core, core.store

    # -- taking -------------------------------------------------------------------------------------------------------

    def _take(self, wanted: Wanted) -> list[Message]:
        taken: list[Message] = []
        with call_guard.deferred(partial(self._undo_take, taken)):  # a signal handler may raise as the call ends
            taken += self._take_now(wanted)
            return taken

    def _undo_take(self, taken: list[Message]) -> None:
        """Release messages that the caller has not got."""
        with suppress(NotOpen):
            self.release(taken)

    @public_call("taking from queue {wanted.queue}")
    def _take_now(self, wanted: Wanted) -> list[Message]:
        self._check_open()
        hold = Hold(self._core)
        try:
            found, _ = hold.take(wanted, 0.0, self._store.guard.check)
            held = self._split(hold, found)
            with self._mutex:
                self._check_open()
                self._held.update(held)
                hold.claims = subtract_ranges(hold.claims, _ranges(held.values()))
            return found if len(found) == len(held) else [message for message in found if message.id in held]
        except (Empty, MessageInUse):
            return []
        finally:
            if not self._store.guard.closed:  # else the descriptors may be closed, and their locks released
                hold.end(taken=False)  # (of messages that are not taken)

    # -- attempts -----------------------------------------------------------------------------------------------------

    @public_call("recording that an attempt begins")
    def begin(self, message: Message) -> None:
        """Record that the handling of a message begins: from now on, the death of the process counts an attempt.

        The record is a write without a flush. If the disk is full, the call returns, and the death counts no attempt. A
        second call for the same message has no effect.

        Raises:
            BadMessageId: this object does not hold the message.
        """
        become_owner(self._store)  # (now, because this may wait for a lock)
        with self._mutex:
            held = self._find(message)
            if not held.slots:
                held.begin_attempts(held.claims)

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end_by(self, call: str, messages: list[Message], **given: Any) -> "Future[Any]":
        make = partial(self._failure, is_final=call == "reject") if call != "commit" else self._removal
        return self._submit(messages, partial(make, **given), removes=call == "commit")

    def _removal(self, found: Sequence[_Held], puts: Sequence[tuple[str, Any, dict[str, Any]]] = ()) -> WriteSet:
        request = removal(self._store.shared.counters.read(), _ranges(found))
        for queue, body, options in puts:
            request.append(put_request(self._core, queue, [body], **options))
        return request

    @public_call("releasing messages")
    def _release(self, messages: list[Message]) -> None:
        self._end(self._mark(messages))

    def close(self) -> None:
        """Release all messages, and count no attempt. Removals and failures under way are committed nevertheless.

        Further calls of this method do nothing.
        """
        if call_guard.is_in_a_call():  # e.g. in a finalizer
            call_guard.call_later(self.close)
            return
        with suppress(NotOpen):
            self._close()

    @public_call("releasing messages")
    def _close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            left = [held for held in self._held.values() if not held.is_ending]
        self._end(left)

    def __del__(self) -> None:
        """Let the housekeeper release the messages. (Python can call this method between any two instructions, so the
        method takes no lock and touches no file.)"""
        if self.__dict__.get("_held"):
            self._store.drop(
                self.close,
                f"claims of {self._place} were dropped with {self.held} messages, which are released "
                "within seconds: use them in a with statement",
            )

    # -- the held messages --------------------------------------------------------------------------------------------

    def _begin_ending(self, messages: list[Message]) -> list[_Held]:
        """Mark messages. Messages that a commit of unknown outcome has ended are left out, and released."""
        found = self._mark(messages)
        unknown = [held for held in found if held.is_unknown]
        if not unknown:
            return found
        try:
            ended = self._ended_after_all(unknown)
        except BaseException:
            self._undo_ending(found)
            raise
        self._end(ended, is_failed=True)
        return [held for held in found if held not in ended]

    def _ended_after_all(self, unknown: Sequence[_Held]) -> list[_Held]:
        """Return the messages that a commit of unknown outcome has removed, or has moved to the error queue."""
        revalidate(self._store, _ranges(unknown))
        for held in unknown:
            held.is_unknown = False
        with self._store.view.mutex:
            runs = [self._store.view.index.messages.find(held.position) for held in unknown]
        return [held for held, run in zip(unknown, runs, strict=True) if run is None or run.queue.name != held.queue]

    def _undo_ending(self, found: Sequence[_Held]) -> None:
        """Hold messages as before, because no commit ended them."""
        with self._mutex:
            for held in found:
                held.is_ending = False
            closed = self._closed
        if closed:
            self._end(found)

    def _end(self, found: Sequence[_Held], *, is_removed: bool = False, is_failed: bool = False) -> None:
        """Forget messages, end their attempts, and release them: messages that a commit has removed or failed, or that
        return to their places."""
        whole = Hold(self._core, self._core.journal)
        with self._mutex:
            for held in found:
                del self._held[held.id]
                whole.groups |= held.groups
                whole.slots += held.slots
        if self._store.guard.closed:
            return  # the descriptors may be closed, and their locks released
        if is_failed:
            try:
                catch_up(self._store)  # calls that wait for the error queue are woken, too
            except (OSError, SpoolError) as error:
                raise_if_torn(error)
        whole.claims = _ranges(found)
        whole.end(taken=is_removed, removed=is_removed)

    def _split(self, hold: Hold, found: Sequence[Message]) -> dict[str, _Held]:
        """Return the holds of the messages that one ``take`` may hold: of each group only the first, with the group's
        lock. (A take by correlation id may find several messages of a group.)"""
        split = {message.id: _Held(self._core, message) for message in found}
        with self._store.view.mutex:
            for held in list(split.values()) if hold.groups else ():
                run = self._store.view.index.messages.find(held.position)
                if run is not None and run.group is not None:
                    name = held.queue, run.group
                    if name in hold.groups:
                        held.groups[name] = hold.groups.pop(name)
                    else:
                        del split[held.id]
        return split

    # -- commits ------------------------------------------------------------------------------------------------------

    @public_call("committing")
    def _submit(self, messages: list[Message], make: _Make, *, removes: bool = False) -> "Future[Any]":
        """Commit the write set that ``make`` returns for held messages, without waiting; return a future of the
        outcome. ``removes``: whether the messages leave their queue for good."""
        found, future = self._begin_ending(messages), Future[Any]()
        future.set_running_or_notify_cancel()
        if not found:
            future.set_result(None)
            return future
        try:
            self._core.leader.submit(self._request(found, make, future, removes))
        except BaseException:
            self._undo_ending(found)
            raise
        return future

    def _request(self, found: Sequence[_Held], make: _Make, future: "Future[Any]", removes: bool) -> WriteSet:
        request = make(found)
        request.future, request.on_done = future, partial(self._on_done, found, make, removes)
        return request

    def _on_done(self, found: Sequence[_Held], make: _Make, removes: bool, requests: Sequence[WriteSet]) -> None:
        """End messages with the outcome of their commit. The thread that leads the commit calls this."""
        [request] = requests
        error = request.error
        try:
            if isinstance(error, QueueNotFound):  # an error queue was deleted after ``make`` had read the settings
                self._core.leader.send(self._request(found, make, request.future, removes))
                return
        except (OSError, SpoolError) as again:
            raise_if_torn(again)
            error = again
        try:
            if error is None:
                self._end(found, is_removed=removes, is_failed=not removes)
            else:
                for held in found:
                    held.is_unknown = isinstance(error, CommitUnknown)
                self._undo_ending(found)
        finally:
            done = partial(request.future.set_result, request.ids if request.messages else None)
            if error is not None:
                done = partial(request.future.set_exception, self._core.leader.translate_error(error))
            call_guard.call_later(done)

    def _failure(self, found: Sequence[_Held], *, reason: str, delay: float | None, is_final: bool = False) -> WriteSet:
        """Return the write set that records a failure of messages, under the current settings."""
        store = self._store
        page = store.shared.counters.read()
        batch = WriteSet(page=page)
        settings = store.settings.current(page)
        with store.view.mutex:
            for held in found:
                add_failure_outcome(batch, store, settings, held.position, reason, delay=delay, is_final=is_final)
        return batch


def submit(claims: Claims, message: Message, make: Callable[[], WriteSet], *, removes: bool) -> "Future[None]":
    """End the hold of a message by the commit of other effects; see ``Claims._submit``."""
    return claims._submit([message], lambda _: make(), removes=removes)


def _ranges(found: Iterable[_Held]) -> PositionRanges:
    """Return the positions of messages, neighbours joined."""
    ranges: PositionRanges = []
    for number, ordinal in sorted(held.position for held in found):
        append_range(ranges, number, ordinal, 1)
    return ranges
