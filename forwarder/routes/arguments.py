"""Turn the argument ``routes`` of a forwarder into ``Route`` objects, and check that each route can work."""

import logging
from collections.abc import Mapping, Sequence

from forwarder.round import Route
from forwarder.services import (
    TIMEOUT_SECONDS,
    MissingQueue,
    OtherSpaceService,
    QueueService,
    Service,
    ServiceError,
    check_sendable,
    parse,
)
from forwarder.task import threads_of
from spool import Space
from spool.engine.remote import identity_of
from spool.errors import InvalidArgument
from spool.model.checks import TIME_LIMIT, ValueCheck, check
from spool.workers.effects import ON_FAILURE, OnFailure
from spool.workers.pauses import PAUSE_AFTER, PAUSES_AFTER
from spool.workers.worker import AT_ONCE

log = logging.getLogger("spool.forwarder")

_CHECKS = {"on_failure": ON_FAILURE, "timeout": TIME_LIMIT, "threads": AT_ONCE, "pause_after": PAUSES_AFTER}


def as_routes(
    given: Mapping[str, str | Service] | Sequence[Route],
    *,
    on_failure: OnFailure | None = None,
    timeout: float | None = None,
    threads: int | None = None,
    pause_after: int | None = None,
) -> list[Route]:
    """Return routes in any form as ``Route`` objects. ``Forwarder`` describes the arguments and errors."""
    options = {"on_failure": on_failure, "timeout": timeout, "threads": threads, "pause_after": pause_after}
    set_here = [name for name, value in options.items() if value is not None]
    for name in set_here:
        check_option(name, options[name], _CHECKS[name])
    if isinstance(given, Mapping):
        services = {
            queue: parse(named, timeout=timeout or TIMEOUT_SECONDS, threads=threads)
            if isinstance(named, str)
            else named
            for queue, named in given.items()
        }
        most = PAUSE_AFTER if pause_after is None else pause_after
        made = [Route(queue, service, on_failure or "reject", pause_after=most) for queue, service in services.items()]
        for queue, service in services.items():
            if threads is not None and threads_of(service) != threads:
                log.warning("queue %s: threads has no effect on its service, which has %d", queue, threads_of(service))
    elif given and set_here:
        raise ServiceError(f"Route objects have their own options: leave {' and '.join(set_here)} out")
    else:
        made = list(given)
    if not made:
        raise ServiceError("there is nothing to forward: give a route, QUEUE=SERVICE")
    queues = [route.queue for route in made]
    for queue in queues:
        if queues.count(queue) > 1:
            raise ServiceError(f"the queue {queue} has two routes: give it one")
    return made


def check_option(name: str, value: object, of: ValueCheck) -> None:
    """Raise ServiceError if the value of an option is wrong."""
    try:
        check(name, value, of)
    except InvalidArgument as error:
        raise ServiceError(str(error)) from None


def check_routes(space: Space, routes: Sequence[Route], *, sent: bool = True) -> None:
    """Refuse routes that cannot work, before a message is taken. ``sent``: whether other processes call the services.

    Raises:
        MissingQueue: a queue that a route names does not exist.
        ServiceError: a service cannot be used, or messages would pass from queue to queue in a cycle.
    """
    queues, own = space.queues(), identity_of(space.path)
    for route in routes:
        if route.queue not in queues:
            raise MissingQueue(f"there is no queue {route.queue!r} in {space.path}: create it, or correct the route")
        if sent:
            check_sendable(route.service)
        route.service.check()
        if isinstance(route.service, OtherSpaceService) and identity_of(route.service.path) == own:
            queue = route.service.queue
            raise ServiceError(f"{route.service.path} is the forwarder's own space: write queue:{queue}")
        into = [route.service.queue] if isinstance(route.service, QueueService) else route.into
        for target in into:
            if target not in queues:
                raise MissingQueue(f"there is no queue {target!r} to forward {route.queue} to: create it")
    _check_cycles(routes)


def _check_cycles(routes: Sequence[Route]) -> None:
    """Refuse routes that pass messages from queue to queue in a cycle, because the messages would pass on forever."""
    moves = [(route.queue, route.service) for route in routes]
    passed_to = {queue: service.queue for queue, service in moves if isinstance(service, QueueService)}
    for first in passed_to:
        path = [first]
        while (queue := passed_to.get(path[-1])) is not None and queue not in path:
            path.append(queue)
        if queue == first:
            through = f" (by way of {', '.join(path[1:])})" if path[1:] else ""
            raise ServiceError(f"the queue {first!r} cannot be forwarded to itself{through}: name another")
