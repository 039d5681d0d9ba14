"""What one process did a moment ago, another sees: at every question, and again where it decides (DESIGN §5)."""

from collections.abc import Callable

import pytest

import spool
from recovery.report import Kind
from spool import decide, layout
from spool.clock import WaitExpired
from spool.consume import peek
from spool.decide import UnknownBranch
from spool.errors import BadMessageId, CommitUnknown, SpaceStopped, SpoolError, TransactionTimeout
from spool.intake import Intake
from spool.locks import coordinator_byte
from spool.message import Position
from spool.notes import bury_the_dead
from spool.presence import Presence
from spool.publication import settle_all
from spool.reclaim import reclaim
from spool.space import replace_file
from spool.transaction import Transaction
from spool.xid import FORMAT_ROUND, Xid
from tests.machine import PowerCut
from tests.simdisk import ROOT
from tests.spool import meanwhile
from tests.spool.meanwhile import Meanwhile, Processes

XID = Xid(7, b"one", b"")
ROUND = Xid(FORMAT_ROUND, b"round", b"1")


Watched = tuple[spool.Space, Meanwhile]


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def space(processes: Processes) -> spool.Space:
    return processes.space()


@pytest.fixture
def other(processes: Processes, space: spool.Space) -> spool.Space:
    return processes.space()


@pytest.fixture
def watched(processes: Processes, space: spool.Space) -> Watched:
    """A process to which things happen."""
    return processes.open()


def prepare(space: spool.Space, xid: Xid = XID, *, take: bool = False) -> None:
    meanwhile.prepare(space, xid, take=take)


def commit(space: spool.Space, *, told: bool = True) -> int:
    return decide.commit_prepared(space._store, XID, space._store.deadline(1), told=told)


def rollback(space: spool.Space) -> None:
    decide.rollback_prepared(space._store, XID, space._store.deadline(1))


def start_streaming(space: spool.Space) -> Transaction:
    """A branch whose file lies in active/ before it ends."""
    branch = Transaction(space._store, space._undertaker, xid=XID, timeout=None)
    branch.put_many("orders", [bytes(1 << 20)] * 20)
    return branch


def bodies(space: spool.Space) -> list[object]:
    return [message.body for message in space.browse("orders")]


def take_and_reclaim(space: spool.Space) -> None:
    """The first message's file goes, and another's takes its place in the line."""
    space.get("orders")
    space.put("orders", "newest")
    assert reclaim(space._store)


# -- questions --------------------------------------------------------------------------------------------------------


def test_what_another_process_put_is_there_for_every_question(space: spool.Space, other: spool.Space) -> None:
    wanted = space.put("orders", "one")
    assert other.show(wanted).body == "one"
    space.put("orders", "two")
    assert bodies(other) == ["one", "two"]
    space.put("orders", "three")
    assert other.stats()["orders"].ready == 3
    space.put("orders", "four")
    with space.transaction() as transaction:
        transaction.get("orders")
        assert (other.stats()["orders"].ready, other.stats()["orders"].claimed) == (3, 1)
        transaction.rollback()
    assert [other.get("orders").body for _ in range(4)] == ["one", "two", "three", "four"]


def test_what_another_process_s_branch_holds_is_hidden_from_every_question(
    space: spool.Space, other: spool.Space
) -> None:
    space.put("orders", "one")
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert bodies(other) == []
    rollback(space)
    assert bodies(other) == ["one"]
    prepare(space, take=True)
    assert other.stats()["orders"].in_doubt == 2, "what it takes and what it adds"
    rollback(space)
    assert other.stats()["orders"].in_doubt == 0
    prepare(space, take=True)
    with pytest.raises(spool.Empty):
        other.get("orders")
    rollback(space)
    assert other.get("orders").body == "one"


def test_check_looks_at_what_another_process_put_a_moment_ago(
    processes: Processes, space: spool.Space, other: spool.Space
) -> None:
    space.put("orders", "one")
    name = layout.committed(space._store.index.applied)
    processes.disk().damage(name)
    assert [(finding.kind, finding.name) for finding in other.check()] == [(Kind.DAMAGED, name)]


