"""A branch that an exception has left open: no put into the branch is acknowledged, and errors and warnings tell how
the branch ends."""

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

import pytest

import spool
import xa
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import Mistake, code_of, voted, xid
from tests.housekeepers import end_housekeeping
from tests.shown import bodies


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("in")
        space.create_queue("replies")
        space.put("in", "tea")
        end_housekeeping(space)  # otherwise it may roll a dropped branch back before the test does
        yield space


def test_a_put_never_joins_a_branch_whose_rollback_was_refused(space: spool.Space) -> None:
    """The put raises an error until the branch is ended; later puts are separate durable commits."""
    rm = xa.ResourceManager(space)
    for refused in (rm.rollback, rm.prepare, lambda one: rm.commit(one, xa.TMONEPHASE), rm.commit):
        rm.start(xid())
        assert code_of(refused, xid()) == xa.XAER_PROTO
        for call in (space.put, space.submit):
            with pytest.raises(spool.ProtocolError, match=r"end\(xid, TMFAIL\)"):
                call("replies", "late")
        with pytest.raises(spool.ProtocolError, match=r"end\(xid, TMFAIL\)"):
            space.get("in")
        rm.end(xid(), xa.TMFAIL)
        rm.rollback(xid())
    space.put("replies", "on its own")
    assert bodies(space, "replies") == ["on its own"]
    assert bodies(space, "in") == ["tea"]


@pytest.mark.parametrize("call", ["rollback", "prepare", "commit"])
def test_the_error_for_a_branch_that_was_not_ended_names_the_call_that_ends_it(space: spool.Space, call: str) -> None:
    rm = xa.ResourceManager(space)
    rm.start(xid())
    ends = "TMFAIL" if call == "rollback" else "TMSUCCESS"
    with pytest.raises(xa.XAError, match=rf"call xa_end\({ends}\) first"):
        getattr(rm, call)(xid())
    rm.end(xid(), xa.TMFAIL)
    rm.rollback(xid())


