"""The end of an attempt for a message of ``spool.Claims``, e.g. a message that a client of a server holds."""

from concurrent.futures import Future
from typing import Any

from spool.errors import Full
from spool.log.write_set import WriteSet
from spool.model.message import Message
from spool.policies.retries import queue_config
from spool.runtime.call_guard import step
from spool.transactions import delivery
from spool.transactions.claims import Claims, submit
from spool.transactions.core import Core
from spool.transactions.validation import put_request
from spool.workers.conclusion import Conclusion, without_room
from spool.workers.effects import Effect, OnFailure, OutcomePolicy, effective_outcome, record
from spool.workers.outcome import Outcome, Passed, Rejected, Replied, Retried, too_large


class ClaimedAttempt:
    """An attempt for a message that ``claims`` holds. The message's body is not used."""

    def __init__(self, core: Core, claims: Claims, message: Message) -> None:
        self._core, self._store, self._claims, self._message = core, core.store, claims, message
        self.conclusion = Conclusion(Effect.DELIVERED, "")

    @step("committing")
    def commit(
        self, outcome: Outcome, on_failure: OnFailure, puts: list[tuple[str, Any, dict[str, Any]]], branch: bytes
    ) -> "Future[None]":
        """Commit the effects of an outcome, as a worker does. ``conclusion`` is known once the future is done.

        puts: the queue, the body and the options of each further put of the call, which a failure leaves out.
        branch: the beginning of the ids of these puts, which no other message has; their ordinals follow, from 0.

        If the future has an error, e.g. Full, the message remains held.
        """
        most = self._store.settings.current().config.max_body_bytes
        if isinstance(outcome, Replied) and len(outcome.body) > most:
            outcome = too_large(most)
        raw = b""
        if isinstance(outcome, Passed):
            [whole] = delivery.read_messages(self._store, *self._message.position, 1, only_shown=True)
            raw = delivery.stored_body(self._store.files, self._store.view, whole)

        def effects() -> WriteSet:
            page = self._store.shared.counters.read()
            policy = OutcomePolicy.of(self._store.settings.current(page).config, self._message.queue, on_failure)
            effective = effective_outcome(policy, self._message, raw, outcome)
            batch = WriteSet(page=page)
            if puts and not isinstance(effective, Retried | Rejected):
                batch.begin_branch(None, branch)
                for queue, body, options in puts:
                    batch.append(put_request(self._core, queue, [body], **options), joins=True)
            effect, reason = record(batch, policy, self._message, raw, effective, self._store.clock.now())
            self.conclusion = Conclusion(effect, reason, failed=isinstance(outcome, Retried))
            return batch

        return submit(self._claims, self._message, effects, removes=not isinstance(outcome, Retried | Rejected))

    def without_room(self, full: Full) -> Conclusion:
        """Return the conclusion if the effects find no room in a queue. The message remains held."""
        config = queue_config(self._store.settings.known.config, self._message.queue)
        return without_room(full, config, {self._message.reply_queue, self._message.failure_queue}, (), replies=True)
