"""``django_xaspool.transaction``: a message is taken and rows are written, both or neither, with Django's own rules."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings

import django_xaspool
import spool
import xa
from django_xaspool.models import OutboxTask
from tests import children
from tests.django_backend import conf, jobs
from tests.django_backend.databases import KINDS, database, insert, numbers


@pytest.fixture(params=KINDS)
def space(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spool.Space]:
    tasks = conf.tasks_in(tmp_path / "space", outbox=True)
    with database(request.param, tmp_path, monkeypatch), override_settings(TASKS=tasks):
        found = spool.shared(tmp_path / "space")
        found.create_queue("orders", retry_delay=0)
        yield found


def waiting(space: spool.Space, queue: str = "orders") -> list[Any]:
    return [message.body for message in space.browse(queue)]


def test_x19_the_message_and_the_rows_are_committed_together(space: spool.Space) -> None:
    space.put_many("orders", [1, 2])
    called: list[str] = []
    with django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        transaction.on_commit(lambda: called.append("committed"))
        assert called == []
    with django_xaspool.transaction(space.path) as tx, pytest.raises(ZeroDivisionError):  # a savepoint
        insert(tx.get("orders").body)
        with transaction.atomic():
            insert(7)
            transaction.on_commit(lambda: called.append("never"))
            raise ZeroDivisionError
    assert (numbers("orders"), waiting(space), called) == ([1, 2], [], ["committed"])
    assert connection.get_autocommit()
    insert(3)
    assert numbers("orders") == [1, 2, 3]


@pytest.mark.parametrize("path", ["", "mistyped/space"])
def test_a_mistyped_path_makes_no_space(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(spool.SpoolError, match="a directory"), django_xaspool.transaction(path):
        pass
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_connection_that_django_makes_again_takes_part(space: spool.Space, how: str, monkeypatch: pytest.MonkeyPatch):
    space.put("orders", 1)
    if how == "closed":
        connection.close()
    else:  # Django finds it when the block begins
        connection.ensure_connection()
        monkeypatch.setattr(connection._connections["default"], "health_check_enabled", True)
        monkeypatch.setattr(connection._connections["default"], "is_usable", lambda: False)
        connection._connections["default"].health_check_done = False
    with pytest.raises(ZeroDivisionError), django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        raise ZeroDivisionError
    assert (numbers("orders"), waiting(space)) == ([], [1])


def test_a_failure_undoes_both_and_forgets_the_calls_of_on_commit(space: spool.Space) -> None:
    space.put("orders", 1)
    called: list[str] = []
    with pytest.raises(ZeroDivisionError), django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        tx.put("orders", "more")
        transaction.on_commit(lambda: called.append("never"))
        raise ZeroDivisionError("of the test")
    with transaction.atomic():
        transaction.on_commit(lambda: called.append("of a later block"))
    assert (numbers("orders"), waiting(space), called) == ([], [1], ["of a later block"])
    [message] = space.browse("orders")
    assert message.attempts == 1
    with django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        transaction.set_rollback(True)
    assert (numbers("orders"), waiting(space)) == ([], [1])


def test_work_after_a_failed_commit_is_not_lost(space: spool.Space) -> None:
    """Django's look at a connection of PostgreSQL begins a transaction."""
    space.create_queue("gone")
    with pytest.raises(spool.QueueNotFound), django_xaspool.transaction(space) as tx, spool.open(space.path) as other:
        insert(1)
        tx.put("gone", 1)
        other.delete_queue("gone")
    with transaction.atomic():
        insert(2)
    insert(3)
    connection.close()
    assert numbers("orders") == [2, 3]


def test_a_commit_that_the_database_refuses_undoes_both(space: spool.Space) -> None:
    if connection.vendor == "postgresql":
        refusing = "create table guests (number integer unique deferrable initially deferred)"
    else:
        refusing = "create table guests (number integer references orders (number) deferrable initially deferred)"
    with connection.cursor() as cursor:
        cursor.execute(refusing)
    space.put("orders", 1)
    called: list[str] = []
    with pytest.raises(IntegrityError), django_xaspool.transaction(space) as tx:
        tx.get("orders")
        transaction.on_commit(lambda: called.append("never"))
        insert(5, "guests")
        insert(5, "guests")
    with transaction.atomic():
        insert(1)
    assert (numbers("guests"), waiting(space), numbers("orders"), called) == ([], [1], [1], [])


