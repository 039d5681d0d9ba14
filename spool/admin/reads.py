"""Read a message without a claim, in any state: by its id, by its position, or by its correlation id.

A program keeps values in a queue under keys, e.g. the results of tasks. The correlation id is the key.
"""

from functools import partial
from typing import NamedTuple

from spool.errors import BadMessageId, CorruptedFile
from spool.index.run import Run
from spool.log.visibility import catch_up
from spool.model.checks import SHORT_TEXT, check
from spool.model.message import Message, parse_message_id, with_defaults
from spool.model.position import Position
from spool.runtime.greenlets import check_threads
from spool.store.store import Store
from spool.transactions.claiming import Wanted, check_wanted
from spool.transactions.delivery import read_messages
from spool.transactions.validation import check_queue
from spool.transactions.waiting import repeat_when_arrived

# The advice of the error about a damaged message.
WHAT_TO_DO = "spool-admin check --repair moves damaged messages to quarantine, with the reason"
_MOST_READS = 3  # reads of a message that other processes move meanwhile


# -- by id and by position --------------------------------------------------------------------------------------------


def locate(store: Store, wanted_id: str) -> tuple[Run, Position]:
    """Return the run that has the message with this id, in any queue, and the message's position.

    Raises BadMessageId if no message has the id.
    """
    catch_up(store)
    with store.view.mutex:
        run, ordinal = store.view.index.messages.with_id(*parse_message_id(wanted_id))
    if run is None:
        raise no_message(wanted_id)
    return run, Position(run.number, ordinal)


def find_message(store: Store, wanted_id: str) -> Message:
    """Return the message with this id, from any queue. Raises BadMessageId if no message has the id."""
    if (seen := peek(store, locate(store, wanted_id)[1])) is None:
        raise no_message(wanted_id)
    return seen.message


def no_message(wanted_id: str) -> BadMessageId:
    """Return the error for an id that no message has."""
    return BadMessageId(f"there is no message {wanted_id}: it was taken, or never committed")


class Peek(NamedTuple):
    """A message that was read without a claim, and the size of its stored body in bytes.

    is_cut: whether the body of ``message`` is only the beginning of the stored body.
    """

    message: Message
    body_bytes: int
    is_cut: bool


def peek(store: Store, position: Position, preview: int | None = None) -> Peek | None:
    """Return a message without a claim, or None if it was removed; raises CorruptedFile if the message is damaged.

    During the read, other processes may remove the message, and reclaim or recycle its file. If so, this process
    catches up, and the index then shows the removal.

    Args:
        preview: how many bytes of the body to read. A longer body is cut there, and its checksum is not verified.
    """
    problem: Exception | None = None
    for _ in range(_MOST_READS):
        cut: Peek | None = None
        with store.view.mutex:
            if (run := store.view.index.messages.find(position)) is None:
                return None
            file = run.file
            try:
                length = store.files.cache.place(run, position.ordinal).length
                if preview is None or length <= preview:
                    whole = read_messages(store, position.number, position.ordinal, 1, only_shown=True)[0]
                    return Peek(whole, length, False)
                cut = Peek(_beginning(store, run, position, preview), length, True)
            except (CorruptedFile, FileNotFoundError) as error:
                problem = error
        catch_up(store)
        with store.view.mutex:
            now = store.view.index.messages.find(position)
        if cut is not None and now is not None:
            if now.file == file:
                return cut  # the message was in this file after the read, so the file was not recycled before
            problem = CorruptedFile("other processes move the message all the time: try again")
    with store.view.mutex:
        if (run := store.view.index.messages.find(position)) is None:
            return None
    id_, queue = run.id_of(position.ordinal), run.queue.name
    where = f"{position.number}/{position.ordinal}"
    raise CorruptedFile(f"message {id_} of queue {queue} (position {where}) is damaged: {problem}; {WHAT_TO_DO}")


def _beginning(store: Store, run: Run, position: Position, count: int) -> Message:
    """Return a message with the first bytes of its stored body. The caller holds the mutex."""
    config = store.settings.known.config.queues.get(run.queue.name)
    attributes = run.attributes if config is None else with_defaults(config, run.attributes)
    body = store.files.cache.beginning(run, position.ordinal, count)
    return Message(run.id_of(position.ordinal), run.queue.name, body, run.committed_at, position, attributes)


# -- by correlation id ------------------------------------------------------------------------------------------------


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
    return repeat_when_arrived(store, (wanted.awaited,), is_never_held, look, store.deadline(wanted.timeout))


def find_now(store: Store, wanted: Wanted, other_than: str | None) -> Message | None:
    """Return the newest message with the correlation id in ``wanted``, or None if the queue has no such message.

    ``other_than``: the id of a message that is not returned.
    """
    look(store, wanted.queue)
    while (position := _newest(store, wanted)) is not None:
        if (seen := peek(store, position)) is not None:
            return None if seen.message.id == other_than else seen.message
    return None  # (``peek`` has caught up, so a message that replaced the removed one was found in the next round)


def look(store: Store, queue: str) -> None:
    """Apply all commits before a look at a queue's messages. QueueNotFound."""
    page = store.shared.counters.read()
    check_queue(store.settings, queue, page)
    store.view.was_searched = True
    catch_up(store, page)


def is_never_held() -> bool:
    """Return False: a claim does not hide a message from a search, so the search need not poll for its release."""
    return False


def _newest(store: Store, wanted: Wanted) -> Position | None:
    assert wanted.correlation_id is not None
    with store.view.mutex:
        return store.view.index.messages.newest_correlated(wanted.queue, wanted.correlation_id, store.clock.now())
