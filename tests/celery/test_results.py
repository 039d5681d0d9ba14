"""The result backend: values by key, and the one commit of a part of a chord."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, signals, states
from celery.app.task import Context
from celery.exceptions import ChordError, Reject

import spool
from celery_xaspool import results, shutdown
from celery_xaspool.results import XaspoolBackend
from tests import door
from tests.celery.conftest import Shop
from tests.celery.tasks import application
from tests.celery.workers import prepared, until
from tests.full import no_room


@pytest.fixture
def backend(own: Shop) -> XaspoolBackend:
    backend: XaspoolBackend = own.app.backend
    return backend


@pytest.fixture
def parts(own: Shop) -> list[Context]:
    """A chord with two parts, sent and not run: the requests of the parts."""
    add, total = own.app.tasks["add"], own.app.tasks["total"]
    chord([add.s(1, 1), add.s(2, 2)])(total.s())
    return requests(own, 2)


def requests(own: Shop, number: int) -> list[Context]:
    """Take messages of tasks, and return them as the requests of a worker."""
    with own.app.connection_for_read() as connection:
        messages = [connection.default_channel.basic_get("celery", no_ack=True) for _ in range(number)]
        return [Context({**message.headers, **message.payload[2], "delivery_info": {}}) for message in messages]


def counted(own: Shop) -> list[str]:
    keys = {message.correlation_id: message.body for message in own.space.browse("celery.results")}
    counts = [str(body).split()[0] for key, body in keys.items() if key and key.startswith("chord-unlock-")]
    return [count for count in counts if count != "ended"]


def test_a_value_is_replaced_and_deleted(backend: XaspoolBackend, own: Shop) -> None:
    assert backend.get("key") is None
    for value in ("one", b"\x00two"):
        backend.set("key", value)
        assert backend.get(b"key") == value
    assert own.space.stats("celery.results").ready == 1
    backend.delete("key")
    assert backend.get("key") is None


def test_results_are_forgotten_and_expire(own: Shop) -> None:
    with application(own.space.path, result_expires=0.5) as app:
        app.backend.expires = 0.01
        app.backend.store_result("short", 1, states.SUCCESS)
        until(lambda: own.space.stats("celery.results").expired == 1)
    own.app.backend.store_result("long", 1, states.SUCCESS)
    [message] = own.space.browse("celery.results")
    assert message.expires_at is not None
    assert message.expires_at - message.enqueued_at == pytest.approx(86_400, abs=5)
    own.app.backend.forget("long")
    assert not list(own.space.browse("celery.results"))


def test_a_read_creates_no_queue(own: Shop) -> None:
    result = own.app.AsyncResult("nothing")
    assert result.state == "PENDING"
    with pytest.raises(results.TimeoutError):
        result.get(timeout=0.1)
    assert results.RESULTS not in own.space.queues()


def test_the_options_of_the_results_are_a_setting(own: Shop) -> None:
    options = {"queue": {"durability": "none"}}
    with application(own.space.path, result_backend_transport_options=options, result_compression="gzip") as app:
        app.backend.store_result("a", "x" * 1000, states.SUCCESS)
        assert app.backend.get_result("a") == "x" * 1000
    assert own.space.queues()["celery.results"].durability == "none"


def test_a_result_waits_for_room_on_the_disk_if_it_is_told_so(own: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """(Otherwise Celery loses the result.) Each retry is logged with one traceback."""
    with application(own.space.path, result_backend_always_retry=True) as app:
        app.backend.store_result("a", 1, states.SUCCESS)
        with door.failing_attempts(no_room, times=2) as failed:
            app.backend.store_result("b", 2, states.SUCCESS)
        assert app.backend.get_result("b") == 2
        assert len(failed) == 2
        assert caplog.text.count("Traceback") == 2


def test_the_last_part_of_a_chord_commits_its_body(backend: XaspoolBackend, own: Shop, parts: list[Context]) -> None:
    backend.mark_as_done(parts[0].id, 2, parts[0])
    assert counted(own) == ["1"]
    backend.mark_as_done(parts[1].id, 4, parts[1])
    assert counted(own) == []
    [body] = own.space.browse("celery")
    assert "[[[2, 4]]" in body.body.replace('\\"', "")


def test_a_failed_part_of_a_chord_keeps_its_traceback(backend: XaspoolBackend, own: Shop, parts: list[Context]) -> None:
    backend.mark_as_failure(parts[0].id, ValueError("no tea"), "line 7", parts[0])
    assert counted(own) == ["1"]
    assert (backend.get_state(parts[0].id), backend.get_traceback(parts[0].id)) == (states.FAILURE, "line 7")


def test_a_part_of_a_chord_that_ignores_its_result_is_counted_with_it(
    backend: XaspoolBackend, own: Shop, parts: list[Context]
) -> None:
    for part, value in zip(parts, (2, 4), strict=True):
        part.ignore_result = True
        backend.mark_as_done(part.id, value, part, store_result=False)
    [body] = own.space.browse("celery")
    assert "[[[2, 4]]" in body.body.replace('\\"', "")


def test_the_last_part_of_a_chord_knows_its_size_although_the_part_began_before_the_size_was_set(
    backend: XaspoolBackend, own: Shop, parts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another part ends at the moment when this part reads the size, unless this part holds the counter."""
    size, get = backend.get_key_for_group(parts[0].group, ".s"), backend.get
    backend.delete(size)

    def ends() -> None:
        monkeypatch.undo()
        backend.set_chord_size(parts[0].group, 2)
        other = threading.Thread(target=lambda: own.app.backend.mark_as_done(parts[1].id, 4, parts[1]))
        other.start()
        other.join()

    def reading(key: Any) -> Any:
        value = get(key)
        if key == size and own.space.stats("celery.results").claimed == 0:
            ends()
        return value

    monkeypatch.setattr(backend, "get", reading)
    backend.mark_as_done(parts[0].id, 2, parts[0])
    if counted(own) == ["1"]:
        ends()
    [body] = own.space.browse("celery")
    assert "[[[2, 4]]" in body.body.replace('\\"', "")
    assert counted(own) == []


