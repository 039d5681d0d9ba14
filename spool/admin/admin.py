"""The calls of an administrator on an open space: for queues, messages, subscriptions, quarantine and exports."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Unpack, overload

from spool.admin import bulk, quarantined, schedules
from spool.admin.findings import Finding
from spool.admin.holders import IN_DOUBT, Holder, holders
from spool.admin.listing import PREVIEW, MessageState, QueueEntry, entries_of, entry_of, state_of, unread
from spool.admin.quarantined import QuarantinedFile
from spool.admin.queues import add_queues, change_queue, delete_queue
from spool.admin.reads import find_message, look
from spool.admin.stats import QueueStats, queue_stats
from spool.coordination.resumptions import request_resumption
from spool.errors import Argument, InvalidArgument, QueueExists
from spool.index.browse import Cursor, Filter, Slice
from spool.log.visibility import list_prepared
from spool.maintenance.disk_space import free_room
from spool.model.checks import check
from spool.model.message import PUT_OPTIONS, Message
from spool.model.options import KEEP, Keep, MessageFilters, PutOptions, QueueOptions
from spool.model.schedule import Schedule
from spool.model.settings import WORK, QueueConfig, check_queue_name
from spool.policies.expiry import expire
from spool.policies.no_effect import warn_of_put
from spool.policies.subscriptions import SubscriptionState, end, states
from spool.runtime.call_guard import public_call, within
from spool.runtime.closing import Closing
from spool.transactions.core import Core
from spool.transactions.validation import check_queue

if TYPE_CHECKING:
    from spool.admin.manifest import ExportReport, Progress

log = logging.getLogger("spool")

_BROWSED_FIRST, _BROWSED_AT_ONCE = 64, 2_048


class Administration(Closing):
    """The methods of ``spool.Space`` that administer the space."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._core = core  # (no part of the core may refer to the space: see ``Space.__del__``)

    # -- queues ----------------------------------------------------------------------------------------------------

    @public_call("creating queue {name}")
    def create_queue(
        self, name: str, *, create_missing: bool = False, exist_ok: bool = False, **options: Unpack[QueueOptions]
    ) -> QueueConfig:
        """Create a queue, and return the queue's configuration. The queue is durable when this call returns.

        Args:
            create_missing: also create the queues that the options name and that do not exist.
            exist_ok: return the configuration of the queue if it exists. Then the options of this call must equal the
                queue's options. Options that the call leaves out are not compared.
            options: see ``spool.QueueOptions``.

        Raises:
            QueueExists: the queue exists. With ``exist_ok``, this error is raised only if options differ; the text
                names these options.
            QueueNotFound: the options name a queue that does not exist.
            InvalidArgument: an option has a value that is not allowed.
        """
        self._store.check_usable()
        return add_queues(self._store, {name: options}, create_missing=create_missing, exist_ok=exist_ok)[name]

    @public_call("creating queue {name}")
    def ensure_queue(self, name: str, **options: Unpack[QueueOptions]) -> QueueConfig:
        """Return the configuration of a queue. If the queue does not exist, create it, and the queues that ``options``
        names.

        An existing queue keeps its options, because an administrator may have changed them. Only its role changes, if
        the role is "work" and ``options`` name another role. The call is fast for an existing queue, so each part of a
        program can call it before each use of a queue.

        Args:
            options: the options of a new queue; see ``spool.QueueOptions``.

        Raises:
            InvalidArgument: no queue can have this name, or an option of a new queue has a value that is not allowed.
        """
        self._store.check_usable()
        check_queue_name(name)
        while (found := self._store.settings.current().config.queues.get(name)) is None:
            with suppress(QueueExists):  # another process has just created the queue
                add_queues(self._store, {name: options}, create_missing=True)
        if found.role == WORK and options.get("role", WORK) != WORK:
            try:
                found = change_queue(self._store, name, role=options["role"])
            except OSError as error:  # e.g. of a full disk, on which the program must go on
                log.warning("queue %s keeps its role for now: %s", name, error)
        return found

    @public_call("creating queues")
    def create_queues(
        self,
        names: Iterable[str] | Mapping[str, QueueOptions],
        *,
        create_missing: bool = False,
        exist_ok: bool = False,
        **options: Unpack[QueueOptions],
    ) -> dict[str, QueueConfig]:
        """Create many queues in one step, all or none; return their configurations by name.

        The queues are durable when this call returns. Ten thousand queues take seconds.

        Args:
            names: the names of the queues; or a mapping from each name to the options of that queue. The options in the
                mapping override ``options``.
            create_missing, exist_ok, options: as in ``create_queue``.

        Raises:
            QueueExists, QueueNotFound, InvalidArgument: as in ``create_queue``.
        """
        self._store.check_usable()
        if isinstance(names, str):
            raise InvalidArgument(Argument("names"), f" are names of queues, e.g. [{names!r}], not one text")
        each = names if isinstance(names, Mapping) else dict.fromkeys(names)
        wanted = {name: {**options, **own} if own else options for name, own in each.items()}
        return add_queues(self._store, wanted, create_missing=create_missing, exist_ok=exist_ok)

    @public_call("changing queue {name}")
    def change_queue(
        self,
        name: str,
        *,
        create_missing: bool = False,
        drop_group: str | Keep | None = KEEP,
        **options: Unpack[QueueOptions],
    ) -> QueueConfig:
        """Change options of a queue; other options do not change. None removes an option. The change is durable when
        this call returns.

        Args:
            create_missing: also create the queues that the options name and that do not exist.
            drop_group: the group of users who may drop files into the queue's folder; None: only the space's owner may.
            options: see ``spool.QueueOptions``.

        Raises:
            QueueNotFound: the queue, or a queue that the options name, does not exist.
            InvalidArgument: an option has a value that is not allowed, the group does not exist, or this user may not
                give folders to the group.
        """
        self._store.check_usable()
        return change_queue(self._store, name, create_missing=create_missing, drop_group=drop_group, **options)

    @public_call("deleting queue {name}")
    def delete_queue(self, name: str) -> None:
        """Delete an empty queue. The removal is durable when this call returns. Raises QueueNotFound, QueueNotEmpty."""
        delete_queue(self._store, name)

    @public_call("reading the settings")
    def queues(self) -> dict[str, QueueConfig]:
        """Return the options of every queue, by the queue's name."""
        self._store.check_usable()
        return dict(self._store.settings.current().config.queues)

    @public_call("exporting the space")
    def export(
        self, file: BinaryIO, *, compress: bool | str = False, progress: "Callable[[Progress], None] | None" = None
    ) -> "ExportReport":
        """Write the state of the space at one moment into a file, and return a report of the export. Claims are not
        exported.

        ``spool.import_space`` creates a space from the file, and ``spool.verify_export`` proves that the file is whole.
        Other threads and processes may use the space meanwhile.

        Args:
            file: a file open for writing bytes; the file need not be seekable.
            compress: True, ``"gz"``, ``"bz2"`` or ``"xz"``.
            progress: called with the number of files so far.

        Raises:
            InvalidArgument: ``file`` or ``compress`` has another value.
            SystemFailure: another process was removing or compacting files for the whole time. Try again later.
            CorruptedFile: a file of the space has lost bytes.
        """
        from spool.admin.export import export  # imported here, because exports are rare

        return export(self._store, file, progress, compress)

    # -- subscriptions ---------------------------------------------------------------------------------------------

    @public_call("reading the subscriptions")
    def subscriptions(self) -> dict[str, SubscriptionState]:
        """Return the state of every subscription, by name. The space keeps messages for a subscription until the reader
        of the subscription has read them."""
        return states(self._store)

    @public_call("deleting subscription {name}")
    def delete_subscription(self, name: str) -> None:
        """End a subscription. Messages that are kept only for this subscription are removed. The change is durable when
        this call returns. Raises InvalidArgument if no subscription has this name."""
        end(self._store, name)

    # -- schedules -------------------------------------------------------------------------------------------------

    @public_call("creating schedule {name}")
    def create_schedule(
        self, name: str, queue: str, body: Any, *, cron: str, timezone: str = "UTC",
        missed: Literal["once", "skip"] = "once", exist_ok: bool = False, **options: Unpack[PutOptions],
    ) -> Schedule:  # fmt: skip
        """Create a schedule, which puts a message at each time of a cron expression. The schedule is durable when this
        call returns.

        A process that has the space open puts each due message, and exactly one process does so. The message has the
        headers ``schedule``, the name, and ``schedule-due``, the time for which it was put. If no process has the space
        open, or a queue or the disk is full, the message is late.

        Args:
            queue: the queue that gets the messages.
            body: the body of each message, at most 64 KiB: see ``put``.
            cron: minute, hour, day of the month, month and day of the week, e.g. ``"0 3 * * *"``; six fields begin with
                the second. Also ``"@hourly"``, ``"@daily"``, ``"@weekly"``, ``"@monthly"`` and ``"@yearly"``.
            timezone: the name of the time zone of ``cron``, e.g. ``"Europe/Berlin"``.
            missed: "once" puts one message for all times that were missed. "skip" puts none, if a time is more than a
                minute late.
            exist_ok: return the schedule if it exists with the same arguments.
            options: see ``spool.PutOptions``; without ``not_before``, ``expires_at``, ``before`` and
                ``deduplication_key``, which are for one message.

        Raises:
            QueueNotFound: the queue does not exist.
            InvalidArgument: the name is taken, or an argument has a value that is not allowed.
        """
        new = Schedule(name, queue, cron, timezone, missed, b"", None, {})
        return schedules.create_schedule(self._core, new, body, options, exist_ok)

    @public_call("changing schedule {name}")
    def change_schedule(
        self, name: str, *, body: Any = KEEP, cron: str | Keep = KEEP, timezone: str | Keep = KEEP,
        missed: Literal["once", "skip"] | Keep = KEEP, content_type: str | None = None,
    ) -> Schedule:  # fmt: skip
        """Change a schedule in one commit, and return it. The change is durable when this call returns.

        The schedule keeps the times of its last message. A message that is due and not yet put is still put, with the
        new body. Then the times are those of the new expression.

        Args:
            body, cron, timezone, missed: see ``create_schedule``. A value that is left out remains.
            content_type: the media type of the new body; by default, that of its codec.

        Raises:
            InvalidArgument: no schedule has this name, or an argument has a value that is not allowed.
        """
        changes: dict[str, Any] = {"cron": cron, "timezone": timezone, "missed": missed}
        return schedules.change_schedule(self._core, name, body, content_type, **changes)

    @public_call("listing schedules")
    def schedules(self) -> dict[str, Schedule]:
        """Return all schedules, by name."""
        return schedules.schedules(self._store)

    @public_call("deleting schedule {name}")
    def delete_schedule(self, name: str) -> None:
        """Delete a schedule. The deletion is durable when this call returns. Messages that it has put remain in the
        queue. Raises InvalidArgument if no schedule has this name."""
        schedules.delete_schedule(self._store, name)

    @public_call("running schedule {name}")
    def run_schedule(self, name: str) -> str:
        """Put the message of a schedule now, and return its id. The times of the schedule do not change. Raises the
        errors of ``put``, and InvalidArgument if no schedule has this name."""
        return schedules.run_schedule(self._core, name)

    # -- quarantine ------------------------------------------------------------------------------------------------

    @public_call("looking into quarantine")
    def quarantined(self) -> list[Finding]:
        """List the files in quarantine, with the reasons."""
        self._store.check_usable()
        return quarantined.findings(self._store.files.disk)

    @public_call("looking into quarantine")
    def quarantined_file(self, name: str) -> QuarantinedFile:
        """Describe the file with this name in ``quarantine/``, with its first bytes and advice. Raises InvalidArgument
        if no file has the name."""
        self._store.check_usable()
        return quarantined.look(self._store.files.disk, name)

    @public_call("putting a dropped file back")
    def restore_quarantined(self, name: str) -> str:
        """Put a dropped file back into its queue's folder. The next intake takes the file from there. Returns the new
        path, relative to the space. The move is durable when this call returns. Raises QueueNotFound, and
        InvalidArgument if the file cannot be put back."""
        self._store.check_usable()
        return quarantined.restore(self._store, name)

    @public_call("deleting from quarantine")
    def delete_quarantined(self, name: str) -> None:
        """Delete a file in ``quarantine/`` and its reason for good. Raises InvalidArgument if no file has the name."""
        self._store.check_usable()
        quarantined.delete(self._store.files.disk, name)

    # -- reading -----------------------------------------------------------------------------------------------------

    def browse(self, queue: str, **filters: Unpack[MessageFilters]) -> Iterator[Message]:
        """Yield the queue's messages in the order of delivery, delayed messages last. Nothing is claimed.

        A damaged message is left out, and the log has a warning. ``entries`` also yields damaged messages.

        Args:
            filters: see ``spool.MessageFilters``.
        """
        self._look(queue)
        return self._undamaged(self._entries(queue, Cursor(queue, Filter.of(filters)), None, named=False))

    @staticmethod
    def _undamaged(entries: Iterator[QueueEntry]) -> Iterator[Message]:
        for entry in entries:
            if entry.damage is not None:
                log.warning("%s", entry.damage)
            elif entry.message is not None and entry.state != IN_DOUBT:
                yield entry.message

    def entries(
        self, queue: str, *, preview: int | None = None, **filters: Unpack[MessageFilters]
    ) -> Iterator[QueueEntry]:
        """Yield all messages of the queue, even damaged messages and messages in doubt, with their states and holders.

        The order and the filters are as in ``browse``. Nothing is claimed.

        Args:
            preview: how many bytes of each body to read, so that a list of large messages is fast; None for whole
                bodies. A longer body is cut to its first stored bytes. Then ``body_cut`` is True, and damage in the
                body is not noticed. ``body_bytes`` is always the whole size.
            filters: see ``spool.MessageFilters``.
        """
        check("preview", preview, PREVIEW)
        self._look(queue)
        return self._entries(queue, Cursor(queue, Filter.of(filters)), preview)

    def _entries(self, queue: str, look: Cursor, preview: int | None, named: bool = True) -> Iterator[QueueEntry]:
        count = _BROWSED_FIRST
        while some := self._next(look, count):
            count = _BROWSED_AT_ONCE
            found = entries_of(self._store, queue, some, preview, named)
            while (entry := self._following(found)) is not None:
                yield entry
        yield from self._unread(look, queue)

    @public_call("reading messages")
    def _next(self, look: Cursor, count: int) -> list[Slice]:
        with self._store.view.mutex:
            return look.next(self._store.view.index, self._store.clock.now(), count)

    @public_call("reading messages")
    def _following(self, found: Iterator[QueueEntry]) -> QueueEntry | None:
        self._store.check_usable()
        return next(found, None)

    @public_call("reading messages")
    def _unread(self, look: Cursor, queue: str) -> list[QueueEntry]:
        return unread(self._store, look, queue)

    @overload
    def stats(self) -> dict[str, QueueStats]: ...
    @overload
    def stats(self, queue: str) -> QueueStats: ...
    @public_call("counting messages")
    def stats(self, queue: str | None = None) -> dict[str, QueueStats] | QueueStats:
        """Return the ``QueueStats`` of one queue. Without ``queue``, return a map from each queue to its
        ``QueueStats``.

        Raises QueueNotFound.
        """
        names = tuple(within(Administration.queues)(self)) if queue is None else (queue,)
        for name in names:
            within(Administration._look)(self, name)
        found = queue_stats(self._store, names)
        return found if queue is None else found[queue]

    @public_call("looking for a message")
    def entry(self, message_id: str, *, preview: int | None = None) -> QueueEntry:
        """Return a message of any queue by id, in the form of ``entries``. Raises BadMessageId if no message has the
        id.

        Args:
            preview: as in ``entries``.
        """
        check("preview", preview, PREVIEW)
        return entry_of(self._store, message_id, preview)

    @public_call("looking for a message")
    def state(self, message: Message | str) -> MessageState:
        """Return the state of a message of any queue. The body is not read, and nothing is claimed.

        Args:
            message: the message, or its id.

        Returns:
            "ready", "delayed" (until its time, or until its next attempt), "claimed" (by an active transaction, or by a
            get that has not ended), "in doubt" (held by a prepared and undecided transaction), or "gone" (taken,
            deleted, expired, or never committed). A failed or expired message that moved to an error queue is "ready"
            there.

        Raises:
            BadMessageId: ``message`` is a text, and no message id.
        """
        return state_of(self._store, message.id if isinstance(message, Message) else message)

    @public_call("looking for holders of messages")
    def holders(self, queue: str) -> dict[str, Holder]:
        """Return, by message id, the holders of the queue's messages that are claimed or in doubt. Raises
        QueueNotFound."""
        within(Administration._look)(self, queue)
        return holders(self._store.files.disk, self._store.shared, self._store.view, queue)

    @public_call("looking for a message")
    def show(self, message_id: str) -> Message:
        """Return a message of any queue by id, without claiming it. Raises BadMessageId if no message has the id."""
        return find_message(self._store, message_id)

    @public_call("looking at the queue")
    def _look(self, queue: str) -> None:
        look(self._store, queue)
        list_prepared(self._store)
        expire(self._store, queue, self._store.deadline())

    # -- messages ----------------------------------------------------------------------------------------------------

    @public_call("deleting a message")
    def delete(self, message_id: str) -> Message:
        """Delete a message, and return it. Raises BadMessageId, MessageInUse."""
        message = find_message(self._store, message_id)
        bulk.act_on(self._core, message_id, bulk.delete)
        return message

    @public_call("moving a message")
    def move(self, message_id: str, queue: str) -> Message:
        """Move a message to another queue. The priority and the age of the message decide its place in the new queue.
        All attempts are permitted again.

        Returns the changed message. Raises BadMessageId, MessageInUse, QueueNotFound.
        """
        check_queue(self._store.settings, queue, self._store.shared.counters.read())
        bulk.act_on(self._core, message_id, lambda run: bulk.moved(run, queue))
        return find_message(self._store, message_id)

    @public_call("changing a message")
    def change(
        self,
        message_id: str,
        *,
        priority: int | Keep = KEEP,
        not_before: float | datetime | Keep | None = KEEP,
        expires_at: float | datetime | Keep | None = KEEP,
    ) -> Message:
        """Change the priority or a time of a message, and return the changed message. Raises BadMessageId,
        MessageInUse.

        Args:
            priority: the new priority, from 1 to 100.
            not_before, expires_at: the new time, in seconds since the epoch or as a datetime with a time zone. None
                removes the time.
        """
        asked = {"priority": priority, "not_before": not_before, "expires_at": expires_at}
        changes = {name: check(name, to, PUT_OPTIONS[name].check) for name, to in asked.items() if to is not KEEP}
        if not changes:
            raise InvalidArgument("name a field to change: priority, not_before or expires_at")
        bulk.act_on(self._core, message_id, lambda run: changes)
        message = find_message(self._store, message_id)
        if (config := self._store.settings.known.config.queues.get(message.queue)) is not None:
            warn_of_put(self._store.files.disk.root, config, changes)
        return message

    @public_call("purging a queue")
    def purge(
        self,
        queue: str,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        **filters: Unpack[MessageFilters],
    ) -> int:
        """Delete the queue's messages that match the filters, and return their number. Held messages are not deleted.

        The call frees the disk space of the messages before it returns. The call also works on a full disk.

        Args:
            dry_run: only count the messages.
            progress: called after each commit with the number of messages so far.
            filters: see ``spool.MessageFilters``.
        """
        chosen = bulk.Bulk(queue, Filter.of(filters), dry_run, progress)
        deleted = bulk.act_on_all(self._store, chosen, bulk.delete)
        if not dry_run:
            free_room(self._store)
        return deleted

    @public_call("resuming queue {queue}")
    def resume(self, queue: str) -> int:
        """Make the queue's failed messages ready now, e.g. after a service was repaired. Returns the number of
        messages.

        Failed messages that wait for their next attempt become ready. The workers and routes of the queue end their
        pauses within a second. Other delayed messages are not changed. Raises QueueNotFound.
        """
        chosen = bulk.Bulk(queue, Filter(), possible=bulk.waits_after_a_failure(self._store.clock.now()))
        ready = bulk.act_on_all(self._store, chosen, lambda run: {"not_before": None})
        request_resumption(self._store.files.disk, queue)
        return ready

    @public_call("redriving messages")
    def redrive(
        self,
        queue: str,
        to: str | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        **filters: Unpack[MessageFilters],
    ) -> int:
        """Move messages of an error queue to their original queues or to ``to``. Returns the number of moved messages.

        A moved message is ready at once, and all its attempts are permitted again. Without ``to``, a message is not
        moved if it came from no other queue or from a deleted queue. The other arguments are as in ``purge``.

        Raises Full if a queue has no room. Its text tells how many messages were moved before.
        """
        chosen = bulk.Bulk(queue, Filter.of(filters), dry_run, progress)
        if to is None:
            there = self._store.settings.current().config.queues.keys() - {queue}
            chosen = replace(chosen, possible=lambda attributes: attributes.get("origin_queue") in there)
        else:
            check_queue(self._store.settings, to, self._store.shared.counters.read())
        return bulk.act_on_all(self._store, chosen, bulk.redrive_to(to))
