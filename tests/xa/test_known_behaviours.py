"""Behaviours of resource managers that transaction managers rely on, or that a known resource manager gets wrong.

Each test names its source: "XA" is X/Open's CAE Specification "Distributed Transaction Processing: The XA
Specification", by section, manual page or table. Other sources are the tests, manuals and defects of products. Other
files have these behaviours:

* ``test_resource_manager``: two-phase commit; OUTSIDE; an administrator's decision until ``forget``; xids outside the
  limits; XA_RETRY on a full disk; a failed flush; branches in doubt over restarts; an xid that another process uses.
* ``test_left_open``: work in a branch whose end was refused; branches that their program drops.
* ``test_together``: branches that are decided at the same time.
* ``dbapi/test_life_of_a_connection``: prepared and unprepared transactions of a killed process.
  ``dbapi/test_transactions_of_spaces``: interrupts; binary xids of other transaction managers.
* ``tests/transactions/test_branches_of_others``: a branch whose commit a process began before it died.
* ``tests/features/test_q11_limits``: a vote counts for the limit of its queue. ``tests/features/test_x``: a
  deduplication key and a group in doubt.
* ``tests/faults``, ``tests/crash`` and ``tests/kills``: each call of the disk fails, the power fails, processes die.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import spool
import xa
from spool.disk.disk import Disk
from tests import door
from tests.branches import begun, code_of, voted, xid
from tests.clocks import SimulatedClock, timed
from tests.full import no_room
from tests.shown import bodies as bodies_of
from tests.spaces import space_with
from tests.threads import beside

LIMIT_SECONDS = 10.0
UNKNOWN = xid(b"unknown")


space = space_with("in", "replies", messages={"in": ["milk", "tea"]})


@pytest.fixture
def rm(space: spool.Space) -> xa.ResourceManager:
    return xa.ResourceManager(space)


@pytest.fixture
def other(space: spool.Space) -> Iterator[xa.ResourceManager]:
    """A resource manager with a separate opening of the space, as another process has it."""
    with spool.open(space.path) as found:
        yield xa.ResourceManager(found)


bodies = partial(bodies_of, queue="replies")


def in_thread(act: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a new thread; return its result or raise its error here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act, *arguments).result()


# -- each call in each state -------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[xa.ResourceManager, xa.Xid], object]] = {
    "start": lambda rm, one: (rm.start(one), rm.space.put("replies", "hello")),
    "join": lambda rm, one: rm.start(one, xa.TMJOIN),
    "resume": lambda rm, one: rm.start(one, xa.TMRESUME),
    "end": xa.ResourceManager.end,
    "fail": lambda rm, one: rm.end(one, xa.TMFAIL),
    "suspend": lambda rm, one: rm.end(one, xa.TMSUSPEND),
    "prepare": xa.ResourceManager.prepare,
    "commit": xa.ResourceManager.commit,
    "one-phase": lambda rm, one: rm.commit(one, xa.TMONEPHASE),
    "rollback": xa.ResourceManager.rollback,
    "forget": xa.ResourceManager.forget,
}
EVERY_CALL_BUT_START = "join resume end fail suspend prepare commit one-phase rollback forget"


class State(NamedTuple):
    """The calls that lead to a state of a branch, the calls that end the branch, and the refused calls by their code.

    A branch that was committed keeps its xid in use: otherwise a new branch would look committed, and its file would
    replace the file of the old branch.
    """

    begin: str
    end: str
    nota: str
    proto: str = ""
    dupid: str = "start"


STATES = {
    "unknown": State("", "", EVERY_CALL_BUT_START, dupid=""),
    "active": State("start", "end one-phase", "forget", "start join resume prepare commit one-phase rollback", ""),
    "suspended": State("start suspend", "end one-phase", "forget", "join suspend prepare commit one-phase rollback"),
    "idle": State("start end", "one-phase", "forget", "resume end fail suspend commit"),
    "rollback-only": State("start fail", "rollback", "forget", "join resume suspend prepare commit one-phase"),
    "prepared": State("start end prepare", "commit", "forget", "join resume end fail suspend prepare one-phase"),
    "committed": State("start end prepare commit", "", EVERY_CALL_BUT_START),
    "rolled back": State("start end prepare rollback", "", EVERY_CALL_BUT_START, dupid=""),
}


def act(calls: str, manager: xa.ResourceManager) -> None:
    for call in calls.split():
        CALLS[call](manager, xid())


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_call_that_does_not_fit_the_state_of_its_branch_is_refused_and_changes_nothing(
    rm: xa.ResourceManager, other: Any, state: State
) -> None:
    """XA, tables 6-2 and 6-4, and the manual pages. From the vote on, any manager of any process gets the same codes.

    pgjdbc, testPrepareUnknownXid, testCommitUnknownXid, testRollbackUnknownXid, testOnePhaseCommitOfPrepared,
    testRepeatedRolledBack and testCommitingCommittedXid. MySQL, XA Transaction States.
    """
    act(state.begin, rm)
    shared = "prepare" in state.begin or not state.begin
    for manager in (rm, other, xa.ResourceManager(rm.space)) if shared else (rm,):
        for code, calls in ((xa.XAER_NOTA, state.nota), (xa.XAER_PROTO, state.proto), (xa.XAER_DUPID, state.dupid)):
            for call in calls.split():
                assert code_of(CALLS[call], manager, xid()) == code, call
        assert manager.recover() == [xid()] * state.begin.endswith("prepare")
    if state.begin == "start":
        assert code_of(rm.start, UNKNOWN) == xa.XAER_PROTO, "the caller is in a branch already"
    act(state.end, rm)
    assert bodies(rm.space) == ["hello"] * any(call in state.begin + state.end for call in ("commit", "one-phase"))


@pytest.mark.parametrize("begin", ["start", "start suspend", "start end"])
def test_a_branch_belongs_to_its_manager_until_it_is_prepared(rm: xa.ResourceManager, other: Any, begin: str) -> None:
    """XA, xa_start (XAER_DUPID): the xid is in use in each thread and process."""
    act(begin, rm)
    assert in_thread(code_of, rm.start, xid()) == xa.XAER_DUPID
    for manager in (xa.ResourceManager(rm.space), other):
        assert in_thread(code_of, manager.start, xid()) == xa.XAER_DUPID
        for call in ("join", "resume", "end", "fail", "suspend", "prepare", "one-phase"):
            assert in_thread(code_of, CALLS[call], manager, xid()) == xa.XAER_PROTO, call
        assert in_thread(code_of, manager.rollback, xid()) == xa.XAER_NOTA
        assert manager.recover() == []
    act("rollback" if begin == "start end" else "end rollback", rm)
    assert bodies(rm.space) == []


# -- xa_start and xa_end -----------------------------------------------------------------------------------------------


def test_an_xid_is_free_after_a_rollback_and_after_a_read_only_vote(rm: xa.ResourceManager) -> None:
    """XA, table 6-4: the branch does not exist any more (S0). pgjdbc, testRollback and testAutoCommit."""
    for prepared in (False, True):
        begun(rm, xid())
        if prepared:
            rm.prepare(xid())
        rm.rollback(xid())
    rm.start(xid())
    rm.end(xid())
    assert rm.prepare(xid()) == xa.XA_RDONLY
    begun(rm, xid(), "last")
    rm.commit(xid(), xa.TMONEPHASE)
    assert bodies(rm.space) == ["last"]


def test_flags_that_a_call_does_not_have_are_invalid_and_change_nothing(rm: xa.ResourceManager) -> None:
    """XA, 4.4 and the manual pages (XAER_INVAL). Migration and asynchronous calls are not supported."""
    foreign = (xa.TMMIGRATE, xa.TMASYNC, xa.TMNOWAIT, xa.TMMULTIPLE)
    for flags in (*foreign, None, xa.TMSUCCESS, xa.TMFAIL, xa.TMSUSPEND, xa.TMJOIN | xa.TMRESUME, xa.TMONEPHASE):
        assert code_of(rm.start, xid(), flags) == xa.XAER_INVAL
    rm.start(xid())
    rm.space.put("replies", "hello")
    for flags in (*foreign, xa.TMNOFLAGS, xa.TMJOIN, xa.TMSUSPEND | xa.TMMIGRATE, xa.TMSUCCESS | xa.TMFAIL):
        assert code_of(rm.end, xid(), flags) == xa.XAER_INVAL
    rm.end(xid())
    for flags in (*foreign, xa.TMFAIL, xa.TMSUCCESS, xa.TMJOIN):
        assert code_of(rm.commit, xid(), flags) == xa.XAER_INVAL
        assert code_of(rm.recover, flags) == xa.XAER_INVAL
    assert rm.prepare(xid()) == xa.XA_OK
    rm.commit(xid())
    assert bodies(rm.space) == ["hello"]


def test_a_branch_migrates_from_one_thread_to_another(rm: xa.ResourceManager) -> None:
    """XA, 3.3 and table 6-2: a thread suspends its association, and a thread resumes it."""
    rm.start(xid())
    rm.space.put("replies", "first thread")
    rm.end(xid(), xa.TMSUSPEND)

    def resume() -> None:
        rm.start(xid(), xa.TMRESUME)
        rm.space.put("replies", "second thread")
        rm.end(xid(), xa.TMSUSPEND)

    in_thread(resume)
    rm.start(xid(), xa.TMRESUME)
    assert rm.space.get("in").body == "milk"
    rm.end(xid())
    assert bodies(rm.space) == []
    assert rm.prepare(xid()) == xa.XA_OK
    rm.commit(xid())
    assert bodies(rm.space) == ["first thread", "second thread"]
    assert bodies(rm.space, queue="in") == ["tea"]


def test_a_branch_in_which_two_threads_work_ends_when_both_have_ended(rm: xa.ResourceManager) -> None:
    """XA, 2.2.9 (tightly-coupled threads): no vote while a thread works in the branch. MySQL has no JOIN."""
    joined, may_end = threading.Event(), threading.Event()

    def join() -> None:
        rm.start(xid(), xa.TMJOIN)
        rm.space.put("replies", "second thread")
        joined.set()
        assert may_end.wait(60)
        rm.end(xid())

    rm.start(xid())
    rm.space.put("replies", "first thread")
    with beside(join, may_end.set):
        assert joined.wait(60)
        rm.end(xid())
        assert code_of(rm.prepare, xid()) == xa.XAER_PROTO
    assert code_of(rm.end, xid()) == xa.XAER_PROTO, "no association is left"


def test_a_suspended_association_is_ended_without_a_resume(rm: xa.ResourceManager) -> None:
    """XA, xa_end and table 6-2 (T2 to T0): TMSUCCESS and TMFAIL also end a suspended association."""
    for flags, code in ((xa.TMSUCCESS, None), (xa.TMFAIL, xa.XAER_PROTO)):
        rm.start(xid())
        rm.space.put("replies", "hello")
        rm.end(xid(), xa.TMSUSPEND)
        rm.end(xid(), flags)
        if code is None:
            rm.commit(xid(), xa.TMONEPHASE)
        else:
            assert code_of(rm.commit, xid(), xa.TMONEPHASE) == code
            rm.rollback(xid())
    assert bodies(rm.space) == ["hello"]


def test_branches_alternate_in_one_thread(rm: xa.ResourceManager) -> None:
    """XA, 3.3. IBM MQ could not resume the outer transaction of Bitronix (IT38380); pgjdbc does not interleave."""
    outer, inner = xid(b"outer"), xid(b"inner")
    rm.start(outer)
    rm.space.put("replies", "outer 1")
    rm.end(outer, xa.TMSUSPEND)
    rm.start(inner)
    rm.space.put("replies", "inner 1")
    rm.end(inner, xa.TMSUSPEND)
    rm.start(outer, xa.TMRESUME)
    rm.space.put("replies", "outer 2")
    rm.end(outer)
    rm.start(inner, xa.TMRESUME)
    rm.space.put("replies", "inner 2")
    rm.end(inner)
    for one in (inner, outer):
        assert rm.prepare(one) == xa.XA_OK
    rm.rollback(inner)
    rm.commit(outer)
    assert bodies(rm.space) == ["outer 1", "outer 2"]


def test_a_message_that_a_suspended_branch_took_remains_claimed(rm: xa.ResourceManager, other: Any) -> None:
    """XA, 3.3: a suspended association keeps its work. MySQL and pgjdbc have no SUSPEND."""
    rm.start(xid())
    assert rm.space.get("in").body == "milk"
    rm.end(xid(), xa.TMSUSPEND)
    for space in (rm.space, other.space):
        assert (space.stats("in").ready, space.stats("in").claimed) == (1, 1)
    assert rm.space.get("in").body == "tea"
    with pytest.raises(spool.Empty):
        other.space.get("in")
    rm.end(xid(), xa.TMFAIL)
    rm.rollback(xid())
    assert other.space.get("in").body == "milk"


# -- several branches --------------------------------------------------------------------------------------------------


def test_xids_that_differ_in_one_part_are_different_branches(rm: xa.ResourceManager, tmp_path: Path) -> None:
    """XA, 2.2.6 and 4.2. MySQL, Restrictions on XA Transactions: there, bqual must differ, too."""
    all_of_them = [
        xa.Xid(7, b"transaction", b"branch"), xa.Xid(7, b"transaction", b"branch 2"), xa.Xid(7, b"transaction", b""),
        xa.Xid(7, b"transaction 2", b"branch"), xa.Xid(8, b"transaction", b"branch"),
        xa.Xid(7, b"transactionb", b"ranch"),
    ]  # fmt: skip
    for place, one in enumerate(all_of_them):
        begun(rm, one, place)
        assert rm.prepare(one) == xa.XA_OK
    assert sorted(rm.recover()) == sorted(all_of_them)
    for place, one in enumerate(all_of_them):
        (rm.commit if place % 2 else rm.rollback)(one)
    assert bodies(rm.space) == [1, 3, 5]
    assert rm.recover() == []


def test_branches_of_one_transaction_see_nothing_of_each_other(rm: xa.ResourceManager) -> None:
    """XA, 2.2.9 (loosely-coupled threads), also after the vote."""
    first, second = xa.Xid(7, b"transaction", b"1"), xa.Xid(7, b"transaction", b"2")
    for vote in (False, True):
        rm.start(first)
        rm.space.put("replies", "hello")
        rm.space.get("in")
        rm.end(first)
        if vote:
            rm.prepare(first)
        rm.start(second)
        with pytest.raises(spool.Empty):
            rm.space.get("replies")
        assert rm.space.get("in").body == "tea"
        rm.end(second)
        for one in (second, first):
            rm.rollback(one)


def test_messages_have_the_order_of_the_commits_and_not_of_the_votes(rm: xa.ResourceManager) -> None:
    """docs/architecture.md, publication in the order of the commits: a late decision overtakes nothing."""
    for name in (b"early", b"late"):
        voted(rm, xid(name))
    rm.space.put("replies", b"plain")
    for name in (b"late", b"early"):
        rm.commit(xid(name))
    assert bodies(rm.space) == [b"plain", b"late", b"early"]


# -- xa_prepare --------------------------------------------------------------------------------------------------------


def test_a_branch_that_found_nothing_is_read_only_and_forgotten(rm: xa.ResourceManager, other: Any) -> None:
    """XA, 2.3.2 (Protocol Optimisations): a read-only branch gets no second phase."""
    before = door.disk(rm.space).flushes
    rm.start(xid())
    with pytest.raises(spool.Empty):
        rm.space.get("replies")
    rm.end(xid())
    assert rm.prepare(xid()) == xa.XA_RDONLY
    assert door.disk(rm.space).flushes == before
    for manager in (rm, other):
        assert manager.recover() == []
        for call in (manager.commit, manager.rollback, manager.prepare, manager.forget):
            assert code_of(call, xid()) == xa.XAER_NOTA


@pytest.mark.parametrize("refused_by", ["the disk", "a limit"])
def test_a_vote_that_is_refused_ends_the_branch(
    rm: xa.ResourceManager, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    """XA, xa_prepare (XA_RB*). pgjdbc 3123: the rollback after a failed vote looked like a heuristic decision."""
    rm.space.change_queue("replies", max_messages=1)
    rm.start(xid())
    rm.space.get("in")
    rm.space.put("replies", "hello")
    rm.end(xid())
    if refused_by == "the disk":
        monkeypatch.setattr(Disk, "write_at", no_room)
    else:
        rm.space.put("replies", "of another program")
    assert xa.XA_RBBASE <= code_of(rm.prepare, xid()) <= xa.XA_RBEND
    monkeypatch.undo()
    assert code_of(rm.rollback, xid()) == xa.XAER_NOTA
    assert rm.recover() == []
    assert bodies(rm.space, queue="in") == ["milk", "tea"]
    assert "hello" not in bodies(rm.space)


# -- xa_commit and xa_rollback -----------------------------------------------------------------------------------------


def outcome(decide: Callable[[xa.Xid], int], one: xa.Xid) -> int:
    try:
        return decide(one)
    except xa.XAError as error:
        return error.code


def test_a_commit_and_a_rollback_of_two_programs_have_one_winner(rm: xa.ResourceManager, other: Any) -> None:
    """XA, 2.3.4: recoveries run beside programs. XAER_NOTA: another program has decided (Narayana, JBTM-2939)."""
    for number in range(10):
        one = xid(b"%d" % number)
        voted(rm, one)
        with ThreadPoolExecutor(2) as pool:
            codes = [pool.submit(outcome, call, one) for call in (rm.commit, other.rollback)]
        committed, rolled_back = (code.result() for code in codes)
        assert {committed, rolled_back} == {xa.XAER_NOTA, xa.XA_OK}
        assert (one.gtrid in bodies(rm.space)) is (committed == xa.XA_OK)
    assert rm.recover() == []


def test_a_rollback_of_an_unknown_xid_does_not_end_the_work_of_the_caller(rm: xa.ResourceManager) -> None:
    """ARTEMIS-5806: the rollback of an unknown xid, by a recovery, ended the session's own transaction."""
    rm.start(xid())
    rm.space.put("replies", "before")
    for call in (rm.rollback, rm.commit, rm.forget, rm.prepare, rm.end):
        assert code_of(call, UNKNOWN) == xa.XAER_NOTA
    rm.space.put("replies", "after")
    rm.end(xid())
    rm.commit(xid(), xa.TMONEPHASE)
    assert bodies(rm.space) == ["before", "after"]


