"""The door to the parts of a space behind its public calls.

Tests take a public call where one shows the same. Otherwise they go through this module, which alone knows the private
names of a space. ``owner`` is an open space, its engine, or a transaction.
"""

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Protocol
from unittest import mock

import spool
import xa
from spool.coordination.counters import CounterPage
from spool.disk.disk import Disk
from spool.format.reader import contents_of
from spool.index.index import Index
from spool.log import write_set
from spool.log.adoption import adoption, voted_contents
from spool.log.combined import CombinedCommits
from spool.log.visibility import catch_up
from spool.log.write_set import WriteSet
from spool.maintenance import reclaim as reclaiming
from spool.maintenance.housekeeper import Housekeeper
from spool.model.position import Position
from spool.model.xid import Xid
from spool.policies import claim_journal
from spool.runtime.clock import Clock, Deadline
from spool.store.store import WAIT_SECONDS, Store
from spool.transactions.coordinated import CoordinatedTransaction
from spool.transactions.core import Core

PATIENT_SECONDS = 60


class Owner(Protocol):
    _store: Store


def store(owner: Owner) -> Store:
    return owner._store


def core(space: spool.Space) -> Core:
    return space._core


def disk(owner: Owner) -> Disk:
    return owner._store.files.disk


def clock(owner: Owner) -> Clock:
    return owner._store.clock


def deadline(owner: Owner, seconds: float = WAIT_SECONDS) -> Deadline:
    return owner._store.deadline(seconds)


def index(owner: Owner) -> Index:
    """Return the queues in the memory of this process."""
    return owner._store.view.index


def counters(owner: Owner) -> CounterPage:
    """Read the numbers that all processes of the space share."""
    return owner._store.shared.counters.read()


def in_work(space: spool.Space) -> list[Position]:
    """Return the messages for which the death of this process would count an attempt."""
    journal = claim_journal.read_journal(disk(space), core(space).journal.xid)
    catch_up(store(space))
    return claim_journal.uncounted(index(space), journal)


def combined(space: spool.Space) -> CombinedCommits:
    """Return the part of the space that commits together with other processes."""
    found = space._core.group_commit._combined
    assert found is not None
    return found


def next_check(arrivals: spool.QueueArrivals) -> float:
    """Return when the watching thread checks the queues by itself, by the monotonic clock."""
    return arrivals._check_at


# -- housekeeping, done by the test -----------------------------------------------------------------------------------


def reclaim(owner: Owner, *args: Any, **options: Any) -> int:
    """Remove the files that the space no longer needs. Return their number."""
    return reclaiming.reclaim(owner._store, *args, **options)


def compact(space: spool.Space) -> int:
    """Compact the queues. Return the number of written files."""
    return space._housekeeper.compact()


def housekeeper(space: spool.Space) -> Housekeeper:
    return space._housekeeper


def housekeep(space: spool.Space, *, due: bool = True) -> bool:
    """Do a whole round, as the thread of the housekeeper does. ``due``: whether the time of a round has come."""
    return space._housekeeper._round(due=due)


def steps(space: spool.Space, *, due: bool = True) -> None:
    """Do the steps of a round, whichever process was elected."""
    space._housekeeper._do_steps(due=due)


def expire(space: spool.Space) -> None:
    space._housekeeper._expire()


def save(space: spool.Space, least: int = 0) -> None:
    """Save a checkpoint if it has at least so many entries."""
    space._housekeeper._save(least)


def reclaim_behind(space: spool.Space, behind: int = 0) -> None:
    """Reclaim as a round does: the newest ``behind`` numbers are kept for readers."""
    space._housekeeper._reclaim(behind)


def is_elected(space: spool.Space) -> bool:
    """Return whether this process does the housekeeping of the space."""
    return space._housekeeper._is_elected()


# -- transactions -----------------------------------------------------------------------------------------------------


def branch(space: spool.Space, **options: Any) -> CoordinatedTransaction:
    """Begin a branch of a coordinator. options: those of ``CoordinatedTransaction``."""
    return CoordinatedTransaction(space._core, **options)


def batch(transaction: Any) -> WriteSet:
    """Return the commit that the transaction has gathered so far."""
    found: WriteSet = transaction._branch.batch
    return found


def outcomes(manager: xa.TransactionManager) -> Any:
    """Return the branches that the manager commits in the background."""
    return manager._outcomes


def settle(manager: xa.TransactionManager) -> None:
    """Wait until the manager has committed every branch in the background."""
    manager._outcomes.wait(PATIENT_SECONDS)


# -- files of messages, and commits ------------------------------------------------------------------------------------


@contextmanager
def fixed(writer: dict[str, object], ids: Callable[[int], bytes], xids: Callable[[int], bytes]) -> Iterator[None]:
    """Let the files of the block name this writer, and let two functions make random ids: those of branches of
    messages, and those of xids, which must differ while their files exist."""
    with (
        mock.patch("spool.log.commit_file.writer_name", return_value=writer),
        mock.patch("spool.model.xid.os", urandom=xids),
        mock.patch.object(os, "urandom", ids),
    ):
        yield


@contextmanager
def small_sections(messages: int = 6, size: int = 2_000, addressed: int = 4) -> Iterator[None]:
    """Let a section of a file hold at most so many messages, bytes of bodies, and messages that it removes or
    changes."""
    with (
        mock.patch.object(write_set, "SECTION_MESSAGES", messages),
        mock.patch.object(write_set, "SECTION_BYTES", size),
        mock.patch.object(write_set, "MOST_ADDRESSED", addressed),
    ):
        yield


def contents(owner: Owner, name: str) -> Any:
    """Return the header and the columns that a reader gets from a file, as dicts and lists. Votes have the number 0."""
    return _readable(contents_of(disk(owner), name))


def _readable(found: Any) -> Any:
    number = found.header.number if found.header.is_numbered else 0
    return _plain({**found.header._asdict(), "number": number, "tables": found.tables})


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.compare and field.name[0] != "_"
        }
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple | array) else value


def note(owner: Owner, number: int) -> bytes | None:
    """Return the note of a commit in the feed."""
    return owner._store.shared.feed.read(number)


def noted(owner: Owner, number: int) -> list[Any] | None:
    """Return the contents of the files of a commit, as its note has them; None if the files must be read."""
    found = owner._store.shared.feed.commit(number)
    return found and [_readable(part.contents) for part in found.parts]


def commit_branches(space: spool.Space, xids: Sequence[Xid]) -> None:
    """Commit prepared branches in one file, as threads do that decide at the same time."""
    requests = [adoption(voted_contents(space._store, xid)) for xid in xids]
    with space._store.guard:
        space._core.group_commit._commit([*requests])
    for request in requests:
        if request.error is not None:
            raise request.error
