"""``find`` returns the newest message with a correlation id, in any state, and claims nothing."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import spool
import spool.aio
from spool.admin import reads
from spool.index import lookup, segment
from spool.index.body_files import FileCache
from tests import door
from tests.clocks import LONG, MovedClock, PatientClock, timed
from tests.compaction import fill, small_compactions, tidy
from tests.meanwhile import XID, Processes, commit
from tests.spaces import opened_path, path_with

WHEN_WOKEN = LONG / 2  # and the search waits longer than a test takes

path = path_with("orders", "elsewhere")
space = opened_path()
other = opened_path()


def body(space: spool.Space, key: str = "c") -> object:
    found = space.find("orders", correlation_id=key)
    return None if found is None else found.body


def test_the_newest_message_of_the_queue_is_found_and_remains(space: spool.Space, other: spool.Space) -> None:
    assert body(space) is None
    other.put("elsewhere", "another queue's", correlation_id="c")
    other.put("orders", "another key's", correlation_id="d")
    assert body(space) is None
    other.put_many("orders", ["old", "newer"], correlation_id="c", priority=90)
    newest = other.put("orders", "newest", correlation_id="c", priority=10)
    for _ in range(2):
        found = space.find("orders", correlation_id="c")
        assert found is not None
        assert (found.id, found.body, found.queue, found.attempts) == (newest, "newest", "orders", 0)
    assert [other.get("orders", correlation_id="c").body for _ in range(3)] == ["old", "newer", "newest"]
    assert body(space) is None


def test_a_delayed_and_a_claimed_message_are_found(space: spool.Space) -> None:
    space.put("orders", "delayed", correlation_id="c", delay=1000)
    assert body(space) == "delayed"
    space.put("orders", "claimed", correlation_id="c")
    with space.transaction() as tx:
        tx.get_many("orders", 9)
        assert body(space) == "claimed"
        tx.rollback()


def test_an_expired_message_is_not_found(path: Path) -> None:
    clock = MovedClock()
    with spool.open(timed(path, clock)) as space:
        space.put("orders", "kept", correlation_id="c")
        space.put("orders", "expired", correlation_id="c", time_to_live=5)
        assert body(space) == "expired"
        clock.later = 6
        assert body(space) == "kept"


def test_a_message_is_found_from_its_commit_on(space: spool.Space, other: spool.Space) -> None:
    with space.transaction() as tx:
        space.put("orders", "new", correlation_id="c")
        assert body(space) is body(other) is None, "not even its own transaction finds it"
        tx.commit()
    assert body(space) == body(other) == "new"
    with other.transaction() as tx:
        other.get("orders", correlation_id="c")
        assert body(other) == body(space) == "new", "it is there until the commit"
        tx.commit()
    assert body(other) is body(space) is None


def test_a_message_of_a_prepared_branch_is_found_once_the_branch_is_committed() -> None:
    processes = Processes()
    with processes.space() as space, processes.space() as other:
        other.put("orders", "old", correlation_id="c")
        branch = door.branch(other, xid=XID, timeout=30.0)
        branch.get("orders", correlation_id="c")
        branch.put("orders", "new", correlation_id="c")
        branch.prepare()
        assert body(space) == "old", "it is in doubt"
        commit(other)
        assert body(space) == "new"


@pytest.mark.parametrize("limit", [lookup.MOST_PREFIXES, 8])
def test_only_the_first_search_for_an_absent_key_reads_the_tables_of_the_segments(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lookup, "MOST_PREFIXES", limit)
    read: list[object] = []
    keys = FileCache.keys
    monkeypatch.setattr(FileCache, "keys", lambda self, *args: read.append(args) or keys(self, *args))
    with small_compactions():
        for n in range(40):
            space.put("orders", n, correlation_id=f"key {n}")
        while tidy(space):
            pass
    segments = len(door.store(space).view.index.messages.segments)
    assert segments >= 8
    counts = []
    for key in ("absent", "also absent"):
        read.clear()
        assert body(space, key) is None
        counts.append(len(read))
    without = segments - 2 if limit == 8 else 0  # two segments of four messages have reached the limit
    assert counts == [segments, without]
    assert [body(space, f"key {n}") for n in range(40)] == [*range(40)]


ABSENT = "0" * 32

SEARCHES: dict[str, Callable[[spool.Space, str], object]] = {
    "find": lambda space, key: space.find("orders", correlation_id=key),
    "browse": lambda space, key: [*space.browse("orders", correlation_id=key)],
    "purge": lambda space, key: space.purge("orders", correlation_id=key),
    "get": lambda space, key: space.get_many("orders", 9, correlation_id=key, timeout=0),
    "browse by id": lambda space, id: [*space.browse("orders", message_id=id)],
    "purge by id": lambda space, id: space.purge("orders", message_id=id),
    "get by id": lambda space, id: space.get("orders", message_id=id),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[spool.Space, list[str]]]:
    """A space with ten thousand compacted messages, each with a correlation id; and the ids of the messages."""
    with spool.create(tmp_path_factory.mktemp("filled") / "space") as space:
        space.create_queue("orders", durability="none")
        ids = []
        for begin in range(0, 10_000, 100):
            with space.transaction() as tx:
                ids += [tx.put("orders", n, correlation_id=f"{n}") for n in range(begin, begin + 100)]
        while tidy(space) or len(door.index(space).messages.segments) < 3:
            pass  # (the housekeeper's thread may be compacting at this moment)
        yield space, ids


@pytest.mark.parametrize("search", SEARCHES)
def test_among_ten_thousand_messages_a_search_reads_only_the_segments_with_the_key(
    filled: tuple[spool.Space, list[str]], search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, ids = filled
    look = SEARCHES[search]
    n = len(ids) - 1 - 10 * [*SEARCHES].index(search)
    absent, present = (ABSENT, ids[n]) if search.endswith("by id") else ("absent", f"{n}")
    with suppress(spool.Empty, spool.BadMessageId):
        assert not look(space, absent), "the first search reads the keys of each segment"
    read: list[object] = []
    for name in ("keys", "compacted_table"):
        monkeypatch.setattr(FileCache, name, _recorded(getattr(FileCache, name), read))
    with suppress(spool.Empty, spool.BadMessageId):
        assert not look(space, absent)
    assert not read
    passed, spans = list[object](), segment._live_spans
    monkeypatch.setattr(segment, "_live_spans", lambda *place: passed.append(place) or spans(*place))
    assert look(space, present)
    assert len(set(read)) == 1
    assert len(passed) < 1_000, "a search of a segment does not pass its other messages"


def _recorded(method: Callable[..., object], read: list[object]) -> Callable[..., object]:
    """Return the method of a cache, which also records the sections of its calls."""

    def call(cache: FileCache, file: object, section: object) -> object:
        read.append((file, section))
        return method(cache, file, section)

    return call


def test_compacted_messages_are_found_and_remain_compacted(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search keys of a file may name a run twice, and runs that are not there."""
    monkeypatch.setattr(lookup, "find_correlation", lambda *keys: [*segment.find_correlation(*keys) * 2, 1 << 31])
    with small_compactions():
        fill(space)
        ids = [space.put("orders", n, correlation_id=str(n % 50)) for n in range(100)]
        fill(space)
        assert tidy(space)
        assert not door.index(space).messages.is_in_memory("orders", None, "7")
        entries = door.index(space).messages.queue("orders").entries
        for n in range(50):
            found = space.find("orders", correlation_id=str(n))
            assert (found and found.id, found and found.body) == (ids[n + 50], n + 50)
        assert body(space, "50") is None
        assert door.index(space).messages.queue("orders").entries == entries
        assert space.get("orders", correlation_id="7").body == 7, "the older one is still there"
        assert space.get("orders", correlation_id="7").body == 57
        assert body(space, "7") is None