def test_another_branch_is_decided_within_the_work_of_a_branch(rm: xa.ResourceManager) -> None:
    """XA, 3.4 (Branch Completion): xa_prepare, xa_commit, xa_rollback and xa_recover need no association."""
    for name in (b"one", b"two"):
        voted(rm, xid(name))
    begun(rm, xid(b"three"))
    rm.start(xid())
    rm.space.put("replies", "before")
    assert len(rm.recover()) == 2
    rm.commit(xid(b"one"))
    rm.rollback(xid(b"two"))
    rm.prepare(xid(b"three"))
    rm.space.put("replies", "after")
    rm.end(xid())
    rm.commit(xid(), xa.TMONEPHASE)
    assert bodies(rm.space) == [b"one", "before", "after"]
    assert rm.recover() == [xid(b"three")]
    rm.rollback(xid(b"three"))


def test_a_rollback_by_another_process_counts_the_attempts(rm: xa.ResourceManager, other: Any) -> None:
    """OpenMQ 206: a message was not delivered again after a rollback that failed once."""
    rm.start(xid())
    rm.space.get("in")
    rm.end(xid())
    rm.prepare(xid())
    other.rollback(xid())
    assert [(message.body, message.attempts) for message in rm.space.browse("in")] == [("milk", 1), ("tea", 0)]
    assert rm.space.get("in").body == "milk"


