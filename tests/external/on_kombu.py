"""A plugin of pytest for kombu's own tests: their connections lead to a space, and each test gets a separate space.

The test modules make their connections with names of the module, e.g. ``Connection`` or ``client``, so the plugin
replaces these names. ``virtual.Channel`` and its neighbours become the classes of ``celery_xaspool``.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from kombu.transport import virtual

import celery_xaspool.register  # noqa: F401
import spool
from celery_xaspool.channel import Channel, QoS
from celery_xaspool.transport import Transport

_OURS: dict[str, Any] = {"Channel": Channel, "QoS": QoS, "Transport": Transport}
_OPTIONS = (
    "queue",
    "native_eta",
    "polling_interval",
    "max_retries",
)  # the options of other transports name their files


def _connection(url: str, *_: Any, transport: Any = None, transport_options: Any = None, **kwargs: Any) -> Any:
    options = {name: value for name, value in (transport_options or {}).items() if name in _OPTIONS}
    return kombu.Connection(url, transport_options=options, **kwargs)


@pytest.fixture(autouse=True)
def _space(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    place = tmp_path / "space"
    connect = partial(_connection, f"xaspool://{place}")
    names = dict.fromkeys(("Connection", "client", "memory_client"), connect)
    for name, value in {**names, "virtual": SimpleNamespace(**{**vars(virtual), **_OURS})}.items():
        if hasattr(request.module, name):
            monkeypatch.setattr(request.module, name, value)
    yield
    if place.exists():
        spool.shared(place).close()