def test_a_message_that_is_replaced_during_the_search_is_found_in_its_new_form(
    space: spool.Space, other: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", "old", correlation_id="c")
    peek, replaced = reads.peek, list[object]()

    def replace_first(*args: object) -> object:
        if not replaced:
            with ThreadPoolExecutor(1) as pool:
                replaced.append(pool.submit(replace).result(LONG))
        return peek(*args)  # type: ignore[arg-type]

    def replace() -> None:
        with other.transaction() as tx:
            tx.get("orders", correlation_id="c")
            tx.put("orders", "new", correlation_id="c")
        door.reclaim(other)

    monkeypatch.setattr(reads, "peek", replace_first)
    assert body(space) == "new"
    assert replaced


# -- waiting ----------------------------------------------------------------------------------------------------------


def put(other: spool.Space) -> object:
    return other.put("orders", "new", correlation_id="c")


def put_delayed(other: spool.Space) -> object:
    return other.put("orders", "new", correlation_id="c", delay=1000)


def put_and_claim(other: spool.Space) -> object:
    with other.transaction() as tx:
        tx.put("orders", "new", correlation_id="c")
    return other.transaction().get("orders")


@pytest.mark.parametrize("come", [put, put_delayed, put_and_claim])
def test_a_search_waits_and_only_its_own_message_ends_it(
    path: Path, other: spool.Space, come: Callable[[spool.Space], object]
) -> None:
    clock = PatientClock()
    with ThreadPoolExecutor(1) as pool, spool.open(timed(path, clock)) as space:
        found = pool.submit(space.find, "orders", correlation_id="c", timeout=WHEN_WOKEN)
        assert clock.waits.wait(LONG)
        other.put("orders", "another's", correlation_id="another's")
        come(other)
        message = found.result(LONG)
        assert message is not None
        assert message.body == "new"
        assert all(clock.was_woken)


def test_a_search_for_another_message_than_the_known_one_waits_for_the_next_value(path: Path, other: spool.Space):
    clock = PatientClock()
    known = other.put("orders", "old", correlation_id="c")
    with ThreadPoolExecutor(1) as pool, spool.open(timed(path, clock)) as space:
        assert space.find("orders", correlation_id="c", other_than=known) is None
        found = pool.submit(space.find, "orders", correlation_id="c", timeout=WHEN_WOKEN, other_than=known)
        assert clock.waits.wait(LONG)
        newer = other.replace("orders", "new", correlation_id="c")
        message = found.result(LONG)
        assert message is not None
        assert (message.id, message.body) == (newer, "new")
        assert space.find("orders", correlation_id="c", other_than=known) == message


def test_a_search_that_waits_in_vain_returns_none(space: spool.Space) -> None:
    assert space.find("orders", correlation_id="c", timeout=0.01) is None
    assert not door.store(space).view.awaited._wakes


@pytest.mark.parametrize("ending", ["close", "stop", "delete_queue"])
def test_a_space_that_ends_and_a_queue_that_is_deleted_end_the_wait(path: Path, ending: str) -> None:
    with ThreadPoolExecutor(1) as pool, spool.open(path) as space:
        found = pool.submit(space.find, "orders", correlation_id="c", timeout=None)
        {"close": space.close, "stop": door.store(space).stop, "delete_queue": lambda: space.delete_queue("orders")}[
            ending
        ]()
        assert isinstance(found.exception(LONG), spool.NotOpen | spool.SpaceStopped | spool.QueueNotFound)


async def test_tasks_find_and_wait(path: Path, other: spool.Space) -> None:
    async def find(space: spool.aio.Space, known: str) -> spool.Message | None:
        return await space.find("orders", correlation_id="c", timeout=None, other_than=known)

    async with asyncio.timeout(LONG), spool.aio.open(path) as space:
        assert await space.find("orders", correlation_id="c") is None
        assert await space.find("orders", correlation_id="c", timeout=0.01) is None
        known = await space.put("orders", "old", correlation_id="c")
        found = [asyncio.create_task(find(space, known)) for _ in range(9)]
        await asyncio.sleep(0)
        await asyncio.to_thread(put, other)
        for one in found:
            message = await one
            assert message is not None
            assert message.body == "new"


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "", "x" * 256, 7])
def test_a_search_without_a_proper_key_is_refused(space: spool.Space, key: object) -> None:
    with pytest.raises(spool.InvalidArgument, match="correlation_id is a text of 1 to 255 characters"):
        space.find("orders", correlation_id=key)  # type: ignore[arg-type]


def test_a_search_of_no_queue_and_with_no_time_is_refused(space: spool.Space) -> None:
    with pytest.raises(spool.QueueNotFound, match="ordres"):
        space.find("ordres", correlation_id="c")
    with pytest.raises(spool.BadMessageId, match="tea"):
        space.find("orders", correlation_id="c", other_than="tea")
    with pytest.raises(spool.InvalidArgument, match="timeout is 0, a number of seconds"):
        space.find("orders", correlation_id="c", timeout=-1)
