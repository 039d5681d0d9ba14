"""Fixtures for tests of spans: a recorder as the tracer provider of this process, and a space."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace

import spool
from tests.at_once import AT_ONCE
from tests.tracing.spans import Recorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The tracer provider of this process during the test. OpenTelemetry itself sets a provider only once."""
    found = Recorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found.provider)
    return found


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        for queue in ("replies", "errors", "next"):
            space.create_queue(queue)
        space.create_queue("orders", reply_queue="replies", error_queue="errors", retries=1)
        yield space