# -- xa_recover --------------------------------------------------------------------------------------------------------


def test_a_scan_begins_again_with_the_whole_list(rm: xa.ResourceManager, other: Any) -> None:
    """XA, xa_recover. GlassFish, Recovery Workarounds: Oracle's driver returned the same list for each flag."""
    names = [b"a", b"b"]
    for name in names:
        voted(rm, xid(name))
    whole = [xid(name) for name in names]
    for manager in (rm, other):  # each has a scan of its own
        for _ in range(2):
            assert manager.recover(xa.TMSTARTRSCAN) == whole
            assert manager.recover(xa.TMNOFLAGS) == []
    assert rm.recover(xa.TMENDRSCAN) == []
    for _ in range(2):
        assert rm.recover(xa.TMSTARTRSCAN | xa.TMENDRSCAN) == whole
    assert code_of(rm.recover, xa.TMENDRSCAN) == xa.XAER_INVAL
    assert other.recover(xa.TMENDRSCAN) == [], "the scan of the other resource manager is still open"
    rm.commit(whole[0])
    assert rm.recover() == other.recover() == whole[1:]


def test_a_scan_lists_prepared_branches_of_all_transaction_managers_and_no_others(rm: xa.ResourceManager) -> None:
    """XA, 4.2 and xa_recover: each transaction manager recognizes its own xids, e.g. by the format id.

    0x42746e78 is Bitronix, 131077 is Narayana, and 1096044365 is Atomikos.
    """
    formats = [0, 131077, 1096044365, 0x42746E78, 2**31 - 1]
    for format_id in formats:
        voted(rm, xa.Xid(format_id, b"transaction", b"branch"))
    begun(rm, xid(b"idle"))
    rm.start(xid(b"suspended"))
    rm.space.put("replies", "hello")
    rm.end(xid(b"suspended"), xa.TMSUSPEND)
    rm.start(xid(b"failed"))
    rm.end(xid(b"failed"), xa.TMFAIL)
    with rm.space.transaction() as own:  # an association outside of XA
        own.put("replies", "hello")
        assert [one.format_id for one in rm.recover()] == formats
    for name in (b"idle", b"failed"):
        rm.rollback(xid(name))
    rm.end(xid(b"suspended"), xa.TMFAIL)
    rm.rollback(xid(b"suspended"))


