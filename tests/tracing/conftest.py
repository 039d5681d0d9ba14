"""Fixtures for tests of spans: a recorder as the tracer provider of this process, and a space."""

import pytest
from opentelemetry import trace

from tests.spaces import space_with
from tests.tracing.spans import Recorder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The tracer provider of this process during the test. OpenTelemetry itself sets a provider only once."""
    found = Recorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found.provider)
    return found


ORDERS = {"reply_queue": "replies", "error_queue": "errors", "retries": 1}
space = space_with("replies", "errors", "next", orders=ORDERS)
