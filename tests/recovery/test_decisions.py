"""The decisions of recovery as functions of values, without a disk."""

import dataclasses
from collections.abc import Iterable

import pytest
from spool.recovery.branch_files import AdoptedFiles, LiveOwners, PreparedFiles
from spool.recovery.decision import Decision, Reason, Step
from spool.recovery.numbers import Condition, NumberedFile, NumberedFiles

from spool.admin.findings import LEFT_ALONE, Kind
from spool.coordination.counters import CounterPage
from spool.format.header import Header
from spool.model import layout
from spool.model.layout import CommittedName
from spool.model.position import Position
from spool.model.xid import FORMATS_BOUND_TO_A_LIFE, Xid
from spool.recovery import branch_files, decision, numbers, unfinished
from tests.shown import shown

FOREIGN, OTHER = Xid(7, b"foreign", b"1"), Xid(7, b"foreign", b"2")
OURS = Xid(min(FORMATS_BOUND_TO_A_LIFE), b"ours", b"1")
WHOLE, TORN = NumberedFile(Condition.WHOLE, "2 messages"), NumberedFile(Condition.TORN, "it is short")
EMPTY = NumberedFile(Condition.MISSING, "an empty file")


class _Page(CounterPage):
    def __init__(self, issued: int, published: int, durable: int, *, stopped: bool = False) -> None:
        self.issued, self.published, self.durable, self.is_stopped = issued, published, durable, stopped


def _evidence(**given: object) -> NumberedFiles:
    """Five numbers were issued in this boot, three published and durable; 4 is whole, 5 has no file."""
    usual = NumberedFiles(_Page(5, 3, 3), True, frozenset({1, 2, 3, 4, 5}), 4, 2, {}, {4: WHOLE})
    return dataclasses.replace(usual, **given)  # type: ignore[arg-type]


def _steps(decisions: Iterable[Decision]) -> list[tuple[str, Step]]:
    return [(one.name, one.step) for one in decisions]


# -- sequence numbers -------------------------------------------------------------------------------------------------


def test_unpublished_numbers_are_finished_discarded_or_filled_in_their_order() -> None:
    evidence = _evidence(seen=frozenset(range(1, 8)), files={4: WHOLE, 5: TORN, 7: EMPTY})
    found = numbers.decide(evidence)
    steps = [(4, Step.FINISH), (5, Step.DISCARD), (6, Step.FILL), (7, Step.FILL)]
    assert shown(found, "number step") == steps
    assert [one.cause for one in found] == ["2 messages", "it is short", "no file", "an empty file"]


def test_lost_names_are_given_from_the_lowest_number_up() -> None:
    found = numbers.decide(_evidence(unnamed={5: "free/x", 4: "active/y"}, files={4: WHOLE, 5: WHOLE}))
    assert _steps(found)[:2] == [("active/y", Step.NAME), ("free/x", Step.NAME)]


@pytest.mark.parametrize(
    ("given", "published", "same_life"),
    [
        ({}, 3, True),
        ({"same_boot": False}, 2, False),
        ({"page": _Page(5, 4, 3)}, 4, True),
        ({"page": _Page(5, 4, 3), "files": {4: TORN}}, 3, False),
        ({"page": _Page(5, 4, 3), "files": {}}, 3, False),
        ({"page": _Page(5, 4, 3, stopped=True)}, 3, True),
        ({"page": _Page(5, 3, 3), "mark": 4}, 4, True),
    ],
    ids=[
        "the counters count", "after a start of the machine the marks do", "so does a commit that was not flushed",
        "unless it is torn: power was cut", "or missing", "or a flush failed", "a mark above the counters",
    ],
)  # fmt: skip
def test_a_number_counts_as_published_only_with_proof(given: dict[str, object], published: int, same_life: bool):
    found = numbers.count(_evidence(**given))
    assert (found.issued, found.published, found.same_life) == (5, published, same_life)


