"""``spool-admin metrics``: each metric of the table, hostile label values, and the server."""

import grp
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import spool
import xa
from spool.admin.findings import Finding, Kind
from spool.admin.metrics import OpenTransaction
from spool.admin.published import publish
from spool.coordination import meters
from spool.policies.subscriptions import register
from tests.scripts.conftest import Run, execute, one_line, prepare, start
from xaspool_scripts import admin_metrics, prometheus
from xaspool_scripts.prometheus import METRICS, MOST_CHARACTERS, Collection, text_of

pytest.importorskip("prometheus_client")

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
KINDS = {metric.name: metric.kind for metric in METRICS}
Labels = frozenset[tuple[str, str]]


def parsed(text: bytes | str) -> dict[str, dict[Labels, float]]:
    """Return the samples of a text by name and by labels without ``space``. The types are those of the table."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert KINDS[name] == family.type
        for sample in family.samples:
            labels = frozenset((key, value) for key, value in sample.labels.items() if key != "space")
            assert sample.labels.keys() >= {"space"}
            assert labels not in found.setdefault(sample.name, {}), "Prometheus refuses equal label sets"
            found[sample.name][labels] = sample.value
    return found


def value(text: bytes | str, name: str, **labels: str) -> float:
    return parsed(text)[name][frozenset(labels.items())]


def text_with(metrics: spool.SpaceMetrics, **fields: object) -> bytes:
    """Return the text of metrics with other values of some fields."""
    return text_of(Collection(metrics.space, replace(metrics, **fields)))  # type: ignore[arg-type]


@pytest.fixture
def figures(path: Path) -> spool.SpaceMetrics:
    with spool.open(path) as space:
        return space.metrics()


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_table_has_a_sample_in_a_space_that_has_everything(path: Path) -> None:
    prepare(path, xa.Xid(7, b"g", b"b"))
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors", retries=1)
        space.put_many("orders", [b"x"] * 3)
        register(space._store, "seen", ("orders",), 3600.0)
        (path / "quarantine" / "order.json").touch()
        with space.transaction() as transaction:
            transaction.get("orders")
            report_everything(space._store.meters)
            found = space.metrics()
    finding = Finding(Kind.ROLLED_BACK, "active/1", "a branch whose owner died", "rolled back")
    found = replace(found, recovery=spool.RecoveryRecord(1_700_000_000.0, 0.5, (finding, finding)))
    samples = parsed(text_of(Collection(found.space, found, seconds=0.25)))
    assert {name for name in KINDS if name not in samples and f"{name}_count" not in samples} == set()
    for name, labels, number in (
        ("xaspool_up", {}, 1),
        ("xaspool_collection_duration_seconds", {}, 0.25),
        ("xaspool_queue_messages", {"queue": "orders", "state": "ready"}, 2),
        ("xaspool_queue_messages", {"queue": "orders", "state": "claimed"}, 1),
        ("xaspool_queue_messages", {"queue": "orders", "state": "in_doubt"}, 1),
        ("xaspool_queue_enqueued_total", {"queue": "orders"}, 3),
        ("xaspool_queue_role", {"queue": "errors", "role": "error"}, 1),
        ("xaspool_transactions", {"state": "claimed"}, 1),
        ("xaspool_transactions", {"state": "in_doubt"}, 1),
        ("xaspool_quarantined_files", {"kind": "damaged"}, 0),
        ("xaspool_quarantined_files", {"kind": "other"}, 1),
        ("xaspool_subscription_unread_messages", {"subscription": "seen"}, 0),
        ("xaspool_outcomes_total", {"program": "worker", "queue": "orders", "effect": "delivered"}, 5),
        ("xaspool_route_up", {"queue": "orders", "service": "http://localhost/a"}, 1),
        ("xaspool_route_up", {"queue": "orders", "service": "http://localhost/b"}, 0),
        ("xaspool_workers", {"queue": "orders"}, 4),
        ("xaspool_service_duration_seconds_count", {"queue": "orders"}, 2),
        ("xaspool_service_duration_seconds_sum", {"queue": "orders"}, 0.25 + 7.0),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "0.1"}, 0),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "0.25"}, 1),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "5"}, 1),
        ("xaspool_service_duration_seconds_bucket", {"queue": "orders", "le": "+Inf"}, 2),
        ("xaspool_recovery_timestamp_seconds", {}, 1_700_000_000.0),
        ("xaspool_recovery_findings", {"kind": "rolled back"}, 2),
    ):  # fmt: skip
        assert samples[name][frozenset(labels.items())] == pytest.approx(number), (name, labels)


def report_everything(own: meters.Meters) -> None:
    """Report each meter that the engine, the workers and the forwarder have."""
    for name in ("commit_requests", "compactions", "compacted_files", "reclaims", "reclaimed_commits"):
        own.add(name)
    service = meters.duration_keys("service_seconds", "orders")
    own.record(durations=[(meters.duration_keys(name), 0.002) for name in ("commit_seconds", "flush_seconds")])
    own.record(durations=[(service, 0.25), (service, 7.0)])
    own.add("rounds", "orders")
    own.add("outcomes", "worker", "orders", "delivered", number=5)
    own.change("workers", "orders", by=4)
    own.change("workers_paused", "orders", by=1)
    own.change("route", "orders", "http://localhost/a", by=1)
    own.change("route", "orders", "http://localhost/b", by=1)
    own.change("route_down", "orders", "http://localhost/b", by=1)
    own.change("destination", "orders", "errors", by=1)


def test_names_kinds_and_units_follow_the_conventions_of_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("xaspool_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds"), metric.name
        assert not {"le", "space", "job", "instance"} & set(metric.labels), metric.name
        assert metric.help.endswith("."), metric.name


def test_buckets_are_those_that_the_engine_counts() -> None:
    assert prometheus.BOUNDS_SECONDS == meters.BOUNDS_SECONDS


def test_the_page_has_the_table_of_all_metrics() -> None:
    assert prometheus.page_table() in PAGE.read_text(), "run: python -m xaspool_scripts.prometheus docs/metrics.md"


def test_the_table_of_a_page_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / "metrics.md"
    before, after = PAGE.read_text().split(prometheus.page_table())
    page.write_text(f"{before}| metric | kind |\n|---|---|\n| old | gauge |\n{after}")
    prometheus.main(page)
    assert page.read_text() == PAGE.read_text()


# -- hostile values ----------------------------------------------------------------------------------------------------

HOSTILE = (
    'a "quoted" name', "two\nlines", "\x1b[31mred\x1b[0m", "back\\slash", "tab\there", "nul\0", "‮reversed",
    "\ud800", "ü€🙂", "", 'x"} 1\nxaspool_up{a="', "\r", "x" * 100_000, "\x1b" * 100_000,
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_no_label_value_breaks_the_text(figures: spool.SpaceMetrics, text: str) -> None:
    held = OpenTransaction("claimed", text, 1, text, 0.0, {"orders": 1})
    subscription = spool.SubscriptionState(("orders",), 1, 1, 1.0, 1, 1)
    found = text_with(
        figures,
        space=text,
        transactions=(held,),
        subscriptions={text: subscription},
        counts={("outcomes", text, text, text): 1, ("rounds", text): 1},
        states={("route", "orders", text): 1, ("destination", "orders", text): 1},
    )
    samples = parsed(found)
    assert samples["xaspool_up"] == {frozenset(): 1}
    shown = {label for values in samples.values() for labels in values for _, label in labels}
    assert all(label.isprintable() and len(label) <= MOST_CHARACTERS for label in shown)
    assert len(found) < 50_000


def test_long_values_with_the_same_beginning_remain_different(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", "x" * 300 + end): 1 for end in "ab"}
    assert len(parsed(text_with(figures, counts=counts))["xaspool_rounds_total"]) == 2


def test_values_that_become_equal_are_added(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", "\n"): 1, ("rounds", r"\n"): 2}
    assert value(text_with(figures, counts=counts), "xaspool_rounds_total", queue=r"\n") == 3
    durations = {("service_seconds", queue, "1"): 1 for queue in ("\n", r"\n")}
    count = value(text_with(figures, counts=durations), "xaspool_service_duration_seconds_count", queue=r"\n")
    assert count == 2


def test_a_metric_has_at_most_two_thousand_label_sets(figures: spool.SpaceMetrics) -> None:
    counts = {("rounds", f"q{number:05}"): 1 for number in reversed(range(3000))}
    text = text_with(figures, counts=counts)
    found = parsed(text)["xaspool_rounds_total"]
    assert value(text, "xaspool_omitted_label_sets") == 1000
    assert value(text_with(figures), "xaspool_omitted_label_sets") == 0
    assert len(found) == 2000
    assert frozenset({("queue", "q00000")}) in found
    assert frozenset({("queue", "q02999")}) not in found


def test_meters_of_a_damaged_file_are_left_out(figures: spool.SpaceMetrics) -> None:
    counts = {
        ("rounds",): 1, ("rounds", "a", "b"): 1, ("rounds", "orders"): -5, ("compactions",): -(2**63),
        ("commit_seconds", "nan"): 3, ("commit_seconds", "-1"): 3, ("commit_seconds", "soon"): 3,
        ("commit_seconds", "0.5"): -3, ("commit_seconds", "total"): -1, ("commit_seconds", "9"): 1, ("",): 1,
    }  # fmt: skip
    states = {("route", "orders"): 1, ("route", "orders", "http://localhost"): -1, ("workers",): 1}
    found = parsed(text_with(figures, counts=counts, states=states))
    assert found["xaspool_rounds_total"] == {frozenset({("queue", "orders")}): 0}
    assert found["xaspool_compactions_total"] == {frozenset(): 0}
    assert found["xaspool_commit_duration_seconds_count"] == {frozenset(): 1}
    assert found["xaspool_commit_duration_seconds_sum"] == {frozenset(): 0}
    assert not {"xaspool_route_up", "xaspool_workers"} & found.keys()


@pytest.mark.parametrize(
    ("service", "shown"),
    [
        ("http://user:word@host:80/path?key=word#word", "http://host:80/path"),
        ("https://word@host/@me", "https://host/@me"),
        ("http://a@b@host/", "http://host/"),
        ("http://user:word/word@host/", "http://…"),
        ("http://user:word?@host/", "http://…"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("kafka://a:9092,b:9092/topic?sasl.password=word", "kafka://a:9092,b:9092/topic"),
        ("http:word", "http:…"),
        (" http://user:word@host", " http:…"),
        ("exec:/bin/send --password word", "exec:/bin/send"),
        ("exec:", "exec:"),
        ("python:shop.services:bill", "python:shop.services:bill"),
        ("file:/out?x", "file:/out?x"),
        ("queue:bills@/other", "queue:bills@/other"),
        ("queue:bills@spool://user:word@host/x", "queue:bills@spool://host/x"),
        ("orders", "orders"),
    ],
)
def test_a_service_is_shown_without_secrets(figures: spool.SpaceMetrics, service: str, shown: str) -> None:
    assert prometheus.without_secrets(service) == shown
    found = text_with(figures, states={("route", "orders", service): 1, ("route_down", "orders", service): 1})
    assert b"word" not in found
    assert value(found, "xaspool_route_up", queue="orders", service=shown) == 0


def test_a_route_that_is_down_for_one_password_is_down(figures: spool.SpaceMetrics) -> None:
    states = {("route", "q", "http://a:b@host"): 1, ("route", "q", "http://c:d@host"): 1}
    states[("route_down", "q", "http://a:b@host")] = 1
    assert value(text_with(figures, states=states), "xaspool_route_up", queue="q", service="http://host") == 0


# -- the command -------------------------------------------------------------------------------------------------------


def test_it_prints_the_metrics_once(path: Path, run: Run) -> None:
    with spool.open(path) as space:
        space.put("orders", b"four")
        done = run("metrics")
    assert done.code == 0
    assert value(done.text, "xaspool_queue_bytes", queue="orders") == 4
    assert f'xaspool_up{{space="{path}"}} 1.0' in done.text


def test_json_has_the_same_samples(path: Path, run: Run) -> None:
    samples = {(each["name"], frozenset(each["labels"].items())) for each in run("metrics", "--json").objects}
    printed = parsed(run("metrics").text)
    assert {(name, labels - {("space", str(path))}) for name, labels in samples} == {
        (name, labels) for name, values in printed.items() for labels in values
    }


COUNTING = """
import sys
import spool

