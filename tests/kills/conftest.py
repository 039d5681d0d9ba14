"""A scaffold, and spaces that are quick to make."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.kills.scaffold import Scaffold
from tests.torture import worker


@pytest.fixture(scope="session")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaffold]:
    scaffold = Scaffold(tmp_path_factory.mktemp("scaffold") / "stderr")
    yield scaffold
    scaffold.close()


class Life:
    """The life of one victim: its space, and its logs outside the space."""

    def __init__(self, directory: Path, templates: Path) -> None:
        self.logs = directory / "logs"
        self.space = directory / "space"
        self._templates = templates

    def begin(self, flush: str = "ordered") -> None:
        """Start with a new space and empty logs."""
        for directory in (self.logs, self.space):
            shutil.rmtree(directory, ignore_errors=True)
        self.logs.mkdir()
        shutil.copytree(self._templates / flush, self.space)

    @property
    def log(self) -> str:
        return str(self.logs / "victim.log")


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new space of each way to flush."""
    directory = tmp_path_factory.mktemp("templates")
    for flush in ("ordered", "strict"):
        with spool.create(directory / flush, sync_method=flush, defaults=AT_ONCE) as space:
            worker.make_queues(space)
    return directory


@pytest.fixture
def life(templates: Path, tmp_path: Path) -> Life:
    return Life(tmp_path, templates)
