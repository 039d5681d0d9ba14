"""The recipes of docs/transactions-and-xa.md, with a failure at each of their lines: nothing is lost or half done."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import spool
import xa
from tests.at_once import AT_ONCE
from tests.xa.recipes import Failure, SQLite, at_line, fail, make_tables, recipe


@dataclass
class Recipe:
    """A recipe at work. ``run`` takes a message of ``source`` under a name; ``count`` says how many have arrived."""

    run: Callable[[bytes], None]
    recover: Callable[[], None]
    count: Callable[[], int]
    source: spool.Space
    spaces: tuple[spool.Space, ...]
    at_line: Callable[..., object]


def made(path: Path) -> spool.Space:
    space = spool.create(path, defaults=AT_ONCE)
    for queue in ("in", "out", "late"):
        space.create_queue(queue)
    return space


@pytest.fixture
def booking(memory: Path) -> Iterator[Recipe]:
    module = recipe("booking")
    with closing(SQLite(memory / "database")) as database, made(memory / "s") as space:
        make_tables(module, database)

        def booked() -> int:
            with closing(SQLite(memory / "database")) as another:
                return len(another.execute("select text from bookings").fetchall())

        yield Recipe(
            lambda name: module.book(space, database, name),
            lambda: module.recover(space, database),
            booked,
            space,
            (space,),
            lambda n: at_line(module, n, fail),
        )


@pytest.fixture
def transfer(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    module = recipe("transfer")
    monkeypatch.chdir(memory)
    (memory / "decisions").mkdir()
    with made(memory / "east") as east, made(memory / "west") as west:
        yield Recipe(
            lambda name: module.transfer(name, east, west, 500),
            lambda: module.recover(east, west),
            lambda: west.stats("out").ready,
            east,
            (east, west),
            lambda n: at_line(module, n, fail),
        )


@pytest.fixture(params=["booking", "transfer"])
def at_work(request: pytest.FixtureRequest) -> Recipe:
    found: Recipe = request.getfixturevalue(request.param)
    return found


def undo_dropped(space: spool.Space) -> None:
    """Roll back the dropped branches at once, as the housekeeper does within seconds."""
    while space._store.dropped:
        space._store.dropped.popleft()()


@pytest.mark.filterwarnings("ignore:.*has left the branch:ResourceWarning")
@pytest.mark.parametrize("empty", [False, True], ids=["a message", "an empty queue"])
def test_x03_a_failure_at_any_line_of_a_recipe_leaves_nothing_half_done(at_work: Recipe, empty: bool) -> None:
    """The thread's next put is durable on its own, it can begin again, and recovery decides the rest."""
    messages, idle = 0, [dict(space._store.at_end) for space in at_work.spaces]
    for n in itertools.count(1):
        if not empty:
            at_work.source.put_many("in", ["tea", "tea"])
            messages += 2
        with suppress(Failure, spool.Empty), at_work.at_line(n) as lines:  # type: ignore[attr-defined]
            at_work.run(b"first %d" % n)
        for space in at_work.spaces:
            put = space.put("late", n)
            assert space.get("late", message_id=put, transaction=None).body == n, "the put is in no branch"
            undo_dropped(space)
        with suppress(spool.Empty):
            at_work.run(b"second %d" % n)
        at_work.recover()
        for space in at_work.spaces:
            assert xa.ResourceManager(space).recover() == []
            assert space.stats("in").claimed == 0
        assert [space._store.at_end for space in at_work.spaces] == idle, "no branch is open"
        assert at_work.source.stats("in").ready + at_work.count() == messages
        if lines() < n:
            break
    assert n > (5 if empty else 12)


@pytest.mark.filterwarnings("ignore:.*has left the branch:ResourceWarning")
def test_x03_a_failure_at_any_line_of_a_recovery_leaves_the_rest_to_the_next_one(at_work: Recipe) -> None:
    for n in itertools.count(1):
        at_work.source.put("in", "tea")
        before = at_work.count()
        for line in itertools.count(1):  # the last line before which the branch is in doubt, and undecided
            with suppress(Failure), at_work.at_line(line):  # type: ignore[attr-defined]
                at_work.run(b"%d %d" % (n, line))
            undo_dropped(at_work.source)
            if any(xa.ResourceManager(space).recover() for space in at_work.spaces):
                break
        with suppress(Failure), at_work.at_line(n) as lines:  # type: ignore[attr-defined]
            at_work.recover()
        at_work.recover()
        assert at_work.count() == before
        assert at_work.source.get("in").body == "tea"
        if lines() < n:
            break
    assert n > 5


def test_a_recipe_says_that_the_queue_is_empty(at_work: Recipe) -> None:
    for name in (b"1", b"2"):
        with pytest.raises(spool.Empty):
            at_work.run(name)


def test_a_recovery_leaves_the_branches_of_other_programs(at_work: Recipe) -> None:
    rm, xid = xa.ResourceManager(at_work.source), xa.Xid(1, b"1", b"another")
    with rm.branch(xid):
        at_work.source.put("in", "tea")
    rm.prepare(xid)
    at_work.recover()
    assert rm.recover() == [xid]
    rm.rollback(xid)