@pytest.mark.parametrize(
    "one",
    [
        xa.Xid(0, b"g", b""),
        xa.Xid(2**31 - 1, b"\xff" * 64, b"\xff" * 64),
        xa.Xid(1, b"\0" * 64, b"\0" * 64),
        xa.Xid(1, b"../\n. %s\\'\"", b"/etc\0\r\n"),
        xa.Xid(1, bytes(range(64)), bytes(range(192, 256))),
    ],
    ids=["shortest", "longest", "zeros", "odd characters", "all bytes"],
)
def test_xids_within_the_limits_are_recovered_byte_by_byte(rm: xa.ResourceManager, one: xa.Xid) -> None:
    """XA, 4.2: 64 and 64 bytes of any value. pgjdbc, CustomXid of its tests."""
    voted(rm, one)
    path = rm.space.path
    rm.space.close()
    with spool.open(path) as space:
        [found] = xa.ResourceManager(space).recover()
        assert found == one
        assert space.recovery.in_doubt == [str(one)]
        assert repr([found]) == f"[Xid.parse('{one}')]"  # as spool-admin transaction takes it
        xa.ResourceManager(space).commit(xa.Xid.parse(str(found)))
        assert bodies(space) == [one.gtrid]


# -- time limits -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def limited(space: spool.Space, clock: SimulatedClock) -> Iterator[xa.ResourceManager]:
    """A resource manager with a time limit, by a clock that only the test moves."""
    with spool.open(timed(space.path, clock)) as found:
        yield xa.ResourceManager(found, timeout=LIMIT_SECONDS)


