"""A plugin of pytest for Dramatiq's own tests: their brokers and result backends are those of ``DRAMATIQ_URL``.

The source distribution of Dramatiq lacks the conftest.py of the tests, so this plugin has their fixtures. A broker is
stub_broker or redis_broker, by the names that the tests use.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits.backends import RedisBackend as RedisRateLimits
from dramatiq.results.backends import RedisBackend, StubBackend

import spool
from dramatiq_xaspool import XaspoolBroker, XaspoolRateLimiterBackend, XaspoolResults

_URL = os.environ["DRAMATIQ_URL"]  # of a Redis; or "xaspool"


@pytest.fixture
def stub_broker(tmp_path: Path) -> Iterator[dramatiq.Broker]:
    broker: Any = XaspoolBroker(tmp_path / "space") if _URL == "xaspool" else RedisBroker(url=_URL)
    if _URL != "xaspool":
        broker.client.flushall()
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()
    if _URL == "xaspool":
        broker.space.close()


@pytest.fixture
def redis_broker(stub_broker: dramatiq.Broker) -> dramatiq.Broker:
    return stub_broker


@pytest.fixture
def stub_worker(stub_broker: dramatiq.Broker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def redis_worker(stub_worker: dramatiq.Worker) -> dramatiq.Worker:
    return stub_worker


@pytest.fixture
def result_backend(tmp_path: Path) -> Any:
    return XaspoolResults(tmp_path / "space") if _URL == "xaspool" else RedisBackend(url=_URL)


@pytest.fixture
def redis_result_backend(result_backend: Any) -> Any:
    return result_backend


@pytest.fixture
def stub_result_backend() -> Any:
    return StubBackend()


@pytest.fixture
def rate_limiter_backend(tmp_path: Path) -> Iterator[Any]:
    if _URL != "xaspool":
        backend = RedisRateLimits(url=f"{_URL}/1")  # (another database than the broker's)
        backend.client.flushdb()
        yield backend
    else:
        yield XaspoolRateLimiterBackend(tmp_path / "space")
        spool.shared(tmp_path / "space").close()


@pytest.fixture
def info_logging() -> Iterator[None]:
    logging.getLogger().setLevel(logging.INFO)
    yield
    logging.getLogger().setLevel(logging.DEBUG)
