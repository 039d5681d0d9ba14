"""The room for answers: no call begins while a queue that takes its answer is full."""

from collections.abc import Iterable

from spool.log.quota import room_in
from spool.log.visibility import catch_up, list_prepared
from spool.store.store import Store
from spool.transactions.two_phase import resolve_orphans


def room_for_answers(store: Store, queues: Iterable[str]) -> tuple[int | None, str]:
    """Return the number of messages that still fit into each of these queues, and the name of a full queue.

    The number is None for any number, and the name is "" if no queue is full, according to this process's index. Queues
    that do not exist have no limit. Messages of prepared branches take room. The exact check follows at the commit. The
    caller is inside a public call.
    """
    settings, least = store.settings.current(), None
    for queue in queues if settings.config.has_limits else ():
        config = settings.config.queues.get(queue)
        limits = {config.max_messages, config.max_bytes} if config is not None else {None}
        if limits == {None} or 0 in limits:  # no message ever fits under a limit of 0, so each attempt fails
            continue
        catch_up(store, list_prepared(store))
        room = room_in(store.view, settings, queue)
        if room == 0 and resolve_orphans(store, store.deadline()):  # the messages of orphans took the room
            room = room_in(store.view, settings, queue)
        if room == 0:
            return 0, queue
        least = room if least is None or room is None else min(least, room)
    return least, ""
