"""spool-admin transaction: an administrator's decision on branches in doubt."""

import os
import time
from pathlib import Path

import pytest

import spool
import xa
from tests import door
from tests.branches import voting
from tests.scripts.conftest import Run, one_line

XID = xa.Xid(7, b"order-17", b"\xff1")


@pytest.fixture
def in_doubt(path: Path) -> Path:
    """The space, with a prepared branch that takes one message and puts another."""
    with spool.open(path) as space:
        space.put("orders", b"taken")
        with voting(xa.ResourceManager(space), XID):
            space.get("orders")
            space.put("errors", b"added")
    return path


def test_a_list_without_transactions_in_doubt_says_so(run: Run, path: Path) -> None:
    one_line(run("transaction", "list"), "no transaction is in doubt", code=0)
    assert run("transaction", "list", "--json").out == b""


def test_list_shows_when_by_which_process_and_how_many_messages(run: Run, in_doubt: Path) -> None:
    (found,) = run("transaction", "list", "--json").objects
    assert (found["xid"], found["format_id"]) == (str(XID), 7)
    assert (found["state"], found["puts"], found["takes"]) == ("in doubt", {"errors": 1}, {"orders": 1})
    assert found["writer"]["pid"] == os.getpid()
    assert time.time() - found["prepared_at"] < 600
    header, line = run("transaction", "list").text.splitlines()
    assert header.split() == ["xid", "state", "prepared", "at", "puts", "takes", "prepared", "by"]
    assert f"  1      1  process {os.getpid()} (" in line


@pytest.mark.parametrize(("verb", "state"), [("commit", "committed"), ("rollback", "rolled back")])
def test_a_transaction_decided_here_is_listed_until_it_is_forgotten(run: Run, in_doubt: Path, verb: str, state: str):
    run("transaction", verb, XID)
    (found,) = run("transaction", "list", "--json").objects
    assert (found["xid"], found["state"], found["prepared_at"]) == (str(XID), state, None)
    assert run("transaction", "show", XID, "--json").objects == [found]
    shown = run("transaction", "show", XID)
    assert state in shown.text
    one_line(shown, f"spool-admin transaction forget {XID}")
    assert state in run("transaction", "list").text
    run("transaction", "forget", XID)
    assert run("transaction", "list", "--json").out == b""


def test_show_names_the_messages_of_a_branch_in_doubt(run: Run, in_doubt: Path) -> None:
    (found,) = run("transaction", "show", XID, "--json").objects
    shown = run("transaction", "show", XID).text
    assert [f"puts  message {found['put_ids'][0]}", f"takes message {found['taken_ids'][0]}"] == shown.splitlines()[-2:]
    assert "taken" in run("message", "show", found["taken_ids"][0], "--json").text
    run("transaction", "commit", XID)
    assert run("message", "list", "errors", "--json").objects[0]["id"] == found["put_ids"][0]


def test_a_branch_of_many_messages_names_the_first_hundred(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"x"] * 150)
        with voting(xa.ResourceManager(space), XID):
            space.put_many("errors", [message.body for message in space.get_many("orders", 150)])
    (found,) = run("transaction", "show", XID, "--json").objects
    assert (len(found["put_ids"]), len(set(found["taken_ids"])), found["puts"]) == (100, 100, {"errors": 150})


def test_a_list_of_branches_in_doubt_flushes_nothing(in_doubt: Path) -> None:
    """3,000 branches must not take 3,000 flushes."""
    with spool.open(in_doubt) as space:
        before = door.disk(space).flushes
        assert [each.xid for each in space.engine.describe_all()] == [str(XID)]
        assert door.disk(space).flushes == before
        assert xa.ResourceManager(space).recover() == [XID]
        assert door.disk(space).flushes > before


@pytest.mark.parametrize(
    ("verb", "said", "added", "taken"),
    [("commit", "committed", (0, b"added"), (3, b"")), ("rollback", "rolled back", (3, b""), (0, b"taken"))],
)
def test_a_decision_makes_all_of_a_branch_happen_or_none(
    run: Run, in_doubt: Path, verb: str, said: str, added: tuple[int, bytes], taken: tuple[int, bytes]
) -> None:
    assert run("message", "get", "orders").code == 3
    one_line(run("transaction", verb, XID), said, str(XID), code=0)
    for queue, expected in (("errors", added), ("orders", taken)):
        got = run("message", "get", queue)
        assert (got.code, got.out) == expected