def test_work_of_another_thread_does_not_join_a_branch_that_failed(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    rm.start(xid())

    def fail_in_it() -> None:
        rm.start(xid(), xa.TMJOIN)
        rm.end(xid(), xa.TMFAIL)

    other = threading.Thread(target=fail_in_it)
    other.start()
    other.join()
    with pytest.raises(spool.ProtocolError, match="rollback-only"):
        space.put("replies", "late")
    rm.end(xid(), xa.TMFAIL)
    rm.rollback(xid())


# -- the block --------------------------------------------------------------------------------------------------------


def test_a_block_ends_the_branch(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    with rm.branch(xid()):
        space.put("replies", "hello")
    space.put("replies", "on its own")
    assert rm.prepare(xid()) == xa.XA_OK
    rm.commit(xid())
    assert bodies(space, "replies") == ["on its own", "hello"]


@pytest.mark.parametrize("ended", [False, True])
def test_a_block_that_an_exception_leaves_rolls_the_branch_back(space: spool.Space, ended: bool) -> None:
    rm = xa.ResourceManager(space)
    with pytest.raises(Mistake), rm.branch(xid()):
        space.get("in")
        space.put("replies", "hello")
        if ended:
            rm.end(xid())
        raise Mistake
    space.put("replies", "on its own")
    assert bodies(space, "replies") == ["on its own"]
    assert [(message.body, message.attempts) for message in space.browse("in")] == [("tea", 1)]
    assert code_of(rm.rollback, xid()) == xa.XAER_NOTA
    with rm.branch(xid()):  # as if it had never begun
        pass


def test_a_block_leaves_the_decision_about_a_prepared_branch_to_its_coordinator(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    with pytest.raises(Mistake), rm.branch(xid()):
        space.put("replies", "hello")
        rm.end(xid())
        rm.prepare(xid())
        raise Mistake
    assert rm.recover() == [xid()]
    rm.commit(xid())
    assert bodies(space, "replies") == ["hello"]


def test_an_exception_comes_out_of_a_block_as_it_was_also_if_the_space_was_closed_in_it(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    with pytest.raises(spool.Empty), rm.branch(xid()):
        space.get("replies")
    with pytest.raises(Mistake), rm.branch(xid()):
        space.close()
        raise Mistake


def test_a_block_of_an_xid_that_is_in_use_is_refused(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    voted(rm, xid())
    with pytest.raises(xa.XAError, match="XAER_DUPID"), rm.branch(xid()):
        raise AssertionError
    rm.rollback(xid())


# -- a branch that no process can end any more ------------------------------------------------------------------------


def begin_and_fail(space: spool.Space) -> None:
    """Leave a branch open, as a program does that has not thought of exceptions."""

    def fail() -> None:
        rm = xa.ResourceManager(space)
        rm.start(xid())
        space.get("in")
        space.put("replies", "hello")
        raise Mistake

    with suppress(Mistake):
        fail()
    gc.collect()


def test_a_program_that_ends_its_branch_is_not_warned(space: spool.Space, recwarn: pytest.WarningsRecorder) -> None:
    voted(xa.ResourceManager(space), xid())
    gc.collect()
    assert not [warning for warning in recwarn.list if "branch" in str(warning.message)]
    xa.ResourceManager(space).rollback(xid())


def test_a_branch_is_rolled_back_when_its_resource_manager_is_dropped(space: spool.Space) -> None:
    with pytest.warns(ResourceWarning, match="has left the branch"):
        begin_and_fail(space)
    space.put("replies", "on its own")
    door.store(space).dropped.popleft()()
    assert bodies(space, "replies") == ["on its own"]
    assert [(message.body, message.attempts) for message in space.browse("in")] == [("tea", 1)]
    rm = xa.ResourceManager(space)
    rm.start(xid())
    rm.end(xid())
    rm.rollback(xid())


def test_a_branch_is_rolled_back_when_a_signal_keeps_its_block_from_the_end(space: spool.Space) -> None:
    """The resource manager still exists."""
    rm = xa.ResourceManager(space)
    blocks = [rm.branch(xid())]
    blocks[0].__enter__()
    space.put("replies", "hello")
    with pytest.warns(ResourceWarning, match="has left the branch"):
        blocks.clear()
    space.put("replies", "on its own")
    door.store(space).dropped.popleft()()
    assert bodies(space, "replies") == ["on its own"]
    with rm.branch(xid()):
        pass


def test_a_copied_context_is_never_told_that_its_put_is_durable_on_its_own(space: spool.Space) -> None:
    rm = xa.ResourceManager(space)
    rm.start(xid())
    copied = copy_context()
    managers = [rm]
    del rm
    with pytest.warns(ResourceWarning):
        managers.clear()
    for _ in range(2):
        with pytest.raises(spool.TransactionRolledBack):
            copied.run(space.put, "replies", "late")
    assert bodies(space, "replies") == []


def test_a_second_resource_manager_says_which_branch_the_caller_is_in(space: spool.Space) -> None:
    first, second = xa.ResourceManager(space), xa.ResourceManager(space)
    first.start(xid())
    assert code_of(second.start, xid(b"second")) == xa.XAER_PROTO
    with pytest.raises(xa.XAError, match="another ResourceManager of this process"):
        second.end(xid())
    first.end(xid(), xa.TMFAIL)
    assert code_of(second.commit, xid()) == xa.XAER_PROTO
    first.rollback(xid())
    second.start(xid())
    second.end(xid())
    second.rollback(xid())


def test_a_space_that_is_closed_names_the_open_branches_and_counts_their_work(
    space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    rm = xa.ResourceManager(space)
    voted(rm, xid(b"voted"))
    rm.start(xid())
    space.get("in")
    space.put_many("replies", ["1", "2"])
    space.close()
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert str(xid()) in said
    assert "2 puts and 1 get" in said
    with spool.open(space.path) as again:
        assert bodies(again, "in") == ["tea"]
        assert bodies(again, "replies") == []
        xa.ResourceManager(again).rollback(xid(b"voted"))
