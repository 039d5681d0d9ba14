"""The code calls the functions that the walks of docs/architecture.md name, and takes locks in the documented order."""

import os
import re
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import pytest

import spool
import xa
from spool.coordination import locks
from spool.coordination.locks import LockFile
from spool.model import layout
from tests import door, references
from tests.branches import voting
from tests.clocks import MovedClock, timed
from tests.meanwhile import elsewhere

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEP = re.compile(r"`((?:spool|xa|recovery|forwarder)/[\w/]+\.py): ([\w.]+)`")
Action = Callable[[], object]
WALKS = dict(re.findall(r"^### (.*)\n((?:(?!^#).*\n)*)", PAGE, re.MULTILINE))


def put(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))
    return lambda: space.put("orders", b"one")


def posted_put(path: Path, opened: ExitStack) -> Action:
    opened.enter_context(spool.open(path))  # the first opener; the others expect company
    leader, owner = opened.enter_context(spool.open(path)), opened.enter_context(spool.open(path))
    slots = door.store(leader).shared.requests
    posts = threading.Thread(target=owner.put, args=("orders", b"two"))

    def post() -> None:
        posts.start()
        while not slots.standing():
            pass

    opened.enter_context(door.before_step(leader, "join", post))

    def put_both() -> None:
        leader.put("orders", b"one")
        posts.join()

    return put_both


def get(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))
    space.put("orders", b"one")
    other = opened.enter_context(spool.open(path))
    with other.transaction() as held:
        other.put_many("orders", [b"two", b"three"], transaction=None)  # something to catch up with
        held.get("orders")  # so that there is an owner of claims
    claims = door.store(space).shared.claims
    claim = claims.claim

    def claim_beside_a_put(number: int, first: int, count: int) -> list[tuple[int, int]]:
        with elsewhere():
            other.put("orders", b"four")  # something that the second look sees
        return claim(number, first, count)

    claims.claim = claim_beside_a_put  # type: ignore[method-assign]

    def alone_and_in_a_transaction() -> None:
        space.get("orders", timeout=5)
        with space.transaction() as transaction:
            transaction.get("orders")

    return alone_and_in_a_transaction


def claims(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))
    space.put_many("orders", [b"one", b"two", b"three"])

    def acknowledge_and_fail() -> None:
        with space.claims() as claims:
            one, two, _ = claims.take("orders", 3)
            claims.begin(one)
            claims.remove([one]).result()
            claims.fail(two, "it broke").result()

    return acknowledge_and_fail


def worker(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))
    space.put_many("orders", [b"one", b"two"])

    def function(message: spool.Message) -> None:
        if message.body == b"two":
            raise ValueError("no such article")

    return lambda: space.work("orders", function, once=True)


def two_phases(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))

    def commit_and_roll_back() -> None:
        manager = xa.ResourceManager(space)
        for number, decide in ((b"1", manager.commit), (b"2", manager.rollback)):
            xid = xa.Xid(7, number, b"")
            with voting(manager, xid):
                space.put("orders", b"one")
            if decide == manager.commit:  # as another process does, which was not told the vote
                manager = xa.ResourceManager(space)
                assert manager.recover() == [xid]
                manager.commit(xid)
            else:
                manager.rollback(xid)

    return commit_and_roll_back


def global_transaction(path: Path, opened: ExitStack) -> Action:
    space = opened.enter_context(spool.open(path))
    database = opened.enter_context(closing(sqlite3.connect(path.parent / "database")))
    database.execute("create table rows (text)")
    other = opened.enter_context(spool.create(path.parent / "other"))
    other.create_queue("copies")

    def commit_and_recover() -> None:
        with xa.TransactionManager(path.parent / "decisions") as manager:
            manager.prepare_database(database)
            space.put_many("orders", [b"1", b"2", b"3"])
            for resource in (database, database, other):
                with manager.transaction() as transaction:
                    transaction.enlist(space)
                    transaction.enlist(resource)
                    body = space.get("orders").body
                    if resource is database:
                        database.execute("insert into rows values (?)", [body])
                    else:
                        other.put("copies", body)
            manager.recover(space, other, database)

    return commit_and_recover


def schedule(path: Path, opened: ExitStack) -> Action:
    clock = MovedClock()
    space = opened.enter_context(spool.open(timed(path, clock)))

    def create_and_put() -> None:
        space.create_schedule("s", "orders", b"one", cron="* * * * *")
        clock.later += 60.0
        door.steps(space)

    return create_and_put


def opening(path: Path, opened: ExitStack) -> Action:
    return lambda: opened.enter_context(spool.open(path))


