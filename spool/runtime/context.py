"""Which transaction the caller is in: right for threads and for asyncio tasks.

A copied context keeps pointing at a transaction that has ended, and is told so, instead of silently committing on its
own.
"""

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from spool.store.store import Store

if TYPE_CHECKING:
    from spool.transactions.transaction import Transaction

Association = Token[Mapping[int, "Transaction"]]

_association: ContextVar[Mapping[int, "Transaction"]] = ContextVar("spool.runtime.context", default={})  # noqa: B039 (never changed)


def associated(store: Store) -> "Transaction | None":
    """The transaction that the caller's puts and gets join, or None."""
    return _association.get().get(id(store))


def associate(store: Store, transaction: "Transaction | None") -> Association:
    """Make the caller's puts and gets join a transaction (or none any more); the token undoes it."""
    others = {key: value for key, value in _association.get().items() if key != id(store)}
    return _association.set(others if transaction is None else {**others, id(store): transaction})


def dissociate(association: Association) -> None:
    """Back to what was before."""
    try:
        _association.reset(association)
    except ValueError:
        pass  # left in another context than entered: that one keeps pointing at an ended transaction
