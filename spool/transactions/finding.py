"""Find a message by its correlation id, without a claim: the newest message of a queue, in any state.

A program keeps values in a queue under keys, e.g. the results of tasks. The correlation id is the key.
"""

from functools import partial

from spool.log.visibility import catch_up
from spool.model.checks import SHORT_TEXT, check
from spool.model.message import Message, parse_message_id
from spool.model.position import Position
from spool.runtime.greenlets import check_threads
from spool.store.store import Store
from spool.transactions.claiming import Wanted, check_wanted
from spool.transactions.delivery import peek
from spool.transactions.validation import check_queue
from spool.transactions.waiting import repeat_when_arrived


def check_find(queue: str, correlation_id: str, timeout: float | None, other_than: str | None) -> Wanted:
    """Check the arguments of ``Space.find``."""
    if other_than is not None:
        parse_message_id(other_than)
    key = check("correlation_id", correlation_id, SHORT_TEXT)  # (here None is not allowed)
    return check_wanted(queue, 1, correlation_id=key, timeout=timeout)


def find(store: Store, wanted: Wanted, other_than: str | None) -> Message | None:
    """Return the newest message with the correlation id in ``wanted``; wait for it up to ``wanted.timeout`` seconds."""
    found = find_now(store, wanted, other_than)
    if found is not None or wanted.timeout == 0:
        return found
    check_threads()
    look = partial(find_now, store, wanted, other_than)
    return repeat_when_arrived(store, (wanted.sought,), is_never_held, look, store.deadline(wanted.timeout))


def find_now(store: Store, wanted: Wanted, other_than: str | None) -> Message | None:
    """Return the newest message with the correlation id in ``wanted``, or None if the queue has no such message.

    ``other_than``: the id of a message that is not returned.
    """
    page = store.check_usable()
    check_queue(store.settings, wanted.queue, page)
    store.view.was_read = True
    catch_up(store, page)
    while (position := _newest(store, wanted)) is not None:
        seen = peek(store, position)
        if seen is not None:
            return None if seen.message.id == other_than else seen.message
    return None  # (``peek`` has caught up, so a message that replaced the removed one was found in the next round)


def is_never_held() -> bool:
    """Return False: a claim does not hide a message from a search, so the search need not poll for its release."""
    return False


def _newest(store: Store, wanted: Wanted) -> Position | None:
    assert wanted.correlation_id is not None
    with store.view.mutex:
        return store.view.index.messages.newest_correlated(wanted.queue, wanted.correlation_id, store.clock.now())
