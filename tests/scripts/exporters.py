"""A running ``spool-admin metrics --listen``, a space that has every meter, and the samples of a text of metrics."""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import spool
from spool.store import meters
from tests.scripts.conftest import start
from xaspool_scripts.watch.prometheus import METRICS

# Without this package every module that imports this one is skipped.
pytest.importorskip("prometheus_client")

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


def report_everything(own: meters.Meters) -> None:
    """Report each meter that the engine, the workers and the forwarder have."""
    for name in ("commit_requests", "compactions", "compacted_files", "reclaims", "reclaimed_commits"):
        own.add(name)
    service = meters.duration_keys("service_seconds", "orders")
    own.record(durations=[(meters.duration_keys(name), 0.002) for name in ("commit_seconds", "flush_seconds")])
    own.record(durations=[(service, 0.25), (service, 7.0)])
    own.add("rounds", "orders")
    own.add("service_calls", "orders", "http://localhost/a", "failed", number=2)
    own.add("outcomes", "worker", "orders", "delivered", number=5)
    own.consumers.serve(["orders"], 4)
    own.change("workers", "orders", by=4)
    own.change("workers_paused", "orders", by=1)
    own.change("route", "orders", "http://localhost/a", by=1)
    own.change("route", "orders", "http://localhost/b", by=1)
    own.change("route_down", "orders", "http://localhost/b", by=1)
    own.change("destination", "orders", "errors", by=1)


def fail_a_task(space: spool.Space) -> None:
    """Let a task of a new queue fail for good."""
    space.create_queue("labels", error_queue="errors")
    space.put("labels", b"x", headers={"task": "label"})
    with space.claims() as claims:
        claims.reject(claims.take("labels"), "no paper").result()


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
        """End the server; return its lines on stderr after the first, which says who can read the metrics."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert json.loads(out) == {"event": "ended"}
        assert self.process.returncode == 0, err
        begin, _, rest = err.decode().partition("\n")
        assert begin == "spool-admin: every user of this machine can read these metrics"
        return rest


@contextmanager
def serving(path: Path, *arguments: str) -> Iterator[Served]:
    with start("spool-admin", "-s", path, "metrics", "--listen", "127.0.0.1:0", "--json", *arguments) as process:
        try:
            begun = json.loads(process.stdout.readline())
            assert (begun["event"], begun["space"]) == ("serving", str(path))
            yield Served(process, begun["address"])
        finally:
            process.kill()
