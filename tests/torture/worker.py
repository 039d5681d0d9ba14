"""A process that is killed: it opens the space, and puts or gets until its standard input ends.

When it is held in a window, it writes ``window NAME`` to standard output, and waits for a line, or for SIGKILL.
"""

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Any

import spool
from spool.intake import Intake
from spool.model.xid import Xid
from spool.transactions import two_phase
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core
from tests import door
from tests.torture import history
from tests.torture.history import Log, Record
from tests.torture.windows import WindowDisk
from xaspool_scripts.terminal.output import flush_directory

QUEUES: dict[str, dict[str, Any]] = {"in": {}, "out": {}, "urgent": {"order": ("priority", "fifo")}}  # and options
PRIORITIES = (10, 50, 50, 90)
FOREIGN_FORMAT = 7
WAIT_SECONDS = 0.2
STEPS_PER_LOOK = 20  # a getter looks at everything before its first step, and then before each of so many
MOST_LOOKED_AT = 200
RECLAIMS = 0.01  # how often after a step, so that readers are overtaken, and names and files are used again


def make_queues(space: spool.Space) -> None:
    for name, options in QUEUES.items():
        space.create_queue(name, **options)


class Worker:
    """The base of all kinds of workers. A step is one transaction, or a few."""

    def __init__(self, space: spool.Space, log: Log, incarnation: int, rng: random.Random) -> None:
        self.space = space
        self.log = log
        self.rng = rng
        self._prefix = f"{log.worker}.{incarnation}"
        self._transactions = 0
        self._keys = 0

    def step(self) -> None:
        raise NotImplementedError

    @contextmanager
    def named(self, **fields: bool) -> Iterable[str]:
        """A new transaction's name, for everything that is logged inside."""
        self._transactions += 1
        self.log.tx = f"{self._prefix}.{self._transactions}"
        self.log.write("begin", **fields)
        yield self.log.tx

    def new_keys(self, count: int) -> list[str]:
        self._keys += count
        return [f"{self._prefix}-{n:06d}" for n in range(self._keys - count, self._keys)]

    def renamed(self, keys: list[str]) -> list[str]:
        """The new keys of moved messages: a key shows the attempt that moved it."""
        return [f"{key}>{self.log.tx}" for key in keys]

    def put(self, transaction: CoordinatedTransaction, queue: str, keys: list[str], **options: int) -> None:
        self.log.write("put", queue=queue, keys=keys, **options)
        transaction.put_many(queue, keys, **options)

    def got(self, queue: str, messages: list[spool.Message]) -> list[str]:
        self.log.write("got", queue=queue, messages=described(messages))
        return [key_of(message) for message in messages]


def key_of(message: spool.Message) -> str:
    return message.body.decode() if isinstance(message.body, bytes) else message.body


def described(messages: Iterable[spool.Message]) -> list[list[object]]:
    return [[key_of(message), message.position, message.attempts] for message in messages]


class Putter(Worker):
    """Plain puts, one or several in a commit."""

    def step(self) -> None:
        with self.named():
            keys = self.new_keys(self.rng.choice((1, 1, 1, 4)))
            self.log.write("put", queue="in", keys=keys)
            self.log.write("commit")
            self.space.put_many("in", keys)
            self.log.write("ack")


class TransactionPutter(Worker):
    """Transactions over two queues, some of which are rolled back."""

    def step(self) -> None:
        with self.named(), self.space.transaction() as transaction:
            self.put(transaction, "in", self.new_keys(2))
            self.put(transaction, "out", self.new_keys(1))
            self.put(transaction, "urgent", self.new_keys(2), priority=self.rng.choice(PRIORITIES))
            if self.rng.random() < 0.1:
                self.log.write("rollback")
                transaction.rollback()
                return
            self.log.write("commit")
            transaction.commit()
            self.log.write("ack")


