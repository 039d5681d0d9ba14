"""The transaction that the caller's puts and gets join, kept for each thread and each asyncio task.

A copied context keeps its transaction after the transaction has ended. Puts and gets in that context then raise
ProtocolError, instead of committing silently without the transaction.
"""

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Protocol


class Joinable(Protocol):
    """The part of a transaction that a caller needs to join it."""

    @property
    def is_active(self) -> bool: ...


Association = Token[Mapping[int, Joinable]]

joined_by_caller: ContextVar[Mapping[int, Joinable]] = ContextVar("spool.runtime.context", default={})  # noqa: B039 (never changed)


def associated(store: object) -> Joinable | None:
    """Return the transaction that the caller's puts and gets join, or None. ``store``: the store of the open space."""
    return joined_by_caller.get().get(id(store))


def associate(store: object, transaction: Joinable | None) -> Association:
    """Make the caller's puts and gets join a transaction, or none.

    Returns the token with which ``dissociate`` undoes the change.
    """
    joined = dict(joined_by_caller.get())
    joined.pop(id(store), None)
    if transaction is not None:
        joined[id(store)] = transaction
    return joined_by_caller.set(joined)


def dissociate(association: Association) -> None:
    """Restore the transaction that the caller was in before ``associate``."""
    try:
        joined_by_caller.reset(association)
    except ValueError:
        pass  # the block began in another context, which keeps the ended transaction
