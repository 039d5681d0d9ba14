"""A thousand random commits have the bytes of ``golden.txt``, alone and beside a leader: files, contents, notes, posts.

Each line of ``golden.txt`` has digests of one step: the bytes of its new files, the contents that a reader gets from
them, the notes in the feed, and the requests that are posted to a leader. After an intended change of one of these, run
``python -m tests.log.test_golden_bytes``, and see in the difference that no other column changes.
"""

import hashlib
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import spool
import xa
from spool.admin.findings import Kind
from spool.coordination.request_slots import RequestSlots
from tests import door
from tests.clocks import MovedClock, timed
from tests.conftest import in_memory
from tests.held import committed_here
from tests.housekeepers import end_housekeeping
from tests.led import another_process_leads

GOLDEN = Path(__file__).parent / "golden.txt"
STEPS = 1_000
LARGE = {300: (66_000, 8), 600: (40, 600_000), 900: (3, 9 << 20)}  # messages, and bytes of each, of some steps
SMALL_SECTIONS = range(400, 600)
START = 1_790_000_000.0


class Run:
    """Random steps in one space. Ids, clock and writer are fixed."""

    def __init__(self, space: spool.Space, clock: MovedClock, ids: "Ids") -> None:
        self.space, self.clock, self.ids, self.random = space, clock, ids, random.Random(56)
        self.manager, self.claims, self.voted = xa.ResourceManager(space), space.claims(), list[xa.Xid]()
        self.steps: list[tuple[int, Callable[[], object]]] = [
            (30, self.put), (20, self.put_many), (20, self.get), (10, self.transact), (14, self.together),
            (6, self.roll_back), (8, self.remove), (10, self.vote), (8, self.decide), (5, self.administer),
            (2, self.keep_house),
        ]  # fmt: skip

    def tick(self) -> None:
        self.clock.later += self.random.choice((0.25, 1.0, 7.0))
        self.ids.tick()

    def step(self, number: int) -> str:
        self.tick()
        if number in LARGE:
            count, size = LARGE[number]
            self.space.put_many("large", [bytes([place % 256]) * size for place in range(count)])
            return "large"
        weights, steps = zip(*self.steps, strict=True)
        [step] = self.random.choices(steps, weights)
        with door.small_sections() if number in SMALL_SECTIONS else nullcontext():
            step()
        return str(step.__name__)

    # -- steps --------------------------------------------------------------------------------------------------------

    def put(self) -> None:
        queue = self.queue()
        self.space.put(queue, self.body(), **self.options(queue, key=f"k{self.random.randrange(20)}"))

    def put_many(self) -> None:
        queue = self.queue()
        self.space.put_many(queue, [self.body() for _ in range(self.random.randrange(1, 30))], **self.options(queue))

    def get(self) -> None:
        self.take(self.space.get_many, 40)

    def transact(self) -> None:
        self.work(self.space.transaction()).commit()

    def together(self) -> None:
        """Commit puts and transactions in one file. Each put gets the id of its message."""
        puts, is_refused = list[tuple[Any, Any]](), self.random.random() < 0.2
        with committed_here(self.space):
            if is_refused:  # then the others are committed in a second attempt
                self.space.create_queue("gone")
                self.space.submit("gone", None)
            for _ in range(self.random.randrange(2, 8)):
                self.tick()
                if self.random.random() < 0.6:
                    body, priority = self.body(), self.random.choice((50, 50, 60))
                    puts.append((self.space.submit(self.queue(), body, priority=priority), body))
                else:
                    self.work(self.space.transaction()).commit_async()
            if is_refused:
                self.space.delete_queue("gone")
        assert [self.space.show(put.result()).body for put, _ in puts] == [body for _, body in puts]

    def roll_back(self) -> None:
        transaction = self.work(self.space.transaction())
        self.tick()
        transaction.rollback("planted")

    def remove(self) -> None:
        with committed_here(self.space):
            for message in self.take(self.claims.take, 12):
                self.tick()
                if self.random.random() < 0.7:
                    self.claims.remove([message])
                else:
                    self.claims.fail(message, "no such article", self.random.choice((None, 5.0)))

    def vote(self) -> None:
        xid = xa.Xid(7, b"global", b"%d" % self.ids.step)
        self.manager.start(xid)
        self.work(self.space)
        self.manager.end(xid)
        if self.manager.prepare(xid) == xa.XA_OK:
            self.voted.append(xid)

    def decide(self) -> None:
        xids = [self.voted.pop(self.random.randrange(len(self.voted))) for _ in self.voted[:3]]
        if len(xids) > 1:
            door.commit_branches(self.space, xids)
        elif xids:
            self.random.choice(
                (self.manager.commit, self.manager.rollback, partial(self.manager.decide_heuristically, commit=True))
            )(*xids)

    def administer(self) -> None:
        queue = self.queue()
        message = next(iter(self.space.browse(queue)), None)
        with suppress(spool.MessageInUse):
            message and self.random.choice((
                lambda: self.space.change(message.id, priority=77, not_before=START),
                lambda: self.space.move(message.id, "errors"),
                lambda: self.space.delete(message.id),
                lambda: self.space.purge("errors"),
                lambda: self.space.redrive("errors"),
                lambda: self.space.replace(queue, "instead", correlation_id="é1", timeout=0),
            ))()  # fmt: skip

    def keep_house(self) -> None:
        door.expire(self.space)
        self.tick()
        door.compact(self.space)
        door.reclaim(self.space)

    # -- parts of steps -----------------------------------------------------------------------------------------------

    def options(self, queue: str, *, key: str | None = None) -> dict[str, Any]:
        given = {
            "priority": self.random.randrange(1, 101), "delay": 2.5, "not_before": START + 9_999.5,
            "time_to_live": 60.0, "expires_at": START + 1e6, "correlation_id": f"é{self.random.randrange(9)}",
            "reply_queue": "a", "failure_queue": "errors", "user_code": -(2**63), "client_id": "me",
            "application_key": "key", "headers": {"tenant": "acme", "é": ""}, "content_type": "text/plain",
            "top": True, "before": None, "group": self.random.choice("gh"),
            "deduplication_key": key,
        }  # fmt: skip
        excluded = {"delay": "not_before", "time_to_live": "expires_at", "top": "before"}
        names = self.random.sample(sorted(given), self.random.choice((0, 0, 1, 2, 4)))
        if "before" in names and "top" not in names:
            given["before"] = next((message.id for message in self.space.browse(queue)), None)
        return {name: given[name] for name in names if given[name] is not None and excluded.get(name) not in names}

    def body(self) -> Any:
        size = self.random.choice((0, 1, 20, 255, 256, 1_000, 5_000, 70_000 if self.random.random() < 0.1 else 3))
        return self.random.choice((bytes([size % 256]) * size, "é" * (size // 2), {"size": size}, None))

    def queue(self) -> str:
        return self.random.choice(("a", "b"))

    def take(self, get_many: Callable[[str, int], list[spool.Message]], most: int) -> list[spool.Message]:
        """Take messages; [] if none is ready."""
        with suppress(spool.Empty):
            return get_many(self.queue(), self.random.randrange(1, most))
        return []

    def work(self, transaction: Any) -> Any:
        for place in range(self.random.randrange(4)):
            queue = self.queue()
            transaction.put(queue, self.body(), **self.options(queue, key=f"{self.ids.step} {place}"))
        self.take(transaction.get_many, 8)
        return transaction


class Ids:
    """The random ids of one step."""

    def __init__(self) -> None:
        self.step, self._random = 0, os.urandom
        self.tick()

    def tick(self) -> None:
        self.step += 1
        self._drawn = {name: itertools.count() for name in ("message", "xid")}

    def draw(self, size: int, kind: str = "message") -> bytes:
        """Return an id for messages, or one for an xid."""
        if size != 12:
            return self._random(size)
        return hashlib.sha256(f"{self.step} {kind} {next(self._drawn[kind])}".encode()).digest()[:size]


def digest(values: list[Any]) -> str:
    made = hashlib.sha256()
    for value in values:
        made.update(value if isinstance(value, bytes) else repr(value).encode())
    return made.hexdigest()[:8] if values else "-"


def without_origin(data: bytes) -> bytes:
    """The bytes of a file, without the random origin that the mark of a vote has, and its checksum."""
    return data[:36] + data[61:] if data[35] & 0x80 else data


def lines(directory: Path) -> Iterator[str]:
    """Do the steps in a new space; yield a line of ``golden.txt`` for each."""
    clock, ids, posted, post = MovedClock(wall=START), Ids(), list[bytes](), RequestSlots.post

    def posting(slots: RequestSlots, slot: int, request: bytes, *rest: Any) -> bool:
        posted.append(request)
        return post(slots, slot, request, *rest)

    with (
        spool.create(timed(directory / "space", clock)) as space,
        mock.patch.object(RequestSlots, "post", posting),
        door.fixed({"pid": 4711, "program": "golden"}, ids.draw, partial(ids.draw, kind="xid")),
    ):
        end_housekeeping(space)
        for queue in ("large", "errors", "a", "b"):
            space.create_queue(queue, order=["priority", "fifo"], out_of_order=["top", "before"])
        space.change_queue("a", retries=2, error_queue="errors")
        run, root, last = Run(space, clock, ids), Path(space.path), door.counters(space).published
        before = set[str]()
        for step in range(STEPS):
            posted.clear()
            name = run.step(step)
            there = {f"{place}/{file}" for place in ("committed", "prepared") for file in os.listdir(root / place)}
            new, before = sorted(there - before, key=lambda file: file.replace("-", "~")), there  # adopted files last
            numbers = range(last + 1, (last := door.counters(space).published) + 1)
            contents = {file: door.contents(space, file) for file in new}
            for number in numbers:
                as_read = [{**contents[file], "writer": {}} for file in new if f"/{number:016}" in file]
                assert not as_read or door.noted(space, number) in (None, as_read)
            found = [
                [without_origin((root / file).read_bytes()) for file in new],
                [*contents.values()],
                [door.note(space, number) for number in numbers],
                posted,
            ]
            yield " ".join((f"{step:03} {name}", *(digest(column) for column in found)))
        assert {finding.kind for finding in space.check()} <= {Kind.IN_DOUBT}
        with spool.open(timed(directory / "space", clock)) as other:
            for queue in ("a", "b", "errors"):
                assert list(other.browse(queue)) == list(space.browse(queue))


def test_a_thousand_commits_have_the_bytes_that_they_had(tmp_path: Path) -> None:
    for found, golden in zip(lines(tmp_path), GOLDEN.read_text().splitlines(), strict=True):
        *columns, posted = found.split()
        assert columns == golden.split()[:-1]
        assert posted in ("-", golden.split()[-1])


if __name__ == "__main__":
    with in_memory() as directory, another_process_leads():
        GOLDEN.write_text("".join(f"{line}\n" for line in lines(directory)))
