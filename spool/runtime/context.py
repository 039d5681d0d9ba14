"""The transaction that the caller's puts and gets join, kept for each thread and each asyncio task.

A copied context keeps its transaction after the transaction has ended. Puts and gets in that context then raise
ProtocolError, instead of committing silently without the transaction.

A block may begin in one thread of a pool and end in another one, e.g. in a generator that a framework advances in a
pool. With its next put or get, the first thread returns to the transaction that it had before the block.
"""

import sys
from collections.abc import Mapping
from contextvars import ContextVar, Token
from threading import get_ident
from typing import NamedTuple, Protocol


class Joinable(Protocol):
    """The part of a transaction that a caller needs to join the transaction."""

    ended_elsewhere: "Block | None"  # the block of this transaction that ended in another context, or out of turn

    @property
    def is_active(self) -> bool: ...


class Block(NamedTuple):
    """A block whose puts and gets join a transaction.

    thread: the thread in which the block began. joined: the caller's transactions in the block, by the id of the store.
    before: the token that undoes the block in its context.
    """

    thread: int
    joined: Mapping[int, Joinable]
    before: Token[Mapping[int, Joinable]]


joined_by_caller: ContextVar[Mapping[int, Joinable]] = ContextVar("spool.runtime.context", default={})  # noqa: B039 (never changed)


def associated(store: object) -> Joinable | None:
    """Return the transaction that the caller's puts and gets join, or None. ``store``: the store of the open space."""
    found = joined_by_caller.get().get(id(store))
    while found is not None and found.ended_elsewhere is not None and _is_stale(found.ended_elsewhere):
        before = found.ended_elsewhere.before.old_value
        found = None if before is Token.MISSING else before.get(id(store))
        associate(store, found)
    return found


def _is_stale(block: Block) -> bool:
    """Return whether this thread began the block. A task keeps the transaction, because its context may be a copy."""
    events = sys.modules.get("asyncio.events")
    return block.thread == get_ident() and (events is None or events._get_running_loop() is None)


def associate(store: object, transaction: Joinable | None) -> Block:
    """Make the caller's puts and gets join a transaction, or none.

    Returns the block that ``dissociate`` ends.
    """
    joined = dict(joined_by_caller.get())
    joined.pop(id(store), None)
    if transaction is not None:
        joined[id(store)] = transaction
    return tuple.__new__(Block, (get_ident(), joined, joined_by_caller.set(joined)))


def dissociate(store: object, transaction: Joinable, block: Block) -> bool:
    """Restore the transaction that the caller was in before ``associate``.

    Returns False if the block began in another context, which keeps the ended transaction. Also returns False if a
    later block of this context has not ended, e.g. the block of another generator, if the caller alternates between two
    generators. The end of that later block then passes over this transaction.
    """
    joined = joined_by_caller.get()
    if joined is block.joined:  # no block has begun or ended since, as in nested ``with`` blocks
        return _reset(block)
    if joined.get(id(store)) is not transaction:
        joined_by_caller.set(dict(joined))  # (a new dict: then the end of the later block looks for ended blocks)
        return False
    if not _undo(store, block):
        return False
    while True:
        before = joined_by_caller.get().get(id(store))
        if before is None or before.ended_elsewhere is None or not _undo(store, before.ended_elsewhere):
            return True


def _reset(block: Block) -> bool:
    """Restore all transactions before a block. Returns False if the block began in another context."""
    try:
        joined_by_caller.reset(block.before)
    except (ValueError, RuntimeError):  # (RuntimeError: the block was undone before)
        return False
    return True


def _undo(store: object, block: Block) -> bool:
    """Restore the transaction of this store before a block. Blocks of other stores, which may have begun since, remain.

    Returns False if the block began in another context.
    """
    joined = dict(joined_by_caller.get())
    if not _reset(block):
        return False
    joined.pop(id(store), None)
    before = joined_by_caller.get()
    if id(store) in before:
        joined[id(store)] = before[id(store)]
    joined_by_caller.set(joined)
    return True
