"""The windows are where they are said to be: each opens and closes at the calls of a real engine on a real disk."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from spool.intake import Intake
from spool.model.xid import Xid
from tests import door
from tests.at_once import AT_ONCE
from tests.torture import history, windows
from tests.torture.history import Log
from tests.torture.windows import WindowDisk


class Watched:
    """A space whose process is held in every window that it comes to, from the window's first call on."""

    def __init__(self, directory: Path) -> None:
        spool.create(directory / "space", defaults=AT_ONCE).close()
        self.held: list[str] = []
        self.log = str(directory / "log")
        always = dict.fromkeys(windows.WINDOWS, 1.0)
        disk = WindowDisk(
            str(directory / "space"), Log(self.log, "one"), _First(), always, lambda window: self.held.append(window)
        )
        self.space = spool.open(disk)
        self.space.create_queue("orders")
        self.held.clear()

    def windows_of(self, action: object) -> list[str]:
        assert callable(action)
        self.held.clear()
        action()
        return self.held[:]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    with watched.space:
        yield watched


class _First(random.Random):
    """Lots that always say: hold it, at once."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return 0


def test_a_put_passes_from_its_rename_over_its_flush_to_its_publication(watched: Watched) -> None:
    seen = watched.windows_of(lambda: watched.space.put("orders", b"one"))
    assert seen == [windows.RENAME_TO_PUBLICATION, windows.FLUSH_TO_PUBLICATION]
    assert watched.windows_of(lambda: watched.space.stats("orders")) == []


def test_a_get_looks_again_before_it_commits(watched: Watched) -> None:
    watched.space.put("orders", b"one")
    seen = watched.windows_of(lambda: watched.space.get("orders"))
    assert seen == [windows.CLAIM_TO_SECOND_LOOK, windows.RENAME_TO_PUBLICATION, windows.FLUSH_TO_PUBLICATION]


def test_two_phases_pass_the_vote_the_decision_and_the_move(watched: Watched) -> None:
    xid = Xid(7, b"one", b"")
    branch = door.branch(watched.space, xid=xid)
    branch.put("orders", b"one")
    assert watched.windows_of(branch.prepare) == [windows.PREPARE_TO_UNLOCK]
    seen = watched.windows_of(lambda: watched.space.engine.commit_branch(xid, vote_known=True))
    assert seen == [windows.RENAME_TO_PUBLICATION, windows.FLUSH_TO_PUBLICATION, windows.DECISION_TO_MOVE]


def test_an_intake_commits_before_it_removes_the_dropped_file(watched: Watched) -> None:
    Path(watched.space.path, "drop", "orders", "one").write_bytes(b"one")
    seen = watched.windows_of(lambda: Intake(watched.space).run(once=True))
    expected = [windows.RENAME_TO_PUBLICATION, windows.FLUSH_TO_PUBLICATION, windows.COMMIT_TO_REMOVAL]
    assert seen == expected


def test_claims_and_names_are_written_down_before_they_happen_and_numbers_after(watched: Watched) -> None:
    watched.space.put("orders", b"one")
    watched.space.get("orders")
    events = [record["event"] for record in history.read(watched.log)]
    assert events == ["number", "number", "try", "claimed", "number", "number"]
