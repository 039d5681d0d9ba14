"""A space, and the attempts of tasks that write into it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.forwarder.dataframes.sink.writes import Attempts


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spool.Space]:
    monkeypatch.setattr(os, "getppid", os.getpid)  # (the parent of pytest may end first)
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.create_queue("invoices", order=("priority", "fifo"), out_of_order=("top",))
        yield space


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    return Attempts(monkeypatch)