def test_check_finds_no_fault_with_what_is_reclaimed_while_it_looks(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    assert bodies(checker) == ["one"]
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    assert checker.check() == []
    assert bodies(checker) == ["newest"]


def test_a_message_that_is_reclaimed_while_it_is_shown_is_gone_and_not_damaged(
    space: spool.Space, watched: Watched
) -> None:
    reader, disk = watched
    wanted = space.put("orders", "one")
    assert bodies(reader) == ["one"]
    reader._store.sources.forget(1, 0)
    disk.before("open", lambda: take_and_reclaim(space), layout.committed(1))
    with pytest.raises(BadMessageId):
        reader.show(wanted)
    assert peek(reader._store, Position(1, 0)) is None


def test_claims_in_a_file_that_was_deleted_stop_the_space(space: spool.Space) -> None:
    space.put("orders", "one")
    with space.transaction() as transaction:
        transaction.get("orders")
        transaction.rollback()
    space._store.disk.unlink(layout.claim_file(1))
    with pytest.raises(SpaceStopped):
        space.get("orders")


def test_a_number_is_not_published_before_those_of_living_writers(space: spool.Space, watched: Watched) -> None:
    """Nor finished in their place: whoever comes waits."""
    slow, disk = watched

    def come_behind() -> None:
        with pytest.raises(CommitUnknown, match="commit 1 is held by"):
            space.put("orders", "two")
        assert bodies(space) == []

    disk.before("make_durable", come_behind)
    slow.put("orders", "one")
    assert bodies(space) == ["one"]
    space.put("orders", "three")
    assert bodies(space) == ["one", "two", "three"]


def dies_before_its_number_is_stored(disk: Meanwhile, step: Callable[[], object]) -> None:
    """The file has its name, and the counters do not say so yet."""
    disk.before("rename_new", lambda: disk.before("write_at", disk.die), layout.ACTIVE)
    with pytest.raises(PowerCut):
        step()


def test_a_number_that_was_given_out_and_not_stored_is_not_given_out_again(
    space: spool.Space, watched: Watched
) -> None:
    doomed, disk = watched
    dies_before_its_number_is_stored(disk, lambda: doomed.put("orders", "one"))
    assert space.check() == [], "its file is no stray"
    space.put("orders", "two")
    assert bodies(space) == ["one", "two"]


def test_a_removal_whose_number_is_not_stored_counts(space: spool.Space, watched: Watched) -> None:
    space.put("orders", "one")
    doomed, disk = watched
    dies_before_its_number_is_stored(disk, lambda: doomed.get("orders"))
    with pytest.raises(spool.Empty):
        space.get("orders")


def test_who_finishes_a_number_looks_whether_another_did(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    doomed, its_disk = processes.open()
    its_disk.dies_before("make_durable", lambda: doomed.put("orders", "one"), layout.COMMITTED)
    slow, disk = watched
    disk.before("lock", lambda: space.put("orders", "two"))
    settle_all(slow._store, slow._store.deadline())
    assert slow._store.counters.read().published == 2


def test_a_queue_that_another_process_made_is_there_at_once(space: spool.Space, other: spool.Space) -> None:
    space.create_queue("more")
    other.put("more", "one")
    assert space.get("more").body == "one"
    space.create_queue("third", retries=5)
    assert other.queues()["third"].retries == 5


def test_a_queue_s_new_settings_are_seen_by_the_next_put(space: spool.Space, other: spool.Space) -> None:
    """Settings are edited by people, who bump no version of their own; whoever creates a queue does."""
    text = other._store.read_settings_text()
    other.put("orders", "one")
    assert other._store.config.max_body_bytes > 10
    replace_file(space._store.disk, layout.SETTINGS, f"max_body_bytes = 10\n{text}".encode())
    space.create_queue("more")
    with pytest.raises(spool.SpoolError, match="max_body_bytes"):
        other.put("orders", "x" * 11)


def test_a_process_does_not_read_back_what_it_committed_itself(processes: Processes, space: spool.Space) -> None:
    space.put("orders", "one")
    read = [args for call, args in processes.machine.trace if call == "open" and args[0] == layout.committed(1)]
    assert space.stats("orders").ready == 1
    assert [args for call, args in processes.machine.trace if call == "open" and args[0] == layout.committed(1)] == read


def test_check_knows_queues_that_another_process_made(space: spool.Space, other: spool.Space) -> None:
    other.create_queue("more")
    other.put("more", "one")
    assert space.check() == []


def test_check_finds_no_file_missing_that_is_reclaimed_while_it_looks(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    disk.before("names", lambda: take_and_reclaim(space), layout.ACTIVE)
    assert checker.check() == []
    assert not disk.waits_for("names")


def test_nobody_reclaims_while_a_check_counts_files(space: spool.Space, watched: Watched) -> None:
    checker, disk = watched
    space.put("orders", "one")
    counts: list[int] = []

    def come_too() -> None:
        space.get("orders")
        space.put("orders", "newest")
        counts.append(reclaim(space._store))

    disk.before("names", come_too, layout.COMMITTED, spare=2)
    assert checker.check() == []
    assert counts == [0]


# -- branches ---------------------------------------------------------------------------------------------------------


def committed_and_not_moved(processes: Processes) -> int:
    """Another process commits the branch, and dies before it moves it."""
    committer, disk = processes.open()
    disk.dies_before("rename", lambda: commit(committer), "prepared/")
    return processes.newest()


def committed_and_not_published(processes: Processes) -> int:
    """Another process commits the branch, and dies before its commit is visible."""
    committer, disk = processes.open()
    disk.dies_before("make_durable", lambda: commit(committer), "committed")
    return processes.newest()


HOW_IT_DIED = pytest.mark.parametrize("committed", [committed_and_not_moved, committed_and_not_published])


@HOW_IT_DIED
@pytest.mark.parametrize(
    "decision", [commit, lambda space: commit(space, told=False), rollback], ids=["commit", "untold commit", "rollback"]
)
def test_a_branch_that_was_committed_by_one_who_died_is_decided(
    processes: Processes,
    space: spool.Space,
    committed: Callable[[Processes], int],
    decision: Callable[[spool.Space], object],
) -> None:
    """The second decision is refused, says which commit it was, and writes nothing."""
    space.put("orders", "one")
    prepare(space, take=True)
    number = committed(processes)
    with pytest.raises(UnknownBranch) as refused:
        decision(space)
    assert refused.value.committed_by == number
    assert space._store.counters.read().published == number
    assert bodies(space) == ["new"]


def test_who_asks_for_a_branch_that_was_committed_and_moved_is_told_by_which_commit(
    space: spool.Space, other: spool.Space
) -> None:
    prepare(space)
    number = commit(other)
    with pytest.raises(UnknownBranch) as refused:
        commit(space)
    assert refused.value.committed_by == number


def test_a_branch_that_was_rolled_back_and_came_up_again_is_another_branch(
    space: spool.Space, watched: Watched
) -> None:
    """Who was told the first one's vote does not commit the second."""
    committer, disk = watched
    prepare(space)

    def again() -> None:
        rollback(space)
        prepare(space)

    disk.before("write_at", again)
    with pytest.raises(UnknownBranch):
        commit(committer)
    commit(space)
    assert bodies(committer) == ["new"]
    assert space.check() == []


@pytest.mark.parametrize("told", [True, False])
@HOW_IT_DIED
def test_a_branch_that_was_committed_by_one_who_died_is_not_in_doubt(
    processes: Processes, space: spool.Space, committed: Callable[[Processes], int], told: bool
) -> None:
    prepare(space)
    committed(processes)
    assert decide.in_doubt(space._store, space._store.deadline(1), told=[XID] if told else []) == []


def test_a_branch_that_was_committed_and_not_moved_is_not_prepared_and_is_moved_by_an_opener(
    processes: Processes, space: spool.Space
) -> None:
    prepare(space)
    number = committed_and_not_moved(processes)
    assert not decide.is_prepared(space._store, XID)
    assert bodies(processes.space()) == ["new"]
    assert space._store.disk.exists(layout.committed(number, 1))


def test_who_moves_branches_looks_for_their_commits_first(processes: Processes, space: spool.Space) -> None:
    prepare(space)
    number = committed_and_not_moved(processes)
    assert decide.finish_moves(space._store) == [XID]
    assert space._store.disk.exists(layout.committed(number, 1))


def test_an_administrator_s_decision_is_known_in_every_process(space: spool.Space, other: spool.Space) -> None:
    prepare(space)
    decide.decide_heuristically(other._store, XID, other._store.deadline(), commit=True)
    assert decide.heuristic_outcome(space._store, XID) == decide.COMMITTED


def test_the_branch_of_a_coordinator_that_died_frees_its_messages_for_the_next_get(
    space: spool.Space, other: spool.Space, watched: Watched
) -> None:
    space.put("orders", "one")
    doomed, disk = watched
    assert doomed._store.xids.try_lock(coordinator_byte(ROUND.gtrid))
    prepare(doomed, ROUND, take=True)
    assert bodies(other) == []
    assert decide.settle_the_dead(other._store, other._store.deadline()) == [], "it lives"
    disk.die()
    assert other.get("orders").body == "one"


def test_who_settles_for_the_dead_looks_for_their_branches_first(space: spool.Space, other: spool.Space) -> None:
    prepare(space, ROUND)
    assert decide.settle_the_dead(other._store, other._store.deadline()) == [ROUND]


# -- housekeeping beside the living -----------------------------------------------------------------------------------


def _put(space: spool.Space) -> None:
    space.put("orders", "one")


def _commit_a_branch(space: spool.Space) -> None:
    prepare(space)
    commit(space)


def _roll_back_a_get(space: spool.Space) -> None:
    space.put("orders", "one")
    with space.transaction() as transaction:
        transaction.get("orders")
        transaction.rollback()


@pytest.mark.parametrize("step", [_put, prepare, _commit_a_branch, _roll_back_a_get])
def test_whoever_cleans_up_leaves_the_files_of_the_living(
    space: spool.Space, watched: Watched, step: Callable[[spool.Space], object]
) -> None:
    """Just before each of them gets the name that keeps it."""
    living, disk = watched
    seen: list[set[str]] = []

    def clean() -> None:
        seen.append(set(space._store.disk.names(layout.ACTIVE)))
        bury_the_dead(space._store, space._store.deadline())
        assert set(space._store.disk.names(layout.ACTIVE)) == seen[-1]
        disk.before("rename_new", clean, "active/")

    disk.before("rename_new", clean, "active/")
    step(living)
    assert seen
    assert all(seen)


def test_whoever_cleans_up_leaves_a_branch_that_streams(space: spool.Space, other: spool.Space) -> None:
    with space.transaction() as transaction:
        transaction.put_many("orders", [bytes(1 << 20)] * 20)
        bury_the_dead(other._store, other._store.deadline())
    assert space.stats("orders").ready == 20


def test_a_death_after_the_commit_counts_no_try(space: spool.Space, watched: Watched) -> None:
    space.put("orders", "one")
    consumer, disk = watched
    transaction = consumer.transaction()
    transaction.get("orders")
    disk.dies_before("make_durable", transaction.commit, "committed")
    bury_the_dead(space._store, space._store.deadline())
    assert bodies(space) == []
    assert space._store.counters.read().published == 2, "nothing else was written"


def test_a_death_is_counted_for_messages_that_only_the_dead_had_seen(space: spool.Space, watched: Watched) -> None:
    doomed, disk = watched
    wanted = doomed.put("orders", "one")
    doomed.transaction().get("orders")
    disk.die()
    bury_the_dead(space._store, space._store.deadline())
    assert space.show(wanted).attempts == 1


def test_a_death_is_counted_once_though_two_find_the_note(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    """While one counts, another leaves the note to it."""
    counting, disk = watched
    doomed, its_disk = processes.open()
    wanted = doomed.put("orders", "one")
    doomed.transaction().get("orders")
    its_disk.die()
    disk.before("rename_new", lambda: bury_the_dead(space._store, space._store.deadline(0.05)), "active/")
    bury_the_dead(counting._store, counting._store.deadline())
    assert space.show(wanted).attempts == 1


def test_no_try_is_counted_for_who_lives(processes: Processes, space: spool.Space, other: spool.Space) -> None:
    """And nobody waits for its death."""
    wanted = space.put("orders", "one")
    space.transaction().get("orders")
    begun = processes.machine.clock.time
    bury_the_dead(other._store, other._store.deadline())
    assert processes.machine.clock.time == begun
    assert other.show(wanted).attempts == 0


def test_who_takes_a_dead_one_s_message_counts_its_try_first(space: spool.Space, watched: Watched) -> None:
    doomed, disk = watched
    doomed.put("orders", "one")
    doomed.transaction().get("orders")
    disk.die()
    assert space.get("orders").attempts == 1


def test_of_a_note_that_was_cut_short_or_damaged_what_is_whole_counts(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    """A note is never flushed."""
    doomed, disk = watched
    first, second = doomed.put("orders", "one"), doomed.put("orders", "two")
    transaction = doomed.transaction()
    transaction.get("orders")
    transaction.get("orders")
    disk.die()
    (name,) = (name for name in processes.disk().names(layout.ACTIVE) if name.endswith(layout.NOTE_SUFFIX))
    processes.disk().damage(f"{layout.ACTIVE}/{name}")
    bury_the_dead(space._store, space._store.deadline())
    assert (space.show(first).attempts, space.show(second).attempts) == (1, 0)


# -- what a dead writer left ------------------------------------------------------------------------------------------


def damaged_body(processes: Processes) -> None:
    processes.disk().damage(layout.committed(2))


def bytes_of_another(processes: Processes) -> None:
    """A recycled file with its old, whole content."""
    disk = processes.disk()
    source, target = disk.open(layout.committed(1)), disk.open(layout.committed(2), write=True)
    data = disk.read_at(source, 0, 1 << 20)
    disk.truncate(target, len(data))
    disk.write_at(target, 0, data)


@pytest.mark.parametrize("leave", [damaged_body, bytes_of_another])
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_dead_writer_left_is_proven_before_it_counts(
    processes: Processes, leave: Callable[[Processes], None], alone: bool
) -> None:
    """Nobody was promised it: it goes to quarantine, and its number becomes an empty commit."""
    space, its_disk = processes.open()
    space.put("orders", "one")
    doomed, disk = processes.open()
    disk.dies_before("make_durable", lambda: doomed.put("orders", "two"), layout.COMMITTED)
    leave(processes)
    if alone:
        its_disk.die()
        space = processes.space()
        found = [(one.kind, one.name) for one in space.recovery.findings if one.name == layout.committed(2)]
        assert found == [(Kind.TORN, layout.committed(2))]
    space.put("orders", "three")
    assert bodies(space) == ["one", "three"]
    assert len(space.quarantined()) == 1
    assert [one for one in space.check() if one.kind is Kind.DAMAGED] == []


def test_two_who_note_their_claims_are_two_owners(space: spool.Space, watched: Watched) -> None:
    """One waits while the other takes its number's bytes."""
    first, disk = watched
    space.put_many("orders", ["one", "two"])

    def come_too_early() -> None:
        with pytest.raises(TransactionTimeout):
            space.transaction().get("orders")

    disk.before("open", come_too_early, layout.claim_file(0))
    first.transaction().get("orders")
    assert not disk.waits_for("open")
    space.transaction().get("orders")
    assert {first._store.claims.owner, space._store.claims.owner} == {1, 2}


def test_who_reclaims_knows_what_others_took_and_forgets_no_count(space: spool.Space, other: spool.Space) -> None:
    """The files that hold messages go before those that removed them: several batches, each with its counts."""
    space.put("orders", "one")
    with other.transaction() as transaction:
        transaction.put("orders", transaction.get("orders").body)
    other.get("orders")
    other.put("orders", "newest")
    assert reclaim(space._store) >= 3
    assert (other.stats("orders").enqueued, other.stats("orders").dequeued) == (3, 2)


def test_reclaim_is_done_by_one_at_a_time(space: spool.Space, watched: Watched) -> None:
    first, disk = watched
    first.put("orders", "one")
    first.get("orders")
    first.put("orders", "newest")
    counts = []

    def come_too() -> None:
        counts.append(reclaim(space._store))
        assert space.check() == [], "nor is there anything to find"

    disk.before("rename", come_too, layout.COMMITTED)
    assert reclaim(first._store) >= 2
    assert counts == [0]


# -- opening ----------------------------------------------------------------------------------------------------------


def test_who_opens_beside_another_is_not_alone(processes: Processes, space: spool.Space) -> None:
    assert space.recovery.alone
    assert not processes.space().recovery.alone


def test_two_never_open_at_once(processes: Processes) -> None:
    """Or both would be alone, and recover."""
    disk = Meanwhile(processes.machine)

    def come_too_early() -> None:
        with pytest.raises(WaitExpired):
            processes.space()

    disk.before("names", come_too_early, layout.COMMITTED)
    assert spool.open(ROOT, disk=disk, clock=processes.machine.clock).recovery.alone


def test_who_only_looks_is_not_alone_beside_one_that_opens(processes: Processes) -> None:
    disk = Meanwhile(processes.machine)
    seen: list[bool] = []
    disk.before("names", lambda: seen.append(Presence(Meanwhile(processes.machine)).is_alone()), layout.COMMITTED)
    spool.open(ROOT, disk=disk, clock=processes.machine.clock)
    assert seen == [False]


def test_an_opener_leaves_the_number_of_a_writer_that_it_cannot_see_alive(processes: Processes) -> None:
    """No two processes may work on one number: who holds it without being alive does not follow the protocol."""
    writer, disk = processes.open()
    disk.dies_before("make_durable", lambda: writer.put("orders", "one"))
    stranger = Meanwhile(processes.machine)
    handle = stranger.open(layout.NUMBERS, write=True)
    assert stranger.lock(handle, 1)
    with pytest.raises(SpoolError, match="has a writer"):
        processes.space()


def test_an_opener_leaves_a_branch_that_came_up_since_it_looked(
    processes: Processes, space: spool.Space, watched: Watched
) -> None:
    """Its name had been a dead one's, whose file somebody else removed."""
    doomed, disk = watched
    start_streaming(doomed)
    disk.die()
    living: list[Transaction] = []

    def come_up() -> None:
        bury_the_dead(space._store, space._store.deadline())
        living.append(start_streaming(space))

    opener = Meanwhile(processes.machine)
    opener.before("names", come_up, layout.COMMITTED, spare=1)
    spool.open(ROOT, disk=opener, clock=processes.machine.clock)
    living[0].commit()
    assert space.stats("orders").ready == 20


@pytest.mark.parametrize("name", [layout.CONTROL, layout.NUMBERS, layout.XIDS])
def test_a_lock_file_that_was_deleted_stops_the_space(space: spool.Space, name: str) -> None:
    space._store.disk.unlink(name)
    with pytest.raises(SpaceStopped, match="deleted"):
        prepare(space)
        space.put("orders", "one")


def test_an_opener_leaves_what_a_live_consumer_holds(processes: Processes, space: spool.Space) -> None:
    """And does not wait for its death."""
    wanted = space.put("orders", "one")
    space.transaction().get("orders")
    begun = processes.machine.clock.time
    opener = processes.space()
    assert processes.machine.clock.time == begun
    assert opener.show(wanted).attempts == 0
    assert opener.recovery.findings == []


def test_an_opener_leaves_a_vote_to_who_is_at_it(processes: Processes, watched: Watched) -> None:
    voting, disk = watched
    found: list[spool.Space] = []
    disk.before("make_durable", lambda: found.append(processes.space()), layout.PREPARED)
    prepare(voting)
    assert found[0].recovery.findings == []


def test_an_opener_leaves_the_branches_of_a_live_coordinator(processes: Processes, space: spool.Space) -> None:
    assert space._store.xids.try_lock(coordinator_byte(ROUND.gtrid))
    prepare(space, ROUND)
    assert processes.space().recovery.findings == []
    assert space._store.disk.exists(layout.prepared(ROUND))


def test_an_opener_says_nothing_of_files_that_a_live_intake_has_taken(processes: Processes, watched: Watched) -> None:
    living, disk = watched
    handle = disk.create(f"{layout.DROP}/orders/dropped")
    disk.close(handle)
    found: list[spool.Space] = []
    disk.before("make_durable", lambda: found.append(processes.space()), layout.COMMITTED)
    Intake(living).run(once=True)
    assert found[0].recovery.findings == []


@pytest.mark.parametrize("ordered", [True, False])
def test_after_a_failed_flush_nothing_goes_for_good_where_renames_are_not_ordered(ordered: bool) -> None:
    """What is gone here may be on the disk yet, and would come back once its remover is gone."""
    processes = Processes(ordered=ordered)
    space, disk = processes.open()
    space.put("orders", "one")
    space.get("orders")
    space.put("orders", "newest")
    space._store.stop()
    disk.die()
    assert bool(reclaim(processes.space()._store)) is ordered


def test_a_counter_of_which_one_copy_is_damaged_is_known_by_the_other(space: spool.Space, processes: Processes) -> None:
    space.put_many("orders", ["one"])
    space.put("orders", "two")
    before = space._store.counters.read()
    disk = processes.disk()
    size = len(disk.read_at(disk.open(layout.COUNTERS), 0, 1 << 12))
    for offset in range(128, size, 32):
        disk.damage(layout.COUNTERS, offset)
    after = space._store.counters.read()
    for name in ("issued", "published", "durable", "prepared", "settings", "owner"):
        assert getattr(after, name) == getattr(before, name), name