with spool.open(sys.argv[1]) as space:
    space.put("orders", b"x")
    space._store.meters.add("rounds", "orders", number=int(sys.argv[2]))
    space._store.meters.share()  # a process that is killed loses the counts that it has not shared
    print("counted", flush=True)
    sys.stdin.read()
"""


@contextmanager
def counting(path: Path, number: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that counts, and has the space open until the end."""
    command = [sys.executable, "-c", COUNTING, str(path), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"counted\n"
        yield process


def test_processes_count_together_and_take_no_count_with_them(path: Path, run: Run) -> None:
    def read() -> tuple[float, float]:
        text = run("metrics").text
        return value(text, "xaspool_rounds_total", queue="orders"), value(text, "xaspool_commit_requests_total")

    with counting(path, 3) as first, counting(path, 4):
        rounds, requests = read()
        assert rounds == 7
        assert requests >= 2
        first.kill()
        first.wait()
        assert read()[0] == 7
        with counting(path, 2):
            later, requests_later = read()
    assert later == 9
    assert requests_later > requests
    assert read()[0] == 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nowhere"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["--publish"], "did you mean"),
        (["orders"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str], words: str) -> None:
    done = run("metrics", *arguments)
    assert done.code == 2
    one_line(done, words)


def test_a_space_that_is_none_is_a_failure(run: Run, tmp_path: Path) -> None:
    for arguments in ([], ["--published"], ["--listen", "127.0.0.1:0"]):
        done = run("metrics", *arguments, space=tmp_path / "elsewhere")
        assert done.code == 1
        assert done.out == b""
        one_line(done, "elsewhere")


def test_a_missing_package_is_a_failure_with_the_remedy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = run("metrics")
    assert done.code == 1
    one_line(done, "needs the package prometheus-client", "pip install 'xaspool[metrics]'")


def test_a_port_in_use_is_a_failure_of_one_line(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = execute("spool-admin", "-s", path, "metrics", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 1
    one_line(done, "does another program listen there?")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 100, "192.0.2.1"])
def test_an_address_of_another_machine_is_a_failure_of_one_line(run: Run, host: str) -> None:
    done = run("metrics", "--listen", f"{host}:0")
    assert done.code == 1
    one_line(done, f"cannot listen at {host}:0: ")


def test_published_metrics_are_read_without_the_space(path: Path, run: Run) -> None:
    with spool.open(path) as space:
        space.put("orders", b"four")
        publish(space._store.files.disk, space.metrics(), grp.getgrgid(os.getgid()).gr_name)
    done = run("metrics", "--published")
    assert done.code == 0, done.err
    assert value(done.text, "xaspool_queue_bytes", queue="orders") == 4


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A running ``spool-admin metrics --listen``."""

    process: "subprocess.Popen[bytes]"
    address: str

    def get(self) -> bytes:
        with urllib.request.urlopen(self.address, timeout=30) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return bytes(response.read())

    def until(self, name: str, number: float) -> bytes:
        """Return the first text in which a metric without labels has this value."""
        deadline = time.monotonic() + 60
        while value(text := self.get(), name) != number:
            assert time.monotonic() < deadline, text.decode()
            time.sleep(0.1)
        return text

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """End the server; return its lines on stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert json.loads(out) == {"event": "ended"}
        assert self.process.returncode == 0, err
        return err.decode()


@contextmanager
def serving(path: Path, *arguments: str) -> Iterator[Served]:
    with start("spool-admin", "-s", path, "metrics", "--listen", "127.0.0.1:0", "--json", *arguments) as process:
        try:
            assert process.stdout is not None
            begun = json.loads(process.stdout.readline())
            assert (begun["event"], begun["space"]) == ("serving", str(path))
            yield Served(process, begun["address"])
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(path: Path, number: signal.Signals) -> None:
    with serving(path) as served:
        assert value(served.get(), "xaspool_up") == 1
        assert served.end(number) == ""
    with spool.open(path) as alone:
        assert alone.recovery.alone


def test_only_get_and_two_paths_are_answered(path: Path) -> None:
    with serving(path) as served:
        host = served.address.split("/")[2]
        for method, where, status in (
            ("GET", "/", 200), ("GET", "/metrics?x=1", 200), ("GET", "/favicon.ico", 404), ("GET", "/../metrics", 404),
            ("POST", "/metrics", 405), ("HEAD", "/metrics", 405), ("DELETE", "/", 405), ("BREW", "/", 501),
        ):  # fmt: skip
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request(method, where)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status, (method, where)
            assert "Python" not in response.headers["Server"]
            if status == 405:
                assert response.headers["Allow"] == "GET"
            elif (method, where) == ("GET", "/"):
                assert body == b"The metrics are at /metrics.\n"
            connection.close()
        assert served.end() == ""


def test_a_stopped_space_is_reported_by_a_server_that_lives(path: Path) -> None:
    with spool.open(path) as space, serving(path) as served:
        assert value(served.get(), "xaspool_stopped") == 0
        space._store.shared.counters.stop()
        served.until("xaspool_stopped", 1)
        served.get()
        served.end()


def test_missing_published_metrics_are_reported_by_a_server_that_lives(path: Path) -> None:
    with serving(path, "--published") as served:
        first = parsed(served.get())
        assert first["xaspool_up"] == {frozenset(): 0}
        assert set(first) == {
            "xaspool_up",
            "xaspool_build_info",
            "xaspool_collection_duration_seconds",
            "xaspool_omitted_label_sets",
        }
        with spool.open(path) as space:
            publish(space._store.files.disk, space.metrics(), grp.getgrgid(os.getgid()).gr_name)
        served.until("xaspool_up", 1)
        (path / "run" / "status").write_bytes(b"garbage")
        served.until("xaspool_up", 0)
        lines = served.end().splitlines()
    assert len(lines) == 3, lines
    assert "publishes no metrics" in lines[0]
    assert "can be read again" in lines[1]
    assert "is damaged" in lines[2]


class Readings:
    """The figures of a space that are read: counted, or with an error."""

    def __init__(self, figures: spool.SpaceMetrics) -> None:
        self.figures = figures
        self.number = 0
        self.error: Exception | None = None

    def __call__(self) -> spool.SpaceMetrics:
        self.number += 1
        if self.error is not None:
            raise self.error
        return replace(self.figures, commits=self.number)


@pytest.fixture
def readings(figures: spool.SpaceMetrics) -> Readings:
    return Readings(figures)


def test_a_space_is_read_at_most_once_a_second(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(admin_metrics.time, "monotonic", lambda: now)
    exporter = admin_metrics.Exporter("/space", readings)
    texts = {exporter.text() for _ in range(5)}
    assert (len(texts), readings.number) == (1, 1)
    now = 100.99
    exporter.text()
    assert readings.number == 1
    now = 101.0
    assert value(exporter.text(), "xaspool_commits_total") == 2


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (spool.SpaceStopped("stopped"), 1), (spool.NotOpen("closed"), None), (PermissionError(13, "no"), None),
        (ValueError("a mistake of ours"), None),
    ],
)  # fmt: skip
def test_each_error_is_logged_once(
    readings: Readings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception,
    stopped: float | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(admin_metrics, "_CACHED_SECONDS", 0.0)
    exporter = admin_metrics.Exporter("/space", readings)
    readings.error = error
    for _ in range(3):
        text = exporter.text()
        assert value(text, "xaspool_up") == 0
        assert parsed(text).get("xaspool_stopped", {}).get(frozenset()) == stopped
    assert capsys.readouterr().err.count("cannot be read") == 1
    readings.error = None
    assert value(exporter.text(), "xaspool_up") == 1
    assert "can be read again" in capsys.readouterr().err


def test_figures_of_the_wrong_form_do_not_end_the_server(readings: Readings) -> None:
    readings.figures = replace(readings.figures, counts={("rounds", 5): "x"})  # type: ignore[dict-item]
    assert value(admin_metrics.Exporter("/space", readings).text(), "xaspool_up") == 0


@contextmanager
def server(readings: Readings) -> Iterator[int]:
    """A server in this process; yields its port."""
    with admin_metrics._Server(admin_metrics.Exporter("/space", readings), "127.0.0.1", 0) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found.port
        finally:
            found.shutdown()
            thread.join()


def is_served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            return value(response.read(), "xaspool_up") == 1
    except (OSError, http.client.HTTPException):
        return False


def test_a_client_that_sends_a_byte_now_and_then_is_disconnected(
    readings: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_metrics, "_CONNECTION_SECONDS", 0.2)
    with server(readings) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: ")
        deadline, is_open = time.monotonic() + 30, True
        while is_open and time.monotonic() < deadline:
            try:
                slow.settimeout(0.05)
                slow.sendall(b"x")
                is_open = slow.recv(1) != b""
            except TimeoutError:
                pass
            except OSError:
                is_open = False
        assert not is_open
        monkeypatch.setattr(admin_metrics, "_CONNECTION_SECONDS", 100.0)
        assert is_served(port)


def test_too_many_connections_are_closed_at_once(readings: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_metrics, "_CONNECTION_SECONDS", 100.0)
    monkeypatch.setattr(admin_metrics._Handler, "timeout", 100.0)
    with server(readings) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
        refused = 0
        for connection in held[admin_metrics._MOST_CONNECTIONS :]:
            try:
                refused += connection.recv(1) == b""
            except ConnectionResetError:
                refused += 1
        assert refused == len(held) - admin_metrics._MOST_CONNECTIONS
        assert not is_served(port)
        for connection in held:
            connection.close()
        deadline = time.monotonic() + 30
        while not is_served(port):
            assert time.monotonic() < deadline


def test_requests_of_garbage_do_not_end_the_server(readings: Readings, capfd: pytest.CaptureFixture[str]) -> None:
    with server(readings) as port:
        for garbage in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                try:
                    while connection.recv(65_536):
                        pass
                except ConnectionResetError:
                    pass
        assert is_served(port)
    assert "Traceback" not in capfd.readouterr().err


def test_values_are_finite_numbers(figures: spool.SpaceMetrics) -> None:
    samples = parsed(text_with(figures))
    assert all(math.isfinite(number) for values in samples.values() for number in values.values())
