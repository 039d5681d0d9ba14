"""The checker accepts allowed histories, and names each promise that a made-up history breaks."""

import itertools
from pathlib import Path
from typing import Self

import pytest

from tests.torture.checker import Left, check
from tests.torture.history import Log, Record, read


class Story:
    """Makes up a history, one record after the other; each call returns the story."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._clock = itertools.count(1)

    def tell(self, tx: str, *events: str, **fields: object) -> Self:
        for event in events:
            record = {"event": event, "at": next(self._clock), "worker": tx.partition(".")[0], "tx": tx, **fields}
            self.records.append(record)
        return self

    def put(self, tx: str, number: int, *keys: str, queue: str = "in", ack: bool = True, **fields: object) -> Self:
        self.tell(tx, "begin").tell(tx, "put", queue=queue, keys=list(keys), **fields).tell(tx, "commit")
        return self.tell(tx, "number", number=number).tell(tx, *["ack"] * ack)

    def work(self, tx: str, *events: str, queue: str = "in") -> Self:
        """Put the message a, and then these events."""
        return self.tell(tx, "put", queue=queue, keys=["a"]).tell(tx, *events)

    def hold(self, tx: str, key: str, number: int, attempts: int = 0, queue: str = "in") -> Self:
        """Take a message, and do not end."""
        return self.claim(tx, number).tell(tx, "got", queue=queue, messages=[[key, [number, 0], attempts]])

    def claim(self, tx: str, number: int) -> Self:
        self.tell(tx, "begin", noted=True)
        return self.tell(tx, "try", "claimed", number=number, first=0, count=1)

    def get(self, tx: str, key: str, number: int, attempts: int = 0, queue: str = "in") -> Self:
        return self.hold(tx, key, number, attempts, queue).tell(tx, "commit", "ack")

    def dies_in_get(self, tx: str, number: int) -> Self:
        """A get without a transaction dies while it commits."""
        return self.tell(tx, "begin", "commit").tell(tx, "try", number=number, first=0, count=1)

    def move(self, tx: str, key: str, number: int) -> Self:
        """Take a message, put it into another queue, and decide to commit."""
        return self.hold(tx, key, number).tell(tx, "put", queue="out", keys=[f"{key}>"]).tell(tx, "commit")

    def look(self, *keys: str, queue: str = "in", all: bool = True) -> Self:
        begun = len(self.records) + 1
        record = {"event": "saw", "at": next(self._clock), "worker": "l", "tx": ""}
        self.records.append({**record, "queue": queue, "keys": list(keys), "begun": begun, "all": all})
        return self


A: Left = ("in", "a", (1, 0), 0)
B: Left = ("in", "b", (2, 0), 0)


def put() -> Story:
    """A message was put, as commit 1."""
    return Story().put("p.1", 1, "a")


def both() -> Story:
    """Two messages were put, as commits 1 and 2."""
    return put().put("p.2", 2, "b")


FINE: dict[str, tuple[Story, list[Left]]] = {
    "put and taken": (put().get("c.1", "a", 1), []),
    "put and left": (put(), [A]),
    "a put without acknowledgement that did not happen": (Story().put("p.1", 1, "a", ack=False), []),
    "a put without acknowledgement that happened": (Story().put("p.1", 1, "a", ack=False), [A]),
    "a message that died with a plain get": (put().dies_in_get("c.1", 1), []),
    "a message that comes back, out of order, after its holder died": (
        both().hold("c.1", "a", 1).get("d.1", "b", 2).get("d.2", "a", 1, attempts=1),
        [],
    ),
    "a branch that voted and was told to commit": (
        Story().work("p.1", "prepare", "prepared", "commit").tell("p.1", "number", number=1),
        [A],
    ),
    "a plain get that dies after another one died before its commit": (
        put().move("c.1", "a", 1).claim("d.1", 1).tell("d.1", "commit").tell("d.1", "number", number=2),
        [],
    ),
    "a plain get that dies after another one died before its file was stamped": (
        put().move("m.1", "a", 1).tell("m.1", "number", number=None, file="active/m").claim("g.1", 1)
        .tell("g.1", "commit"),
        [],
    ),
    "a look that shows everything": (
        Story().put("p.1", 1, "a", "b").look("a", "b"),
        [A, ("in", "b", (1, 1), 0)],
    ),
    "a look beside a claim": (
        put().claim("c.1", 1).look().tell("c.1", "got", queue="in", messages=[["a", [1, 0], 0]])
        .tell("c.1", "commit", "ack"),
        [],
    ),
    "a look that was cut short": (both().look("a", all=False), [A, B]),
}  # fmt: skip
BROKEN: dict[str, tuple[Story, list[Left], str]] = {
    "an acknowledged message is lost": (put(), [], "lost: ('in', 'a')"),
    "one death excuses only the message that it locked": (both().dies_in_get("c.1", 2), [], "lost: ('in', 'a')"),
    "a branch that was told to commit is lost": (
        Story().work("p.1", "prepare", "prepared", "commit").tell("p.1", "number", number=1), [], "lost",
    ),
    "a dropped file's message is missing": (
        Story().tell("d.1", "begin", ordered=False).work("d.1", "commit", "ack"), [], "lost: ('in', 'a')",
    ),
    "delivered twice": (put().get("c.1", "a", 1).get("d.1", "a", 1), [], "delivered twice: ('in', 'a')"),
    "taken and still there": (put().get("c.1", "a", 1), [A], "delivered twice: ('in', 'a')"),
    "two holders at once": (
        put().hold("c.1", "a", 1).hold("d.1", "a", 1, attempts=1).tell("c.1", "rollback").tell("d.1", "rollback"),
        [("in", "a", (1, 0), 2)], "delivered to d.1 while c.1 held it",
    ),
    "never committed": (Story().work("p.1", "rollback"), [A], "never committed"),
    "messages of a producer change places": (
        Story().put("p.1", 2, "a").put("p.2", 1, "b"), [("in", "a", (2, 0), 0), ("in", "b", (1, 0), 0)],
        "p put ('in', 'b') after ('in', 'a')",
    ),
    "a message lies elsewhere": (put(), [("in", "a", (2, 0), 0)], "was put at (1, 0) and lies at (2, 0)"),
    "an earlier message comes later": (both().get("c.1", "b", 2).get("c.2", "a", 1), [], "c.2 got ('in', 'a')"),
    "half a transaction": (
        put().move("c.1", "a", 1).tell("c.1", "number", number=2),
        [("in", "a", (1, 0), 1), ("out", "a>", (2, 0), 0)], "half of c.1",
    ),
    "one put of a transaction": (Story().put("p.1", 1, "a", "b", ack=False), [A], "lost: ('in', 'b')"),
    "a transaction took and did not put": (
        put().move("c.1", "a", 1).tell("c.1", "number", number=2), [], "lost: ('out', 'a>')",
    ),
    "no other transaction can have taken the message": (
        put().move("m.1", "a", 1).tell("m.1", "number", number=None, file="active/m"), [], "lost: ('out', 'a>')",
    ),
    "a vote was forgotten": (Story().work("p.1", "prepare", "prepared"), [], "voted yes and was forgotten"),
    "a death does not count as an attempt": (
        put().hold("c.1", "a", 1).get("d.1", "a", 1), [], "came back with no more",
    ),
    "half a commit is seen": (
        Story().put("p.1", 1, "a", "b", "c", ack=False).look("a", "c"),
        [("in", key, (1, place), 0) for place, key in enumerate("abc")],
        "l looked at in, and not ('in', 'b') of p.1",
    ),
    "the other queue of a commit does not show it": (
        Story().tell("p.1", "begin").tell("p.1", "put", queue="in", keys=["a"])
        .tell("p.1", "put", queue="out", keys=["b"]).tell("p.1", "commit").tell("p.1", "number", number=1)
        .look("a").look(queue="out"),
        [A, ("out", "b", (1, 1), 0)], "l looked at out, and not ('out', 'b')",
    ),
    "a rolled back message is seen": (
        Story().work("p.1", "rollback").look("a"), [], "l saw in a, which was never committed",
    ),
    "an unacknowledged message that was seen is lost": (
        Story().put("p.1", 1, "a", ack=False).look("a"), [], "lost: ('in', 'a')",
    ),
    "an earlier message is passed over": (
        both().get("c.1", "b", 2), [A], "c.1 got ('in', 'b'), and not ('in', 'a')",
    ),
    "a more urgent message is passed over": (
        Story().put("p.1", 1, "a", queue="urgent", priority=10).put("p.2", 2, "b", queue="urgent", priority=90)
        .get("c.1", "a", 1, queue="urgent"),
        [("urgent", "b", (2, 0), 0)], "c.1 got ('urgent', 'a'), and not ('urgent', 'b')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_an_allowed_history_is_fine(name: str) -> None:
    story, left = FINE[name]
    assert check(story.records, left) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    story, left, found = BROKEN[name]
    problems = "\n".join(check(story.records, left))
    assert found in problems
    assert "lost: ('in', 'b')" not in problems or "'b'" in found


@pytest.mark.parametrize("torn", [1, 2, 15, 29])
def test_a_torn_line_of_a_log_counts_as_not_written(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "log"
    Log(str(path), "worker").write("put", queue="orders")
    path.write_bytes(path.read_bytes()[:-torn])
    Log(str(path), "worker").write("ack")
    assert [record["event"] for record in read(str(path))] == (["put", "ack"] if torn == 1 else ["ack"])