def test_who_waits_for_a_chord_gets_the_error_of_the_part_that_failed(backend: XaspoolBackend, own: Shop) -> None:
    """The error of the part and the error of the body are one commit, so the waiter sees both."""
    fail, total = own.app.tasks["fail"], own.app.tasks["total"]
    result = chord([fail.s()])(total.s())
    [request] = requests(own, 1)

    def part_fails(*_: Any) -> None:
        backend.mark_as_failure(request.id, ValueError("this part fails"), request=request)

    with pytest.raises(ValueError, match="this part fails"):
        result.get(timeout=60, on_interval=part_fails)


def test_only_the_last_part_of_a_chord_reads_the_group(
    backend: XaspoolBackend, parts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group names all parts, so the time of a chord would grow with the square of its size."""
    group, get, read = backend.get_key_for_group(parts[0].group), backend.get, list[Any]()

    def reading(key: Any) -> Any:
        read.append(key)
        return get(key)

    monkeypatch.setattr(backend, "get", reading)
    backend.mark_as_done(parts[0].id, 2, parts[0])
    assert group not in read
    backend.mark_as_done(parts[1].id, 4, parts[1])
    assert read.count(group) >= 1


def test_a_part_of_a_chord_that_runs_again_is_not_counted_again(
    backend: XaspoolBackend, own: Shop, parts: list[Context]
) -> None:
    for _ in range(2):
        backend.mark_as_done(parts[0].id, 2, parts[0])
    backend.mark_as_failure(parts[0].id, ValueError("later"), request=parts[0])
    backend.mark_as_revoked(parts[0].id, "later", parts[0])
    assert counted(own) == ["1"]
    assert backend.get_state(parts[0].id) == states.SUCCESS


@pytest.mark.parametrize("state", [states.SUCCESS, states.REVOKED])
def test_a_task_id_that_several_chords_share_is_counted_by_each_chord(own: Shop, state: str) -> None:
    """Celery numbers a signature once, so that an application may use it in several chords, or twice in one."""
    add, total = own.app.tasks["add"], own.app.tasks["total"]
    shared, backend = add.s(1, 1), own.app.backend
    shared.freeze()
    for _ in range(2):
        chord([shared, add.s(2, 2), shared])(total.s())
    for request in requests(own, 6) * 2:
        if state == states.SUCCESS:
            backend.mark_as_done(request.id, 2, request)
        else:
            backend.mark_as_revoked(request.id, "", request)
    assert counted(own) == []
    assert own.space.stats("celery").ready == (2 if state == states.SUCCESS else 0)


def test_a_frozen_chord_that_is_sent_again_counts_its_parts_again(backend: XaspoolBackend, own: Shop) -> None:
    """Each part runs twice in each run of the chord, as if its worker died before the ack."""
    task = chord([own.app.tasks["add"].s(1, 1), own.app.tasks["add"].s(2, 2)], own.app.tasks["total"].s())
    task.freeze()
    for _ in range(2):
        task.apply_async()
        parts = requests(own, 2)
        for part, counts in zip(parts * 2, (["1"], [], [], []), strict=True):
            backend.mark_as_done(part.id, 2, part)
            assert counted(own) == counts
        assert own.space.purge("celery") == 1, "the body is sent once"


def test_a_part_of_a_chord_that_two_processes_run_at_once_is_counted_once(
    backend: XaspoolBackend, own: Shop, parts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a pool can outlive its killed worker, and end the task while another worker runs it again."""
    hold = backend._hold

    def holding(*args: Any) -> Any:
        monkeypatch.undo()
        other = threading.Thread(target=lambda: own.app.backend.mark_as_done(parts[0].id, 2, parts[0]))
        other.start()
        other.join()
        return hold(*args)

    monkeypatch.setattr(backend, "_hold", holding)
    backend.mark_as_done(parts[0].id, 2, parts[0])
    assert counted(own) == ["1"]


@pytest.mark.parametrize("chord_expires", [None, 1, 10_000_000])
def test_a_chord_may_last_longer_than_results_live(own: Shop, chord_expires: int | None) -> None:
    with application(own.space.path, result_expires=1, result_chord_expires=chord_expires) as app:
        app.backend.expires = 0.01
        chord([app.tasks["add"].s(1, 1), app.tasks["add"].s(2, 2)])(app.tasks["total"].s()).parent.save()
        run = [message.expires_at or 0 for message in own.space.browse("celery.results")]
        assert len(run) == 3
        assert min(run) > time.time() + 300 * 86_400, "the life of results does not begin before the parts run"
        first, last = requests(own, 2)
        app.backend.mark_as_done(first.id, 2, first)
        until(lambda: app.backend.get_state(first.id) == states.PENDING)
        app.backend.mark_as_done(last.id, 4, last)
    [body] = own.space.browse("celery")
    assert "[[[2, 4]]" in body.body.replace('\\"', "")


def test_a_part_of_a_chord_waits_for_the_counter_while_its_holder_lives(
    backend: XaspoolBackend, own: Shop, parts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder may be stopped. If the part did not wait, the others would go on as if the chord were over."""
    monkeypatch.setattr(results, "_HELD_SECONDS", 0.01)
    looks, is_under_way = list[int](), shutdown.is_under_way
    monkeypatch.setattr(shutdown, "is_under_way", lambda: looks.append(1) or is_under_way())
    with own.space.claims() as holder:
        assert holder.take("celery.results", correlation_id=f"chord-unlock-{parts[0].group}")
        waiting = threading.Thread(target=lambda: own.app.backend.mark_as_done(parts[0].id, 2, parts[0]))
        waiting.start()
        until(lambda: len(looks) > 5)
        assert backend.get_state(parts[0].id) == states.PENDING
    waiting.join()
    assert counted(own) == ["1"]


def test_a_shutdown_ends_wait_for_counter_of_a_chord(backend: XaspoolBackend, own: Shop, parts: list[Context]) -> None:
    """The task returns to its queue."""
    with own.space.claims() as holder:
        assert holder.take("celery.results", correlation_id=f"chord-unlock-{parts[0].group}")
        signals.worker_shutting_down.send(sender="worker@test", sig="SIGTERM", how="Warm", exitcode=0)
        try:
            with pytest.raises(Reject, match="the worker shuts down") as error:
                backend.mark_as_done(parts[0].id, 2, parts[0])
        finally:
            signals.worker_init.send(sender=None)
        assert error.value.requeue
    backend.mark_as_done(parts[0].id, 2, parts[0])
    assert counted(own) == ["1"]


@pytest.mark.parametrize("lost", ["all", "mark", "mark, and the part runs again", "all but the counter"])
def test_a_chord_whose_records_were_deleted_fails_at_once(
    backend: XaspoolBackend, own: Shop, parts: list[Context], caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """A purge leaves the counter if another part holds the counter at that moment."""
    with own.space.claims() as claims:
        if lost == "all but the counter":
            assert claims.take("celery.results", correlation_id=f"chord-unlock-{parts[0].group}")
        if "mark" not in lost:
            own.space.purge("celery.results")
    backend.mark_as_done(parts[0].id, 2, parts[0])
    for message in own.space.browse("celery.results") if "mark" in lost else ():
        if parts[0].id in (message.correlation_id or ""):
            own.space.delete(message.id)
    if "again" in lost:
        backend.store_result(parts[0].id, None, states.STARTED)
    for _ in range(2):
        backend.mark_as_done(parts[1].id, 4, parts[1])
    body = own.app.AsyncResult(parts[0].chord["options"]["task_id"])
    with pytest.raises(ChordError, match="were deleted"):
        body.get(timeout=0.01)
    assert backend.get_result(parts[1].id) == 4
    assert own.space.stats("celery").ready == 0
    assert [record.levelname for record in caplog.records if record.name == "celery_xaspool"] == ["ERROR"]


def test_a_part_of_a_chord_waits_for_room_on_the_disk_if_the_application_says(own: Shop, parts: list[Context]) -> None:
    with application(own.space.path, result_backend_always_retry=True) as app:
        with door.failing_attempts(no_room, times=1):
            app.backend.mark_as_done(parts[0].id, 2, parts[0])
    assert counted(own) == ["1"]


def test_a_part_of_a_chord_that_fails_to_send_the_body_leaves_no_trace(
    backend: XaspoolBackend, own: Shop, parts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.mark_as_done(parts[0].id, 2, parts[0])

    def failing(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt  # as if the process ended here

    monkeypatch.setattr(own.app.amqp, "_retry_publish", failing)
    with pytest.raises(KeyboardInterrupt):
        backend.mark_as_done(parts[1].id, 4, parts[1])
    monkeypatch.undo()
    assert counted(own) == ["1"]
    assert backend.get_state(parts[1].id) == states.PENDING
    backend.mark_as_done(parts[1].id, 4, parts[1])
    assert own.space.stats("celery").ready == 1


def test_programs_that_import_celery_know_the_scheme(tmp_path: Path) -> None:
    code = (
        "import sys; from celery import Celery; url = f'xaspool://{sys.argv[1]}/space'; "
        "app = Celery('x', broker=url, backend=url); print(app.connection().as_uri(), app.backend.as_uri())"
    )
    url = f"xaspool://{tmp_path}/space"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == ([url, url], "")


def test_the_registration_imports_only_the_table_of_transports() -> None:
    code = (
        "import sys, kombu.transport, json; before = {*sys.modules}; import celery_xaspool.register; "
        "print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["celery_xaspool", "celery_xaspool.register"]


def test_a_result_url_without_a_path_is_refused() -> None:
    with pytest.raises(spool.InvalidArgument, match="xaspool:///var/spool/shop"):
        Celery("x", backend="xaspool://shop").backend  # noqa: B018


def test_results_and_broker_may_lie_in_two_spaces(own: Shop, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        prepared(tmp_path / "other") as other,
        application(own.space.path, result_backend=f"xaspool://{other.path}") as app,
    ):
        app.backend.store_result("a", 1, states.SUCCESS)
        assert other.stats("celery.results").ready == 1
        assert "celery.results" not in own.space.queues()