def test_a_branch_that_took_too_long_is_rolled_back(limited: xa.ResourceManager, clock: SimulatedClock) -> None:
    """XA, 4.5 (XA_RBTIMEOUT). JTA, XAResource.setTransactionTimeout."""
    rm, space = limited, limited.space
    for call in (rm.prepare, lambda one: rm.commit(one, xa.TMONEPHASE)):
        rm.start(xid())
        assert space.get("in").body == "milk"
        space.put("replies", "hello")
        clock.sleep(LIMIT_SECONDS + 1)
        with pytest.raises(spool.TransactionTimeout):
            space.put("replies", "late")
        assert bodies(space, queue="in") == ["milk", "tea"]
        rm.end(xid())
        assert code_of(call, xid()) == xa.XA_RBTIMEOUT
        assert code_of(rm.rollback, xid()) == xa.XAER_NOTA
    assert bodies(space) == []


def test_an_ended_branch_that_took_too_long_is_rolled_back_by_its_vote(
    limited: xa.ResourceManager, clock: SimulatedClock
) -> None:
    """XA, xa_prepare and xa_commit (XA_RBTIMEOUT). The rollback of such a branch is no error."""
    rm, space = limited, limited.space
    for call in (rm.prepare, lambda one: rm.commit(one, xa.TMONEPHASE)):
        begun(rm, xid())
        clock.sleep(LIMIT_SECONDS + 1)
        assert code_of(call, xid()) == xa.XA_RBTIMEOUT
        assert code_of(rm.rollback, xid()) == xa.XAER_NOTA
    begun(rm, xid())
    clock.sleep(LIMIT_SECONDS + 1)
    assert rm.rollback(xid()) == xa.XA_OK
    assert bodies(space) == []