# (walk, the function that does it, functions of the walk that other threads, other processes or other options call)
TRACED = [
    ("A put", put, {"Transaction.put", "refuse_full", "Mirror.flush_commit", "write_empty"}),
    ("A put that another process commits", posted_put, set()),
    ("A get", get, {"read_commit", "AwaitedMessages.wake"}),
    ("A claim, and its acknowledgement", claims, set()),
    ("A message of a worker", worker, {"TaskWorker", "RouteLoop", "Attempt.withdraw"}),
    ("A two-phase commit", two_phases, set()),
    ("A transaction over a space and a database", global_transaction, set()),
    ("A due message of a schedule", schedule, set()),
    ("Opening a space", opening, {"finish_dead_writer"}),
]


def called(action: Action) -> set[str]:
    """``path: function`` of each that this thread calls, and the threads that it starts."""
    found = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add(f"{os.path.relpath(frame.f_code.co_filename, ROOT)}: {frame.f_code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found.copy()  # threads that still run go on to note their calls


def test_each_walk_is_there() -> None:
    assert {name for name, _, _ in TRACED} | {"A forwarded message"} <= set(WALKS)


def test_files_and_functions_of_the_walks_exist() -> None:
    steps = STEP.findall(PAGE)
    assert len(steps) >= 40
    for path, name in steps:
        assert name in references.definitions(path), f"{path}: {name}"


@pytest.mark.parametrize(("walk", "ready", "elsewhere"), TRACED, ids=[walk for walk, _, _ in TRACED])
def test_a_walk_goes_through_the_functions_that_it_names(
    walk: str, ready: Callable[[Path, ExitStack], Action], elsewhere: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "space"
    with spool.create(path) as space:
        space.create_queue("orders")
    with ExitStack() as opened:
        found = called(ready(path, opened))
    steps = STEP.findall(WALKS[walk])
    assert elsewhere <= {name for _, name in steps}
    missed = [
        (path, name)
        for path, name in steps
        if name not in elsewhere and not any(f"{one}.".startswith(f"{path}: {name}.") for one in found)
    ]
    assert not missed, f"{walk}: named, and not called"


# -- the order of locks ------------------------------------------------------------------------------------------------

# Bytes of files of run/, as the rows of "Locks, and their order" have them; None: every byte of the file.
ORDER = [
    (layout.XIDS, None),
    (layout.REQUESTS, None),
    (layout.CONTROL, locks.CONFIG),
    (layout.CONTROL, locks.NUMBER),
    (layout.CONTROL, locks.PREPARED_LIST),
    (layout.NUMBERS, None),
]


def place_of(name: str, byte: int) -> int:
    return next(place for place, (file, one) in enumerate(ORDER) if file == name and one in (None, byte))


def everything(space: spool.Space) -> None:
    """Calls that wait for locks, each kind once."""
    for queue in ("orders", "replies"):
        space.create_queue(queue, max_messages=100)
    for key in ("one", "two", "one"):
        space.put("orders", key, deduplication_key=key)
    with space.transaction() as transaction:
        transaction.put("replies", transaction.get("orders").body, deduplication_key="three")
        transaction.put_many("orders", [b"0" * (1 << 20)] * 18)  # more than stays in memory
    with space.transaction() as transaction:
        transaction.get("orders")
        transaction.set_rollback_only()
    manager = xa.ResourceManager(space)
    for number, decide in ((b"1", manager.commit), (b"2", manager.rollback)):
        xid = xa.Xid(7, number, b"")
        with voting(manager, xid):
            space.put("replies", space.get("orders").body)
        manager = xa.ResourceManager(space)
        manager.recover()
        decide(xid)
    space.purge("replies")
    space.delete_queue("replies")
    space.check(repair=True)


def test_locks_are_waited_for_in_the_order_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[int, list[tuple[str, int]]] = defaultdict(list)
    waits: set[tuple[int, int]] = set()
    lock, try_lock, unlock = LockFile.lock, LockFile.try_lock, LockFile.unlock

    def waits_for(self: LockFile, byte: int, *arguments: Any, **options: Any) -> None:
        place = place_of(self.name, byte)
        waits.update((place_of(*one), place) for one in held[get_ident()])
        lock(self, byte, *arguments, **options)

    def takes(self: LockFile, byte: int, *, shared: bool = False) -> bool:
        taken = try_lock(self, byte, shared=shared)
        if taken and (self.name, byte) not in ((layout.CONTROL, locks.FOLLOWING), (layout.CONTROL, locks.HOUSEKEEPING)):
            held[get_ident()].append((self.name, byte))
        return taken

    def lets_go(self: LockFile, byte: int) -> None:
        for one in held.values():
            if (self.name, byte) in one:
                one.remove((self.name, byte))
        unlock(self, byte)

    for name, instead in (("lock", waits_for), ("try_lock", takes), ("unlock", lets_go)):
        monkeypatch.setattr(LockFile, name, instead)
    with spool.create(tmp_path) as space:
        everything(space)
    assert len(waits) >= 6
    assert not [(ORDER[one], ORDER[other]) for one, other in waits if one > other]
