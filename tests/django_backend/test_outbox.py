"""The outbox: a task is enqueued if and only if the transaction of the database is committed."""

import logging
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

import spool
from django_xaspool import XaspoolBackend
from django_xaspool.models import OutboxTask
from django_xaspool.outbox import Outbox
from django_xaspool.tasks import exceptions, signals, task_backends
from tests.django_backend import jobs
from tests.django_backend.conf import tasks_in


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    """The space of a back end with an outbox."""
    with override_settings(TASKS=tasks_in(tmp_path / "space", outbox=True)):
        yield task_backends["default"].space_with("default", "mail")
    OutboxTask.objects.all().delete()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], object]]:
    """Make a step of each move fail, as if the process died in it."""

    def let_die(step: str) -> None:
        def die(*_: object, **__: object) -> None:
            raise RuntimeError("killed")

        monkeypatch.setattr(Outbox, step, die)

    yield let_die
    monkeypatch.undo()


def leave_a_row(dying: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enqueue a task whose process dies before the put."""
    dying("_put_new")
    jobs.add.enqueue(1)
    monkeypatch.undo()


def outbox() -> Outbox:
    found = task_backends["default"].outbox
    assert isinstance(found, Outbox)
    return found


def arguments(space: spool.Space, queue: str = "default") -> list[Any]:
    return [message.body["args"][0] for message in space.browse(queue)]


def rows() -> int:
    return OutboxTask.objects.count()


def work() -> None:
    call_command("spool_worker", once=True, stdout=StringIO())


def test_x19_a_row_and_its_task_are_both_or_neither(space: spool.Space) -> None:
    with transaction.atomic():
        jobs.add.enqueue(1)
        with transaction.atomic():
            jobs.add.enqueue(2)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # rolls back to a savepoint
            jobs.add.enqueue(3)
            raise ZeroDivisionError
        with transaction.atomic(savepoint=False):
            jobs.add.enqueue(4)
        assert arguments(space) == []
        assert rows() == 3
    assert (arguments(space), rows()) == ([1, 2, 4], 0)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        jobs.add.enqueue(5)
        with transaction.atomic():
            jobs.add.enqueue(6)
        raise ZeroDivisionError
    with transaction.atomic():
        jobs.add.enqueue(7)
        transaction.set_rollback(True)
    assert (arguments(space), rows()) == ([1, 2, 4], 0)
    jobs.add.enqueue(8)  # outside of a transaction
    assert (arguments(space), rows()) == ([1, 2, 4, 8], 0)


def test_all_tasks_of_a_block_are_moved_by_few_statements(space: spool.Space) -> None:
    with CaptureQueriesContext(connection) as seen, transaction.atomic():
        for number in range(150):
            jobs.add.enqueue(number)
    assert arguments(space) == list(range(150))
    assert len([query for query in seen.captured_queries if "INSERT" not in query["sql"]]) < 15


def test_a_task_is_known_as_soon_as_it_is_enqueued(space: spool.Space) -> None:
    with transaction.atomic():
        result = jobs.add.enqueue(1, b=2)
        result.refresh()
        assert (result.status, jobs.add.get_result(result.id)) == ("READY", result)
        transaction.set_rollback(True)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


def test_a_task_whose_process_died_before_the_put_runs_once(space: spool.Space, dying: Any, monkeypatch: Any) -> None:
    dying("_put_new")
    result = jobs.add.enqueue(1)
    assert (arguments(space), rows()) == ([], 1)
    monkeypatch.undo()
    work()
    result.refresh()
    assert (result.status, rows(), arguments(space)) == ("SUCCESSFUL", 0, [])


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("state", ["in its queue", "failed before it ran", "has run"])
def test_a_task_whose_process_died_after_the_put_runs_once_however_long_ago_it_was(
    space: spool.Space, dying: Any, monkeypatch: pytest.MonkeyPatch, window: int, state: str
) -> None:
    """The deduplication window is 0, as if it had ended."""
    space.change_queue("default", deduplication_window=window)
    dying("delete")
    jobs.add.enqueue(1)
    assert (arguments(space), rows()) == ([1], 1)
    monkeypatch.undo()
    ran = []
    if state == "failed before it ran":
        with space.claims() as claims:
            claims.reject(claims.take("default", 1), "of the test").result()
    elif state == "has run":
        monkeypatch.setattr(Outbox, "move_all", lambda self: ran.append("late"))
        work()
        assert rows() == 0
        monkeypatch.undo()
    outbox().move_all()
    assert rows() == 0
    in_queue, failed, done = (len(list(space.browse(name))) for name in ("default", "django-failed", "django-results"))
    assert (in_queue, failed, done) == {
        "in its queue": (1, 0, 0), "failed before it ran": (0, 1, 0), "has run": (0, 0, 1)
    }[state]  # fmt: skip


def test_a_mover_that_stood_still_since_it_read_the_row_puts_nothing(
    space: spool.Space, dying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the window ended, and the task ran: only the row shows that it was moved."""
    space.change_queue("default", deduplication_window=0)
    leave_a_row(dying, monkeypatch)
    read = list(OutboxTask.objects.all())
    work()
    outbox()._move_together(read)
    assert arguments(space) == []


def test_two_movers_of_one_row_put_it_once_and_the_second_waits_for_the_first(
    space: spool.Space, dying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_a_row(dying, monkeypatch)
    [row] = OutboxTask.objects.all()
    backend = task_backends["default"]
    with space.transaction() as first:
        assert backend.put_once(first, row.pk, "default", {"run_after": None, "priority": 0, "task": "a", "args": [1]})
        monkeypatch.setattr("django_xaspool.outbox._LOCK_SECONDS", 0.01)
        outbox().move_all()  # does not wait for a process that stands still
        assert rows() == 1
    monkeypatch.undo()
    outbox().move_all()
    assert (arguments(space), rows()) == ([1], 0)


def test_a_task_that_cannot_be_put_stays_and_fails_no_request(space: spool.Space, caplog: pytest.LogCaptureFixture):
    space.change_queue("default", max_messages=1)
    with caplog.at_level(logging.WARNING, "django_xaspool"):
        for number in range(3):
            with transaction.atomic():
                jobs.add.enqueue(number)
        jobs.double.enqueue("tea")  # of another queue
    assert (arguments(space), arguments(space, "mail"), rows()) == ([0], ["tea"], 2)
    [record] = [record for record in caplog.records if record.name == "django_xaspool"]  # logged once
    assert "the tasks of the queue default remain in the outbox of the database 'default'" in record.message
    assert "Full" in record.message
    space.get("default")
    outbox().move_all()
    assert (arguments(space), rows()) == ([1], 1)
    space.change_queue("default", max_messages=None)
    outbox().move_all()
    assert (arguments(space), rows()) == ([1, 2], 0)


def test_one_row_that_no_queue_accepts_stops_no_other(space: spool.Space, dying: Any, monkeypatch: Any) -> None:
    leave_a_row(dying, monkeypatch)
    OutboxTask.objects.create(id="0", backend="default", queue="no queue/", body='{"task": "a"}')
    OutboxTask.objects.create(id="1", backend="default", queue="default", body="no json")
    outbox().move_all()
    assert (arguments(space), rows()) == ([1], 2)


@pytest.mark.parametrize("argument", ["\ud800", object()])
def test_a_task_that_no_put_would_accept_is_refused_in_the_transaction(space: spool.Space, argument: Any) -> None:
    with transaction.atomic(), pytest.raises((spool.InvalidArgument, TypeError)):
        jobs.add.enqueue(argument)
    assert rows() == 0


def test_rows_of_dead_processes_are_moved_after_a_later_enqueue(
    space: spool.Space, dying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_a_row(dying, monkeypatch)
    monkeypatch.setattr("django_xaspool.outbox._OTHERS_SECONDS", -1.0)
    jobs.add.enqueue(2)
    assert (sorted(arguments(space)), rows()) == ([1, 2], 0)


def test_the_signal_is_sent_once_by_the_process_that_puts(space: spool.Space, dying: Any, monkeypatch: Any) -> None:
    seen = []

    def receive(task_result: Any, **_: Any) -> None:
        seen.append((task_result.id, space.find("default", correlation_id=task_result.id) is not None))

    signals.task_enqueued.connect(receive)
    try:
        with transaction.atomic():
            result = jobs.add.enqueue(1)
            assert seen == []
        dying("delete")
        later = jobs.add.enqueue(2)
        monkeypatch.undo()
        outbox().move_all()
    finally:
        signals.task_enqueued.disconnect(receive)
    assert seen == [(result.id, True), (later.id, True)]


def test_a_task_that_enqueues_a_task_in_an_atomic_block(space: spool.Space, tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs.fail_after_child.enqueue(str(log))
    work()
    assert log.read_text().split()[1] == "child"


def test_a_program_that_commits_by_itself_has_its_tasks_moved_by_a_worker(space: spool.Space) -> None:
    transaction.set_autocommit(False)
    try:
        jobs.add.enqueue(1)
        transaction.rollback()
        jobs.add.enqueue(2)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert rows() == 1
    outbox().move_all()
    assert arguments(space) == [2]


def test_a_failed_statement_after_the_enqueue_rolls_both_back(space: spool.Space) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        jobs.add.enqueue(1)
        [row] = OutboxTask.objects.all()
        OutboxTask.objects.create(id=row.pk, backend="", queue="", body="")
    assert (arguments(space), rows()) == ([], 0)


def check(**settings: Any) -> str:
    """Return the output of ``manage.py check``."""
    out = StringIO()
    with override_settings(**settings):
        try:
            call_command("check", stdout=out, stderr=out)
        except SystemCheckError as error:
            return str(error)
    return out.getvalue()


def test_the_check_of_django_names_a_missing_application_or_table(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    assert "no issues" in check()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    assert "E003) the database 'default' of the outbox has AUTOCOMMIT = False" in check()
    monkeypatch.undo()
    assert "E001) the outbox needs" in check(INSTALLED_APPS=[])
    with override_settings(INSTALLED_APPS=[]), pytest.raises(ImproperlyConfigured, match="INSTALLED_APPS"):
        jobs.add.enqueue(1)
    with connection.schema_editor() as editor:
        editor.delete_model(OutboxTask)
    try:
        said = check()
        assert "W001) the database 'default' has no table django_xaspool_outboxtask" in said
        assert "manage.py migrate django_xaspool --database default" in said
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(OutboxTask)
    router = type("Router", (), {"allow_migrate": lambda *_, **__: False})()
    assert "E002) DATABASE_ROUTERS allow no table" in check(DATABASE_ROUTERS=[router])


def test_the_migration_is_complete() -> None:
    call_command("makemigrations", "django_xaspool", check=True, dry_run=True, stdout=StringIO())


@pytest.mark.parametrize("options", [{"outbox": 1}, {"outbox": True, "database": None}])
def test_a_wrong_option_of_the_outbox_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ImproperlyConfigured, match="outbox is True or False, and needs a database"):
        XaspoolBackend("default", {"OPTIONS": {"space": "/tmp", **options}})


def test_while_the_database_is_away_no_task_uses_an_attempt(space: spool.Space, monkeypatch: Any) -> None:
    result = jobs.add.enqueue(1)
    monkeypatch.setattr(Outbox, "move_all", lambda self: None)
    monkeypatch.setattr(Outbox, "rows", PropertyMock(side_effect=OperationalError("away")))
    work()
    monkeypatch.undo()
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 0)
    work()
    assert jobs.add.get_result(result.id).attempts == 1
