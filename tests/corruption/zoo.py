"""A closed space with every kind of file, as a killed process left it, and the expected state of its messages.

The body of each message names its place and its permitted outcomes, so that a judge needs no other record.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import spool
from spool.coordination.locks import capture_byte, coordinator_byte
from spool.log import commit_file, write_set
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door
from tests.at_once import AT_ONCE

FOREIGN = 7
QUEUES = ("left", "right")


@dataclass
class Zoo:
    """``files``: each kind's path in the space. ``live``: body → the files that it takes to deliver it.

    ``undecided``: branches that wait for a decision; without its file, one was rolled back. ``spent``: file → the bytes
    in the file that no reader needs: the body of a taken message. ``gone``: body → the file whose command or vote keeps
    it from being delivered; "" where nothing may bring it back.
    """

    root: Path
    files: dict[str, str] = field(default_factory=dict)
    live: dict[bytes, frozenset[str]] = field(default_factory=dict)
    gone: dict[bytes, str] = field(default_factory=dict)
    content: dict[str, bytes | None] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    spent: dict[str, range] = field(default_factory=dict)

    def freeze(self) -> None:
        """Remember every file's bytes (None: a directory), for copies that cost no reading."""
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            self.content[name] = None if path.is_dir() else path.read_bytes()

    def copy(self, target: Path) -> Path:
        """A copy of the new space in another directory."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        for name, data in self.content.items():
            if data is None:
                (target / name).mkdir(mode=0o700)
            else:
                descriptor = os.open(target / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(descriptor, data)
                os.close(descriptor)
        return target


def body(name: str, size: int = 40) -> bytes:
    """Unlike every other, and unlike itself one bit away."""
    return f"<{name}>".encode().ljust(size, b".")


def make(root: Path) -> Zoo:
    """The space, closed."""
    zoo = Zoo(root)
    space = spool.create(root, defaults=AT_ONCE)
    space.create_queue("errors")
    for queue in QUEUES:
        space.create_queue(queue, retries=9, error_queue="errors")
    _reclaimed(space)
    _commits(space, zoo)
    _adoptions(space, zoo)
    _undecided(space, zoo)
    _leftovers(space, zoo)
    zoo.files |= {"settings": layout.SETTINGS, "counters": layout.COUNTERS, "control": layout.CONTROL}
    zoo.files |= {"feed": layout.FEED, "numbers": layout.NUMBERS, "xids": layout.XIDS}
    zoo.files["claim file"] = layout.claim_file(1)
    kill(space)
    for name in (root / layout.RUN).glob("claims-*"):
        if name.name != "claims-01":
            name.unlink()  # all the same, all empty
    zoo.freeze()
    return zoo


def kill(space: spool.Space) -> None:
    """Do as the kernel when a process dies: release its locks, and keep its files."""
    door.store(space).guard.close_at_once("it died")


def newest(space: spool.Space) -> str:
    return layout.committed(door.counters(space).published)


def _reclaimed(space: spool.Space) -> None:
    """Consume commits, so that ``free/`` has their files and a commit has the totals."""
    for place in range(4):
        space.put("left", body(f"consumed {place}"))
        space.get("left")
    assert door.reclaim(space)


def _commits(space: spool.Space, zoo: Zoo) -> None:
    zoo.files["totals"] = next(
        layout.committed(number) for number, state in sorted(door.index(space).files.items()) if state.facts
    )
    _put(space, zoo, "one section", "left", ["single"])
    _put(space, zoo, "other queue", "right", ["neighbour"], correlation_id="c", headers={"a": "b"})
    small_room = mock.patch.object(commit_file, "_STREAMED_HEADER_ROOM", 512)
    with mock.patch.object(write_set, "SECTION_MESSAGES", 2), small_room:
        _put(space, zoo, "several sections", "left", [f"section {n}" for n in range(5)])
    _put(space, zoo, "partly taken", "left", ["taken", "left over"])
    taken = space.get("left", message_id=_id_of(space, body("taken")))
    zoo.files["removal"] = newest(space)
    zoo.live.pop(taken.body)
    start = (zoo.root / zoo.files["partly taken"]).read_bytes().index(taken.body)
    zoo.spent[zoo.files["partly taken"]] = range(start - 2, start + len(taken.body))
    zoo.gone[taken.body] = zoo.files["removal"]
    with space.transaction() as transaction:
        transaction.get("right")
        transaction.set_rollback_only()
    zoo.files["try counted"] = newest(space)


def _put(space: spool.Space, zoo: Zoo, kind: str, queue: str, names: list[str], **options: object) -> None:
    space.put_many(queue, [body(name) for name in names], **options)
    zoo.files[kind] = newest(space)
    zoo.live |= {body(name): frozenset({zoo.files[kind]}) for name in names}


def _id_of(space: spool.Space, wanted: bytes) -> str:
    return next(message.id for queue in QUEUES for message in space.browse(queue) if message.body == wanted)


def _branch(space: spool.Space, xid: Xid, name: str) -> CoordinatedTransaction:
    branch = door.branch(space, xid=xid, timeout=30.0)
    branch.put("left", body(name))
    return branch


def _adoptions(space: spool.Space, zoo: Zoo) -> None:
    """Create heads with an adopted branch under its committed name, and with an adopted branch that no process has
    moved yet."""
    for kind in ("adopted branch", "unmoved branch"):
        xid = Xid(FOREIGN, kind.encode(), b"")
        _branch(space, xid, kind).prepare()
        with door.unmoved_branches() if kind == "unmoved branch" else mock.MagicMock():
            number = space.engine.commit_branch(xid, vote_known=True)
        zoo.files[f"head of {kind}"] = layout.committed(number)
        zoo.files[kind] = layout.committed(number, 1) if kind == "adopted branch" else layout.prepared(xid)
        zoo.live[body(kind)] = frozenset({zoo.files[kind], zoo.files[f"head of {kind}"]})


def _undecided(space: spool.Space, zoo: Zoo) -> None:
    """A branch of a foreign coordinator, which holds a message, and a branch of a coordinator of ours that died."""
    _put(space, zoo, "held", "right", ["held"])
    xid = Xid(FOREIGN, b"in doubt", b"b")
    branch = _branch(space, xid, "in doubt")
    assert branch.get("right", message_id=_id_of(space, body("held"))).body == body("held")
    branch.prepare()
    zoo.files["in doubt"] = layout.prepared(xid)
    del zoo.live[body("held")]
    zoo.gone |= {body("held"): zoo.files["in doubt"], body("in doubt"): ""}
    orphan = Xid(FORMAT_ROUND, b"orphan round", b"1")
    assert door.store(space).shared.xids.try_lock(coordinator_byte(orphan.gtrid))
    _branch(space, orphan, "orphan").prepare()
    zoo.files["orphan"] = layout.prepared(orphan)
    zoo.gone[body("orphan")] = ""
    zoo.undecided = {zoo.files["in doubt"], zoo.files["orphan"]}


def _leftovers(space: spool.Space, zoo: Zoo) -> None:
    """The files that a killed process leaves in ``active/`` and ``free/``."""
    store = door.store(space)
    _put(space, zoo, "claimed", "right", ["claimed"])
    holder = space.transaction()
    holder.get("right", message_id=_id_of(space, body("claimed")))
    with mock.patch.object(write_set, "SECTION_BYTES", 1), mock.patch.object(commit_file, "_STREAMED_HEADER_ROOM", 64):
        holder.put("left", body("never committed"))
        holder.put("left", body("never committed either"))
    zoo.gone |= {body("never committed"): "", body("never committed either"): ""}
    names = store.files.disk.names(layout.ACTIVE)
    zoo.files |= {"note": _only(names, ".claims"), "active branch": _only(names, ".msgpack")}
    copy = layout.copy(Xid(FOREIGN, b"copy", b""))
    zoo.files["copy"] = copy
    (zoo.root / copy).write_bytes((zoo.root / zoo.files["one section"]).read_bytes()[:200])
    spare = sorted(store.files.disk.names(layout.FREE))
    zoo.files |= {"spare": f"{layout.FREE}/{spare[0]}"}
    directory = f"{layout.CAPTURE_PREFIX}left.{os.urandom(8).hex()}"
    assert store.shared.xids.try_lock(capture_byte(directory))
    (zoo.root / layout.ACTIVE / directory).mkdir(mode=0o700)
    zoo.files["taken file"] = f"{layout.ACTIVE}/{directory}/hello.txt"
    (zoo.root / zoo.files["taken file"]).write_bytes(body("dropped"))


def _only(names: list[str], suffix: str) -> str:
    (name,) = [name for name in names if name.endswith(suffix)]
    return f"{layout.ACTIVE}/{name}"