def test_a_number_far_ahead_was_not_issued() -> None:
    assert numbers.count(_evidence(seen=frozenset({4, 5, 5 + numbers.MAX_GAP, 6 + 2 * numbers.MAX_GAP}))).issued == (
        5 + numbers.MAX_GAP
    )


def test_a_commit_that_only_the_mirror_has_is_finished_as_if_the_space_had_it() -> None:
    header = Header(0, 0.0, {}, durable_mark=3)
    given = _evidence(files={4: TORN}).with_mirrored({4: header, 6: header})
    assert given.from_mirror == (4, 6)
    steps = [(4, Step.FINISH), (5, Step.FILL), (6, Step.FINISH)]
    assert shown(numbers.decide(given), "number step") == steps


# -- files of branches -------------------------------------------------------------------------------------------------


def _owners(*owned: Xid, coordinators: Iterable[bytes] = ()) -> LiveOwners:
    return LiveOwners(frozenset(owned), frozenset(coordinators))


def _prepared(whole: dict[Xid, bool], owners: LiveOwners | None = None) -> PreparedFiles:
    return PreparedFiles(whole, (), owners or _owners(), 0)


def _adopted(found: dict[CommittedName, Xid | None], adopters: dict[int, tuple[Xid, ...]]) -> AdoptedFiles:
    return AdoptedFiles(found, adopters, _owners())


@pytest.mark.parametrize(
    ("found", "adopters", "step"),
    [
        (FOREIGN, {4: (FOREIGN,)}, None),
        (None, {4: (FOREIGN,)}, None),
        (FOREIGN, {}, Step.RETURN),
        (FOREIGN, {4: (OTHER,)}, Step.RETURN),
        (FOREIGN, {4: ()}, Step.RETURN),
        (None, {}, Step.QUARANTINE),
    ],
    ids=["adopted", "adopted and damaged", "its head is lost", "of another", "no longer adopted", "damaged, no head"],
)
def test_an_adopted_branch_stays_only_if_its_commit_survived(
    found: Xid | None, adopters: dict[int, tuple[Xid, ...]], step: Step | None
) -> None:
    decided = branch_files.decide_files(_prepared({}), _adopted({CommittedName(4, 1): found}, adopters))
    assert _steps(decided) == ([] if step is None else [(layout.committed(4, 1), step)])


def test_a_damaged_vote_is_quarantined_unless_it_is_committed_or_has_an_owner() -> None:
    adopted = _adopted({}, {4: (OTHER,)})
    damaged = _prepared({FOREIGN: False, OTHER: False, OURS: False}, _owners(OURS))
    assert _steps(branch_files.decide_files(damaged, adopted)) == [(layout.prepared(FOREIGN), Step.QUARANTINE)]


# -- votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("xid", "owners", "committed", "refused", "kind", "step"),
    [
        (FOREIGN, _owners(), (), (), Kind.IN_DOUBT, Step.LEAVE),
        (FOREIGN, _owners(FOREIGN), (), (), Kind.ALIVE, Step.LEAVE),
        (FOREIGN, _owners(FOREIGN), (FOREIGN,), (), Kind.MOVED, Step.MOVE),
        (FOREIGN, _owners(), (), (FOREIGN,), Kind.ROLLED_BACK, Step.ROLL_BACK),
        (FOREIGN, _owners(), (FOREIGN,), (FOREIGN,), Kind.MOVED, Step.MOVE),
        (OURS, _owners(), (), (), Kind.ROLLED_BACK, Step.ROLL_BACK),
        (OURS, _owners(coordinators=[OURS.gtrid]), (), (), Kind.ALIVE, Step.LEAVE),
        (OURS, _owners(OURS), (), (), Kind.ALIVE, Step.LEAVE),
    ],
)
def test_a_vote_waits_unless_it_is_decided_or_its_coordinator_is_dead(
    xid: Xid, owners: LiveOwners, committed: tuple[Xid, ...], refused: tuple[Xid, ...], kind: Kind, step: Step
) -> None:
    prepared = _prepared({xid: True}, owners)
    (decided,) = branch_files.decide_votes(prepared, branch_files.NONE_ADOPTED, [], committed, refused)
    assert (decided.kind, decided.step, decided.name) == (kind, step, layout.prepared(xid))


