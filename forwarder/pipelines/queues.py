"""Create the queues of a pipeline, and change their options, as the description demands."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from forwarder.pipelines.description import Description, Destination
from forwarder.services import ServiceError
from spool import Space

_RETRYING = ("retries", "retry_delay", "retry_delay_max")
_LIMITS = ("max_messages", "max_bytes")


def _options(of: Description | Destination, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def queue_options(description: Description) -> dict[str, dict[str, Any]]:
    """Return the options of each queue by its name. Each queue is listed after the queues that its options name."""
    stage = {"order": ("priority", "fifo"), "ordered": description.ordered, "error_queue": description.errors}
    stage |= _options(description, *_RETRYING)
    found: dict[str, dict[str, Any]] = {description.errors: {}, description.failures: {}}
    found[description.source_queue] = stage | _options(description, *_LIMITS)
    found.setdefault(description.translate_queue, stage)
    for name, destination in description.destinations.items():
        hooks = stage if destination.ordered is None else stage | {"ordered": destination.ordered}
        delivery = hooks | _options(destination, *_RETRYING, "reply_queue")
        found[description.last_queue(name)] = delivery
        first = hooks if destination.outbound else delivery
        found[description.first_queue(name)] = first | _options(destination, *_LIMITS)
    return found


def create_queues(space: Space, description: Description, *, leave: bool = False) -> dict[str, str]:
    """Create missing queues, and change options that differ from the description. See ``Pipeline.create_queues``."""
    if not leave:
        check_left(space, description)
    done, there = {}, space.queues()
    for name, options in queue_options(description).items():
        if name not in there:
            space.create_queue(name, **options)
            done[name] = "created"
        elif changes := {option: value for option, value in options.items() if getattr(there[name], option) != value}:
            space.change_queue(name, **changes)
            done[name] = "changed"
        else:
            done[name] = "as it was"
    return done


# -- queues of a former shape ------------------------------------------------------------------------------------------


class MessagesLeft(ServiceError):
    """A pipeline was changed while messages waited in its former queues, which no route serves now.

    queues: the number of messages by queue.
    """

    def __init__(self, queues: Mapping[str, int]) -> None:
        self.queues = dict(queues)
        held = ", ".join(f"{queue} ({count:,})" for queue, count in queues.items())
        super().__init__(
            f"messages wait in queues of the pipeline's former shape, which nothing serves any more: {held}; run the "
            "former file with --once first, or move them (spool-admin message redrive QUEUE --to QUEUE); --leave goes "
            "on and leaves them"
        )


def left_queues(space: Space, descriptions: Sequence[Description], served: Collection[str] = ()) -> dict[str, int]:
    """Return the number of messages in each former queue of the pipelines.

    Args:
        served: queues that other routes forward. The messages of these queues are not counted.
    """
    stats, others = space.stats(), {*served, *(queue for one in descriptions for queue in one.queue_names)}
    found = {}
    for queue in sorted(stats.keys() - others):
        held = stats[queue].ready + stats[queue].delayed + stats[queue].claimed + stats[queue].in_doubt
        if held and any(one.is_of_another_shape(queue) for one in descriptions):
            found[queue] = held
    return found


def check_left(space: Space, description: Description) -> None:
    """Raise MessagesLeft if queues of a former shape of the pipeline hold messages."""
    if found := left_queues(space, [description]):
        raise MessagesLeft(found)
