"""Queues that a pipeline had before its description was changed, and that hold messages: nothing serves them now."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from forwarder.services import ServiceError
from spool import Space

if TYPE_CHECKING:
    from forwarder.pipelines.description import Description


class MessagesLeft(ServiceError):
    """A pipeline was changed while messages waited in queues that it had before and nothing serves now.

    queues: how many messages each of them holds.
    """

    def __init__(self, queues: Mapping[str, int]) -> None:
        self.queues = dict(queues)
        held = ", ".join(f"{queue} ({count:,})" for queue, count in queues.items())
        super().__init__(
            f"messages wait in queues of the pipeline's former shape, which nothing serves any more: {held}; run the "
            "former file with --once first, or move them (spool-admin message redrive QUEUE --to QUEUE); --leave goes "
            "on and leaves them"
        )


def left_queues(space: Space, descriptions: "Sequence[Description]", served: Collection[str] = ()) -> dict[str, int]:
    """Return the queues of former shapes of pipelines that hold messages, and how many.

    Args:
        served: queues that are forwarded by other routes.
    """
    stats, others = space.stats(), {*served, *(queue for one in descriptions for queue in one.queue_names)}
    found = {}
    for queue in sorted(stats.keys() - others):
        held = stats[queue].ready + stats[queue].delayed + stats[queue].claimed + stats[queue].in_doubt
        if held and any(one.is_of_another_shape(queue) for one in descriptions):
            found[queue] = held
    return found


def check_left(space: Space, description: "Description") -> None:
    """Raise MessagesLeft if queues of a former shape of the pipeline hold messages."""
    if found := left_queues(space, [description]):
        raise MessagesLeft(found)