def test_a_branch_that_returns_is_decided_about_like_a_prepared_one() -> None:
    adopted = _adopted({CommittedName(4, 1): FOREIGN, CommittedName(4, 2): OURS}, {})
    files = branch_files.decide_files(_prepared({}), adopted)
    votes = branch_files.decide_votes(_prepared({}), adopted, files, (), ())
    assert [(one.kind, one.xid) for one in votes] == [(Kind.IN_DOUBT, FOREIGN), (Kind.ROLLED_BACK, OURS)]


def test_a_quarantined_vote_is_not_decided_about() -> None:
    damaged = _prepared({FOREIGN: False})
    files = branch_files.decide_files(damaged, branch_files.NONE_ADOPTED)
    assert branch_files.decide_votes(damaged, branch_files.NONE_ADOPTED, files, (), ()) == []
    (proven,) = branch_files.decide_files(damaged, branch_files.NONE_ADOPTED, proven=True)
    assert (files[0].kind, proven.kind) == (Kind.TORN, Kind.DAMAGED)


# -- unfinished work ---------------------------------------------------------------------------------------------------


ACTIVE = unfinished.ActiveFiles(
    (FOREIGN, OURS), (FOREIGN, OURS), ("active/x.copy",), {"active/d": True, "active/e": False}, ("active/?",),
    frozenset({OURS}),
)  # fmt: skip


def test_unfinished_work_of_dead_processes_ends_and_work_of_live_processes_continues() -> None:
    assert _steps(unfinished.decide(ACTIVE, (), (), alone=True)) == [
        (layout.attempt_journal(FOREIGN), Step.COUNT),
        (layout.attempt_journal(OURS), Step.LEAVE),
        (layout.active(FOREIGN), Step.REMOVE),
        (layout.active(OURS), Step.LEAVE),
        ("active/x.copy", Step.REMOVE),
        ("active/d", Step.LEAVE),
        ("active/e", Step.LEAVE),
        ("active/?", Step.LEAVE),
    ]


def test_a_copy_beside_other_processes_may_be_in_progress() -> None:
    assert "active/x.copy" not in dict(_steps(unfinished.decide(ACTIVE, (), (), alone=False)))


def test_a_commit_without_a_name_is_no_unfinished_branch() -> None:
    name = layout.active(FOREIGN)
    assert name not in dict(_steps(unfinished.decide(ACTIVE, {name}, (), alone=True)))


# -- sentences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_a_sentence(reason: Reason) -> None:
    one = Decision(Kind.DAMAGED, "f", reason, xid=FOREIGN, number=4, queue="a", count=1, cause="it is short")
    many = dataclasses.replace(one, number=0, count=3)
    for found in (one, many):
        assert found.detail
        assert not set("{}") & set(found.detail)


def test_a_finding_has_the_reason_and_the_position_for_programs() -> None:
    damaged = Decision(
        Kind.DAMAGED, "f", Reason.DAMAGED_BODY, Step.QUARANTINE_MESSAGES, positions=(Position(4, 1), Position(4, 2)),
        cause="bad checksum",
    )  # fmt: skip
    found = damaged.finding()
    assert (found.reason, found.position, found.detail) == ("damaged body", (4, 1), "bad checksum")
    assert (found.action, found.repaired) == ("", False)


def test_a_finding_says_the_step_that_was_taken() -> None:
    assert Decision(Kind.STRAY, "f", Reason.FOREIGN, Step.LEAVE).finding().action == LEFT_ALONE
    assert Decision(Kind.TORN, "f", Reason.UNFLUSHED, Step.DISCARD).finding().repaired
    assert {*decision._ACTIONS} >= {Step.NAME, Step.RETURN, Step.MOVE, Step.ROLL_BACK, Step.COUNT, Step.REMOVE}
