"""The outbox: ``enqueue`` writes a row in the transaction of the database, and the row is moved into the space later.

A row is moved in three steps. The message is put, with the row's id as deduplication key and as correlation id. The row
is deleted. The worker that takes the message deletes the row, too, before it runs the task. So a message whose row
exists is in its queue, or in the queue of failed tasks, however long ago it was put.

Each task has one message, regardless of the deduplication window of its queue. A mover puts the key, and thereby holds
the lock of the key until its commit. With the lock held, no other mover puts the message, so this order of two reads
decides:

1. If the space has the message, the row was moved before.
2. If the row does not exist, another mover has moved it, and a worker may have taken the message since.
3. Otherwise no message was ever put for the row.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction
from django.db.utils import Error as DatabaseError
from django.db.utils import InterfaceError, OperationalError

import spool
from django_xaspool import test_spaces

log = logging.getLogger("django_xaspool")

_MOST_ROWS = 100  # that one commit moves
_LOCK_SECONDS = 5.0  # the longest wait for another process that moves the same row
_OTHERS_SECONDS = 60.0  # between two looks of a web process for the rows of dead processes

_OF_ONE_ROW = (spool.MessageInUse, spool.InvalidArgument, ValueError, TypeError, KeyError)  # other rows can be moved

_NOT_INSTALLED = 'the outbox needs "django_xaspool" in INSTALLED_APPS: add it, and run manage.py migrate'

_looked: dict[str, float] = {}  # by the alias of the backend: when this process last looked for rows of others
_failures: dict[tuple[str, str], str] = {}  # by alias and queue: the failure that was logged last


def new_id() -> str:
    """Return a new id of a task. The ids of one machine ascend."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


class Backend(Protocol):
    """The backend whose tasks an outbox moves."""

    alias: str

    def space_with(self, *queues: str) -> spool.Space: ...
    def put_once(self, tx: spool.Transaction, id: str, queue: str, body: Mapping[str, Any]) -> bool: ...
    def is_in_space(self, id: str, queue: str) -> bool: ...
    def announce(self, id: str, queue: str, body: Mapping[str, Any]) -> None: ...


