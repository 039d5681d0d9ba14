"""A space with a worker for the tests of a module, and applications that use the space."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from celery import Celery
from celery.result import AsyncResult

import spool
from tests.celery.tasks import application
from tests.celery.workers import SECONDS, Worker, prepared, working
from tests.conftest import in_memory
from tests.led import of_programs


class Shop(NamedTuple):
    place: Path
    space: spool.Space
    app: Celery
    worker: Worker


def expect_all_run(shop: Shop, words: list[str], results: list[AsyncResult]) -> None:
    """Another worker runs the tasks ``wait_for_word`` of these words."""
    for word in words:
        shop.space.put("words", "", correlation_id=word)
    with working(shop.place, "heir"):
        assert [result.get(timeout=SECONDS) for result in results] == words


@pytest.fixture(autouse=True, scope="module")
def _leader_of_programs(pytestconfig: pytest.Config) -> Iterator[None]:
    """With --led, another process leads in the workers and the other programs, too."""
    with pytest.MonkeyPatch.context() as patch:
        if pytestconfig.getoption("--led"):
            patch.setenv("PYTHONPATH", of_programs(os.environ)["PYTHONPATH"])
        yield


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    """A space and a running worker that sends events, for all tests of a module."""
    with in_memory() as place, prepared(place) as space, closing(application(space.path)) as app:
        with working(place, "shared", "-E") as worker:
            yield Shop(place, space, app, worker)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Shop]:
    """A space without a worker."""
    with prepared(tmp_path) as space, closing(application(space.path)) as app:
        yield Shop(tmp_path, space, app, None)  # type: ignore[arg-type]