class Dropper(Worker):
    """Drops files, and is the intake that takes them. A file is promised once its name in ``drop/`` is durable."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._take()

    def step(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            with self.named(ordered=False):
                self._drop()
        self._take()

    def _drop(self) -> None:
        import msgpack

        keys = self.new_keys(self.rng.choice((1, 3)))
        name = keys[0] if len(keys) == 1 else f"{keys[0]}.msgpack"
        data = keys[0].encode() if len(keys) == 1 else b"".join(msgpack.packb({"body": key}) for key in keys)
        folder = f"{self.space.path}/drop/in"
        with open(f"{folder}/{name}.tmp", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.log.write("put", queue="in", keys=keys)
        self.log.write("commit")
        os.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
        flush_directory(folder)
        self.log.write("ack")

    def _take(self) -> None:
        self.log.tx = ""
        Intake(self.space).run(once=True)


class Getter(Worker):
    """Plain gets."""

    most = 1
    _steps = 0

    def step(self) -> None:
        if self._steps % STEPS_PER_LOOK == 0:
            self._look()
        self._steps += 1
        queue = self.rng.choice(list(QUEUES))
        with self.named(noted=False):
            self.log.write("commit")
            try:
                messages = self.space.get_many(queue, self.most, timeout=WAIT_SECONDS)
            except spool.Empty:
                self.log.write("rollback")
                return
            self.got(queue, messages)
            self.log.write("ack")

    def _look(self) -> None:
        """Check that a read shows no half of a commit, and no fewer messages than before."""
        self.log.tx = ""
        for queue in QUEUES:
            begun = time.monotonic_ns()
            keys = [key_of(message) for message in islice(self.space.browse(queue), MOST_LOOKED_AT)]
            self.log.write("saw", queue=queue, keys=keys, begun=begun, all=len(keys) < MOST_LOOKED_AT)


class BatchGetter(Getter):
    """Plain gets of several messages in one commit."""

    most = 5


class Mover(Worker):
    """Transactions that take from one queue and put into the other; some are rolled back."""

    def step(self) -> None:
        with self.named(noted=True):
            try:
                with self.space.transaction() as transaction:
                    self._move(transaction)
            except _Refused:
                pass

    def _move(self, transaction: CoordinatedTransaction) -> None:
        try:
            messages = transaction.get_many("in", self.rng.choice((1, 1, 3)), timeout=WAIT_SECONDS)
        except spool.Empty:
            self.log.write("rollback")
            return
        self.put(transaction, "out", self.renamed(self.got("in", messages)))
        if self.rng.random() < 0.1:
            self.log.write("rollback")
            raise _Refused
        self.log.write("commit")
        transaction.commit()
        self.log.write("ack")


class _Refused(Exception):
    """A consumer that does not like its message."""


class XaWorker(Worker):
    """Branches of a coordinator that is not ours: prepared, then decided, after a restart if need be."""

    def __init__(self, *args: object, past: Iterable[Record]) -> None:
        super().__init__(*args)
        resolve(door.core(self.space), self.log, list(past), self.rng, mine=f"{self.log.worker}.".encode())

    def step(self) -> None:
        with self.named(noted=True) as name:
            xid = Xid(FOREIGN_FORMAT, name.encode(), b"")
            transaction = door.branch(self.space, xid=xid, timeout=30.0)
            if not self.work(transaction):
                self.log.write("rollback")
                transaction.rollback()
                return
            self.log.write("prepare")
            transaction.prepare()
            self.log.write("prepared")
            finish(door.core(self.space), self.log, xid, commit=self.rng.random() < 0.8, told=True)

    def work(self, transaction: CoordinatedTransaction) -> bool:
        raise NotImplementedError


class XaPutter(XaWorker):
    """Puts into two queues."""

    def work(self, transaction: CoordinatedTransaction) -> bool:
        self.put(transaction, "in", self.new_keys(2))
        self.put(transaction, "out", self.new_keys(1))
        return True


class XaMover(XaWorker):
    """Takes from one queue and puts into the other."""

    def work(self, transaction: CoordinatedTransaction) -> bool:
        try:
            messages = transaction.get_many("in", self.rng.choice((1, 2)), timeout=WAIT_SECONDS)
        except spool.Empty:
            return False
        self.put(transaction, "out", self.renamed(self.got("in", messages)))
        return True


def finish(core: Core, log: Log, xid: Xid, *, commit: bool, told: bool, again: bool = False) -> None:
    """Phase two, either way. ``again``: an earlier process of the worker decided to commit."""
    log.write("commit" if commit else "rollback")
    try:
        if commit:
            two_phase.commit_prepared(core, xid, vote_known=told)
            log.write("ack")
        else:
            two_phase.rollback_prepared(core.store, xid, core.store.deadline())
    except two_phase.UnknownBranch as error:
        event = "ack" if again and error.committed_by else "broken"  # (a leader commits what the dead process posted)
        log.write(event, what=f"{xid} was in doubt, and is gone though nobody decided it: {error}")


def resolve(core: Core, log: Log, past: list[Record], rng: random.Random, *, mine: bytes = b"") -> None:
    """Decide branches in doubt: as was decided before the death, else by lot."""
    decided = {record["tx"]: record["event"] for record in past if record["event"] in ("commit", "rollback")}
    for xid in two_phase.in_doubt(core.store, core.store.deadline()):
        if xid.gtrid.startswith(mine):
            log.tx = xid.gtrid.decode()
            was = decided.get(log.tx, rng.choice(("will commit", "rollback")))
            finish(core, log, xid, commit="commit" in was, told=False, again=was == "commit")


KINDS: dict[str, Callable[..., Worker]] = {
    "putter": Putter, "transaction-putter": TransactionPutter, "xa-putter": XaPutter, "dropper": Dropper,
    "getter": Getter, "batch-getter": BatchGetter, "mover": Mover, "xa-mover": XaMover,
}  # fmt: skip


def hold(window: str) -> None:
    """Report the window, and wait for the next order."""
    print("window", window, flush=True)
    sys.stdin.readline()


def main(root: str, log_path: str, name: str, kind: str, incarnation: str, seed: str, odds: str) -> None:
    past = list(history.read(log_path))
    log = Log(log_path, name)
    rng = random.Random(f"{seed} {name} {incarnation}")
    options = {"past": past} if issubclass(KINDS[kind], XaWorker) else {}
    with spool.open(WindowDisk(root, log, rng, json.loads(odds), hold)) as space:
        worker = KINDS[kind](space, log, int(incarnation), rng, **options)
        while not select.select([sys.stdin], [], [], 0)[0]:  # until standard input ends
            worker.step()
            if rng.random() < RECLAIMS:
                log.tx = ""
                door.reclaim(space)