class Outbox:
    """The rows of one backend, in the database with the alias ``database``."""

    def __init__(self, backend: Backend, database: str) -> None:
        self.alias, self.database = backend.alias, database
        self._backend = backend

    @property
    def rows(self) -> Any:
        """The query set of the rows. Raises ImproperlyConfigured if the application is not installed."""
        if not apps.is_installed("django_xaspool"):  # (its models cannot be imported then)
            raise ImproperlyConfigured(_NOT_INSTALLED)
        from django_xaspool.models import OutboxTask

        return OutboxTask.objects.using(self.database).filter(backend=self.alias)

    def find(self, id: str) -> tuple[str, dict[str, Any]] | None:
        """Return the queue and the body of the task with this id; None if the outbox does not have it."""
        row = self.rows.filter(pk=id).first()
        return None if row is None else (row.queue, json.loads(row.body))

    def add(self, id: str, queue: str, body: str) -> None:
        """Write a row in the open transaction, and move it after the commit."""
        self.rows.create(id=id, backend=self.alias, queue=queue, body=body)
        connection = connections[self.database]
        if not connection.in_atomic_block and not connection.get_autocommit():
            return  # the program commits by itself, and Django has no calls after such a commit: a worker moves the row
        scope, calls = set(connection.savepoint_ids), connection.run_on_commit
        if calls and isinstance(last := calls[-1][1], _Move) and last.alias == self.alias and calls[-1][0] == scope:
            last.ids.append(id)  # one move for all tasks that are enqueued in one block
        else:
            transaction.on_commit(_Move(self, id), using=self.database)

    def move_committed(self, ids: Sequence[str]) -> None:
        """Move rows whose transaction was committed, and now and then those that dead processes left.

        Raises no error, because the work of the caller is committed: the row of a task that cannot be put remains.
        """
        for start in range(0, len(ids), _MOST_ROWS):
            self._move(self.rows.filter(pk__in=ids[start : start + _MOST_ROWS]), set(), patient=False)
        now = time.monotonic()
        if now - _looked.setdefault(self.alias, now) > _OTHERS_SECONDS:
            _looked[self.alias] = now
            self._move(self.rows, set(), patient=False)

    def move_all(self) -> None:
        """Move all rows. The row of a task that cannot be put remains, and the failure is logged. Raises no error."""
        last: str | None = ""
        failed: set[str] = set()
        while last is not None:
            last = self._move(self.rows.filter(pk__gt=last), failed, patient=True)

    def _move(self, found: Any, failed: set[str], *, patient: bool) -> str | None:
        """Move the first of the found rows, except those of queues that have failed.

        If they cannot be moved together, they are moved one by one, but while another process moves them only if
        ``patient``. Returns the id of the last row, or None if no further row was found.
        """
        try:
            rows = list(found.order_by("pk")[:_MOST_ROWS])
            error = self._attempt(rows) if rows and not failed else None
            if failed or (error is not None and (patient or not isinstance(error, spool.MessageInUse))):
                for row in rows:
                    if row.queue not in failed and (error := self._attempt([row])) is not None:
                        self._log_once(row.queue, error)
                        if not isinstance(error, _OF_ONE_ROW):
                            failed.add(row.queue)  # its later tasks wait, too, and keep their order
        except Exception as error:  # of the database
            self._log_once("", error)
            return None
        return rows[-1].pk if len(rows) == _MOST_ROWS else None

    def _attempt(self, rows: Sequence[Any]) -> Exception | None:
        try:
            self._move_together(rows)
        except Exception as error:
            return error
        for row in rows:
            _failures.pop((self.alias, row.queue), None)
        return None

    def _log_once(self, queue: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if _failures.get((self.alias, queue)) != reason:
            _failures[self.alias, queue] = reason
            log.warning(
                "the tasks of %s remain in the outbox of the database %r, and spool_worker moves them later: %s",
                f"the queue {queue}" if queue else f"the backend {self.alias}", self.database, reason,
            )  # fmt: skip

    def _move_together(self, rows: Sequence[Any]) -> None:
        bodies = {row.pk: json.loads(row.body) for row in rows}
        for row in self._put_new(rows, bodies):
            self._backend.announce(row.pk, row.queue, bodies[row.pk])
        self.delete(bodies)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete the rows of tasks that the space has."""
        self.rows.filter(pk__in=ids).delete()

    def _put_new(self, rows: Sequence[Any], bodies: Mapping[str, Any]) -> Sequence[Any]:
        """Put the tasks of the rows that no mover has put, in one commit; return these rows."""
        backend = self._backend
        space = backend.space_with(*{row.queue for row in rows})
        while rows:
            with space.transaction(_LOCK_SECONDS) as tx:
                new = [row for row in rows if backend.put_once(tx, row.pk, row.queue, bodies[row.pk])]
                unknown = [row for row in new if not backend.is_in_space(row.pk, row.queue)]
                existing = set(self.rows.filter(pk__in=[row.pk for row in unknown]).values_list("pk", flat=True))
                rows = [row for row in unknown if row.pk in existing]
                if len(rows) == len(new):
                    break
                tx.rollback()  # a transaction cannot take back a single put
        return rows

    def settle(self, id: str) -> None:
        """Delete the row of a task whose message was taken, if it still exists, before the task runs.

        Without the database, no task can be run: raises spool.Retry, after which the worker pauses.
        """
        try:
            row = self.rows.filter(pk=id)
            if row.exists():  # (a deletion without rows would lock SQLite's file)
                row.delete()
        except (InterfaceError, OperationalError) as error:
            if "no such table" in str(error) or test_spaces.are_used():  # a pause would not help
                raise
            connections[self.database].close()
            raise spool.Retry(f"the database {self.database!r} cannot be used: {error}", counted=False) from error


class _Move:
    """The call after a commit that moves the rows of one block."""

    def __init__(self, outbox: Outbox, id: str) -> None:
        self._outbox = outbox
        self.alias, self.ids = outbox.alias, [id]

    def __call__(self) -> None:
        self._outbox.move_committed(self.ids)


def findings_of(outbox: Outbox) -> list[CheckMessage]:
    """Return the findings of ``manage.py check`` about the table of an outbox."""
    if not apps.is_installed("django_xaspool"):
        return [Error(_NOT_INSTALLED, id="django_xaspool.E001")]
    model, database = outbox.rows.model, outbox.database
    if not router.allow_migrate_model(database, model):
        hint = "let allow_migrate of the router in DATABASE_ROUTERS return True, or set the option database"
        said = f"DATABASE_ROUTERS allow no table {model._meta.db_table} in the database {database!r} of the outbox"
        return [Error(said, hint=hint, id="django_xaspool.E002")]
    if not connections[database].settings_dict["AUTOCOMMIT"]:  # the deletions of rows would not be committed
        said = f"the database {database!r} of the outbox has AUTOCOMMIT = False: set it to True, and use atomic"
        return [Error(said, id="django_xaspool.E003")]
    if sys.argv[1:2] == ["migrate"]:  # it makes the checks first, and then the table
        return []
    try:
        names = connections[database].introspection.table_names()
    except DatabaseError as error:
        said, hint = f"the database {database!r} of the outbox cannot be reached: {error}", ""
    else:
        if model._meta.db_table in names:
            return []
        hint = f"manage.py migrate django_xaspool --database {database}"
        said = f"the database {database!r} has no table {model._meta.db_table}, so no task can be enqueued"
    return [Warning(said, hint=hint, id="django_xaspool.W001")]  # (an error would prevent the migration)
