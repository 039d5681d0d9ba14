"""Settings that have no effect here are named, and a Celery that is too old is refused."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kombu import Connection, Producer, Queue

import spool
from celery_xaspool import broker_options
from tests.celery.tasks import application


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_options, "_named", set())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"xaspool://{tmp_path}/space"


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("visibility_timeout", "a task returns when its worker dies"),
        ("priority_steps", "the highest number comes first"),
        ("polling_interval", "nothing is polled"),
        ("qeue", "did you mean queue?"),
        ("something", "the options are queue, native_eta, deadletter_queue"),
    ],
)
def test_an_option_of_another_broker_is_named_once(
    url: str, caplog: pytest.LogCaptureFixture, option: str, sentence: str
) -> None:
    for _ in range(2):
        with Connection(url, transport_options={option: 3600, "max_retries": 3, "native_eta": True}) as connection:
            connection.connect()
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"broker_transport_options: the option {option} has no effect with xaspool: ")
    assert sentence in line


def test_an_option_of_another_result_backend_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"retry_policy": {"timeout": 5.0}, "global_keyprefix": "shop_"}
    with application(tmp_path / "space", result_backend_transport_options=given) as app:
        app.backend.store_result("id", 1, "SUCCESS")
    assert "result_backend_transport_options: the option retry_policy has no effect" in caplog.text
    assert "global_keyprefix" not in caplog.text


def test_an_argument_of_a_queue_that_has_no_effect_is_named(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Connection(url) as connection:
        Queue("tea", max_length=5)(connection).declare()
        Queue("reply", auto_delete=True, expires=5)(connection).declare()
    assert caplog.text.count("has no effect") == 1
    assert "queue tea: the option x-max-length has no effect with xaspool: set max_messages" in caplog.text


def test_a_queue_that_ignores_priorities_is_named_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Connection(url) as connection:
        for queue in (Queue("tea"), Queue("coffee", max_priority=9)):
            for priority in (0, 5, 6):
                Producer(connection).publish("x", routing_key=queue.name, declare=[queue], priority=priority)
    assert caplog.text.count("ignores the priorities of its messages") == 1
    assert "spool-admin queue change tea --order priority" in caplog.text
    spool.shared(url.removeprefix("xaspool://")).close()


@pytest.mark.parametrize("module", ["transport", "results"])
@pytest.mark.parametrize("version", ["5.5.3", "5.6.2", "4.4.7"])
def test_a_celery_that_is_too_old_is_refused_at_load(module: str, version: str) -> None:
    code = f"import celery; celery.__version__ = {version!r}; import celery_xaspool.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"celery.exceptions.ImproperlyConfigured: xaspool needs Celery 5.7 or newer, not {version}: run "
        "pip install --upgrade 'celery>=5.7'"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retires": 1}, "a queue has no option retires: did you mean retries?"),
        (5, "the options of a queue are a dict"),
        ({"role": "state"}, "the role of this queue is work or error, not 'state'"),
        ({"error_queue": "celery.results"}, "error_queue is celery.results, which has other messages"),
    ],
)
def test_a_wrong_option_of_a_queue_is_an_error_also_if_the_queue_exists(options: object, said: str, url: str) -> None:
    with spool.create(url.removeprefix("xaspool://")) as space:
        space.create_queue("tea")
    with pytest.raises(spool.InvalidArgument, match=re.escape(said)):
        Connection(url, transport_options={"queue": options}).connect()
    with pytest.raises(spool.InvalidArgument, match=re.escape(said)), Connection(url) as connection:
        Queue("tea", queue_arguments={"xaspool": options})(connection).declare()