def test_a_task_that_is_enqueued_in_the_block_is_part_of_the_transaction(space: spool.Space) -> None:
    space.put("orders", 1)
    with pytest.raises(ZeroDivisionError), django_xaspool.transaction(space) as tx:
        tx.get("orders")
        jobs.add.enqueue(0)
        raise ZeroDivisionError
    with django_xaspool.transaction(space) as tx:
        jobs.add.enqueue(tx.get("orders").body)
    assert [body["args"] for body in waiting(space, "default")] == [[1]]
    assert OutboxTask.objects.count() == 0


def test_inside_atomic_it_is_refused_with_advice(space: spool.Space) -> None:
    with (
        transaction.atomic(),
        pytest.raises(spool.ProtocolError, match="outside of atomic"),
        django_xaspool.transaction(space),
    ):
        pass
    space.put("orders", 1)
    with django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        with pytest.raises(transaction.TransactionManagementError):
            transaction.commit()
        with pytest.raises(spool.ProtocolError), django_xaspool.transaction(space):
            pass
    assert (numbers("orders"), waiting(space)) == ([1], [])


def test_enlist_names_this_call_for_a_connection_of_django(space: spool.Space, tmp_path: Path) -> None:
    with xa.TransactionManager(tmp_path / "log") as manager:
        for given in (connection, connection._connections["default"]):  # the proxy, and its wrapper
            with pytest.raises(spool.InvalidArgument, match=r"django_xaspool\.transaction\(space, using=") as refused:
                manager.prepare_database(given)
            assert "on_commit" in str(refused.value)
        connection.ensure_connection()
        manager.prepare_database(connection.connection)
        space.put("orders", 1)
        with pytest.raises(spool.ProtocolError, match="in an atomic block of Django"), transaction.atomic():
            with manager.transaction() as joint:
                joint.enlist(space)
                joint.enlist(connection.connection)
        assert waiting(space) == [1]


def test_a_block_that_has_committed_the_database_itself_and_fails_is_logged(
    space: spool.Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages return, so the work is repeated."""
    space.put("orders", 1)
    with pytest.raises(ZeroDivisionError), django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        with connection.cursor() as cursor:
            cursor.execute("commit")
        raise ZeroDivisionError("after the commit")
    assert (numbers("orders"), waiting(space)) == ([1], [1])
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "so the work is repeated" in record.message
    assert "ZeroDivisionError: after the commit" in record.message
    caplog.clear()
    with pytest.raises(IntegrityError), django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)  # a failed statement alone ends no transaction
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []


@pytest.mark.parametrize("step", ["before", "in doubt", "after"])
def test_a_killed_program_leaves_both_or_neither(space: spool.Space, step: str, monkeypatch: Any) -> None:
    from xa.manager.last_resource import LastResource
    from xa.manager.outcomes import Outcomes

    space.put("orders", 1)
    connection.close()

    def take() -> None:
        if step == "in doubt":
            LastResource.decide = children.die  # type: ignore[method-assign]
        elif step == "after":
            Outcomes.complete = children.die  # type: ignore[method-assign]
        with django_xaspool.transaction(space.path) as tx:
            insert(tx.get("orders").body)
            if step == "before":
                children.die()

    children.let_die(take)
    try:
        with django_xaspool.transaction(space.path) as tx:  # decides about the dead program's part
            insert(tx.get("orders", timeout=5 if step != "after" else 0).body)
    except spool.Empty:
        assert step == "after"
    assert (numbers("orders"), waiting(space)) == ([1], [])


def test_a_lost_connection_during_the_commit_is_settled_by_the_next_call(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xa.manager.database_connections import Database
    from xa.manager.last_resource import LastResource

    space.put("orders", 1)
    with django_xaspool.transaction(space) as tx:  # prepares, with no branch in doubt
        pass

    def lose(self: LastResource, *_: object) -> bool:
        self._database.close()
        raise spool.CommitUnknown("the connection broke")

    monkeypatch.setattr(LastResource, "_was_committed", lose)
    for kind in Database.__subclasses__():

        def fail(self: Database, end: Any = kind.commit) -> None:
            end(self)
            raise OSError("the answer was lost")

        monkeypatch.setattr(kind, "commit", fail)
    called: list[str] = []
    with pytest.raises(spool.CommitUnknown), django_xaspool.transaction(space) as tx:
        insert(tx.get("orders").body)
        transaction.on_commit(lambda: called.append("unknown"))
    monkeypatch.undo()
    with pytest.raises(spool.Empty), django_xaspool.transaction(space) as tx:
        tx.get("orders")
    assert numbers("orders") == [1]
    assert called == []
