"""kombu's tests for each broker (``t/integration/common.py``), on the broker that ``KOMBU_URL`` names."""

import os
from contextlib import suppress
from uuid import uuid4

import kombu
import pytest
from t.integration.common import (  # type: ignore[import-not-found]
    BaseEventLoop,
    BaseExchangeTypes,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

_URL = os.environ["KOMBU_URL"]
_IS_REDIS = _URL.startswith("redis:")


@pytest.fixture
def connection() -> kombu.Connection:
    if _IS_REDIS:
        return kombu.Connection(_URL, transport_options={"global_keyprefix": uuid4().hex})
    return kombu.Connection(f"{_URL}/{uuid4().hex}")


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("redis://localhost:1" if _IS_REDIS else "xaspool:///dev/null/space")


class TestFunctions(BasicFunctionality):  # type: ignore[misc]
    pass


class TestExchangeTypes(BaseExchangeTypes):  # type: ignore[misc]
    pass


class TestTimeToLive(BaseTimeToLive):  # type: ignore[misc]
    pass


class TestPriority(BasePriority):  # type: ignore[misc]
    PRIORITY_ORDER = "desc" if _IS_REDIS else "asc"

    @pytest.fixture
    def connection(self, connection: kombu.Connection, monkeypatch: pytest.MonkeyPatch) -> kombu.Connection:
        """A connection that delivers all messages in one call, as the tests expect of AMQP."""
        deliver = connection.drain_events

        def deliver_all(timeout: float) -> None:
            deliver(timeout=timeout)
            with suppress(TimeoutError):
                while True:
                    deliver(timeout=0.2)

        monkeypatch.setattr(connection, "drain_events", deliver_all)
        return connection


class TestMessage(BaseMessage):  # type: ignore[misc]
    pass


class TestEventLoop(BaseEventLoop):  # type: ignore[misc]
    pass