def test_the_time_limit_ends_with_the_vote(limited: xa.ResourceManager, clock: SimulatedClock) -> None:
    """XA, 2.3.4: after its vote, a resource manager waits for the decision."""
    rm, space = limited, limited.space
    voted(rm, xid())
    clock.sleep(365 * 24 * 3600)
    assert rm.recover() == [xid()]
    rm.commit(xid())
    assert bodies(space) == [xid().gtrid]


# -- the end of a resource manager -------------------------------------------------------------------------------------


def test_calls_after_the_space_was_closed_are_rmfail(rm: xa.ResourceManager) -> None:
    """XA, 4.5 (XAER_RMFAIL). pgjdbc, testNetworkIssueOnCommit, …OnOnePhaseCommit and …OnRollback."""
    voted(rm, xid(b"prepared"))
    begun(rm, xid(b"idle"))
    path = rm.space.path
    rm.space.close()
    for name in (b"prepared", b"idle", b"unknown"):
        for call in (rm.start, rm.end, rm.prepare, rm.commit, rm.rollback, rm.forget):
            assert code_of(call, xid(name)) == xa.XAER_RMFAIL
    assert code_of(rm.recover) == xa.XAER_RMFAIL
    with spool.open(path) as space:
        again = xa.ResourceManager(space)
        assert again.recover() == [xid(b"prepared")]
        assert code_of(again.commit, xid(b"idle"), xa.TMONEPHASE) == xa.XAER_NOTA
        again.commit(xid(b"prepared"))
        assert bodies(space) == [b"prepared"]


