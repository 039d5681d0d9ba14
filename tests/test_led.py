"""The mode ``--led``: each commit of a process under test passes through another process, if it can be posted."""

from collections import Counter
from pathlib import Path

import pytest

import spool
import xa
from spool.errors import Full
from spool.intake import Intake
from tests import door
from tests.branches import voting
from tests.led import another_process_leads
from tests.shown import bodies


def test_another_process_makes_the_commits_that_can_be_posted(tmp_path: Path) -> None:
    counts = Counter[str]()
    with another_process_leads(counts), spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.create_queue("lossy", durability="none")
        manager, xid = xa.ResourceManager(space), xa.Xid(7, b"one", b"")
        made = {
            "a put": lambda: space.put("orders", "one"),
            "puts": lambda: space.put_many("orders", ["two", "three"], priority=9, headers={"k": "v"}),
            "a get": lambda: space.get("orders"),
            "a transaction": lambda: _answer(space),
            "a key": lambda: space.put("orders", "four", deduplication_key="k"),
            "a decision": lambda: manager.commit(xid, xa.TMNOFLAGS),
        }
        with voting(manager, xid):
            space.put("orders", "branch")
        for name, make in made.items():
            counts.clear()
            make()
            assert counts == {"posted": 1, "owner": 0}, name
        own = {
            "a large put": lambda: space.put("orders", bytes(1 << 16)),
            "a put without a flush": lambda: space.put("lossy", "one"),
            "a captured file": lambda: _drop(space),
        }
        for name, make in own.items():
            counts.clear()
            make()
            assert counts == {"posted": 0, "owner": 1}, name
        assert len(bodies(space)) == 6
        assert not door.store(space).view.own_commits, "this process has read the commits of the other one"


def test_a_request_that_the_leader_refuses_fails_in_its_own_process(tmp_path: Path) -> None:
    counts = Counter[str]()
    with another_process_leads(counts), spool.create(tmp_path / "space") as space:
        space.create_queue("small", max_messages=1)
        with space.transaction() as transaction:
            transaction.put("small", "one")
            space.put("small", "first", transaction=None)
            counts.clear()
            with pytest.raises(Full):
                transaction.commit()
        assert counts == {"posted": 0, "owner": 1}
        assert bodies(space, "small") == ["first"]


def _answer(space: spool.Space) -> None:
    with space.transaction() as transaction:
        transaction.put("orders", transaction.get("orders").body)


def _drop(space: spool.Space) -> None:
    Path(space.path, "drop", "orders", "file.txt").write_text("dropped")
    Intake(space).run(once=True)
