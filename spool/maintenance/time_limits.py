"""Roll back idle transactions of this process whose time is over, because other programs wait for their messages."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spool.errors import SpoolError
from spool.store.store import Store


def end_overdue(store: Store, check_active: Callable[[Any], object]) -> None:
    """Look at the transactions that ``store.limited`` names, and keep the active ones there.

    Args:
        check_active: rolls back a transaction whose time is over, and raises an error.
    """
    for found in [store.limited.popleft() for _ in range(len(store.limited))]:
        if (transaction := found()) is None or not transaction.is_active:
            continue
        if store.clock.monotonic() < transaction.until or not transaction.mutex.acquire(blocking=False):
            store.limited.append(found)  # (a call that is in progress looks itself)
            continue
        try:
            with suppress(SpoolError):
                check_active(transaction)
        finally:
            transaction.mutex.release()