def test_a_prepared_branch_is_decided_by_a_resource_manager_that_never_saw_it(rm: xa.ResourceManager) -> None:
    """XA, 3.4: any thread decides. pgjdbc, testCommitByDifferentConnection and testRollbackByDifferentConnection."""
    for name in (b"one", b"two"):
        voted(rm, xid(name))
    again = xa.ResourceManager(rm.space)
    again.commit(xid(b"one"))
    in_thread(lambda: again.rollback(xid(b"two")))
    assert code_of(rm.commit, xid(b"one")) == xa.XAER_NOTA
    assert code_of(rm.commit, xid(b"two")) == xa.XAER_NOTA
    assert bodies(rm.space) == [b"one"]


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_decision_that_the_disk_refuses_is_repeated_by_another_process(
    rm: xa.ResourceManager, other: Any, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    """XA, xa_commit (XA_RETRY): nothing is lost, and no code says that the branch was rolled back."""
    voted(rm, xid())
    monkeypatch.setattr(Disk, "rename_new", no_room)
    monkeypatch.setattr(Disk, "unlink", no_room)
    for _ in range(2):
        assert code_of(getattr(rm, decision), xid()) == xa.XA_RETRY
    monkeypatch.undo()
    assert getattr(other, decision)(xid()) == xa.XA_OK
    assert bodies(other.space) == ([xid().gtrid] if decision == "commit" else [])
    assert rm.recover() == []
