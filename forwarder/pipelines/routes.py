"""The routes of the forwarder that make up a pipeline: what is called with the messages of each of its queues."""

from collections.abc import Iterable

from forwarder.pipelines import description
from forwarder.pipelines.description import Description, Destination
from forwarder.pipelines.functions import Function
from forwarder.pipelines.stages import HookStage, Stage, TranslationStage, Way
from forwarder.round import Route
from forwarder.services import parse


def routes_of(of: Description, *, by_name: bool) -> list[Route]:
    """Return the routes of a pipeline; none for the service and hooks of a destination that is stopped.

    Its functions are looked at here, its services by the forwarder.

    Args:
        by_name: its functions are imported by other processes, so each must have a name.

    Raises:
        ServiceError: a function cannot be called, or has no name.
    """
    routes = [_hooks(of, of.source_queue, of.inbound, of.translate_queue, 0, by_name)] if of.inbound else []
    routes.append(_translation(of, by_name))
    for name, destination in of.destinations.items():
        if not destination.stopped:
            routes += _delivery(of, name, destination, by_name)
    for route in routes:
        if isinstance(route.service, Stage):
            route.service.check()
    return routes


def _hooks(of: Description, queue: str, hooks: Iterable[Function], into: str, step: int, by_name: bool) -> Route:
    stage = HookStage(_named(hooks, by_name), into, _last_queues(of), of.timeout)
    return Route(queue, stage, into=(into,), step=step)


def _translation(of: Description, by_name: bool) -> Route:
    ways = tuple(_way(of, route, by_name) for route in of.routes)
    stage = TranslationStage(ways, _last_queues(of), of.failures, of.unrouted, of.retries, of.timeout)
    into = dict.fromkeys([*(queue for way in ways for queue in way.into), of.failures])
    return Route(of.translate_queue, stage, into=tuple(into), step=1)


def _way(of: Description, route: description.RouteDescription, by_name: bool) -> Way:
    when = route.when
    condition = _named([when], by_name)[0] if isinstance(when, Function) else tuple((when or {}).items())
    into = tuple(map(of.first_queue, route.to))
    return Way(route.name, condition, _named(route.translate, by_name), into, route.severity == "route")


def _delivery(of: Description, name: str, destination: Destination, by_name: bool) -> list[Route]:
    first, last = of.first_queue(name), of.last_queue(name)
    service = parse(destination.service, timeout=destination.timeout, threads=destination.threads)
    hooks = [_hooks(of, first, destination.outbound, last, 2, by_name)] if destination.outbound else []
    return [*hooks, Route(last, service, destination.on_failure, step=3)]


def _named(functions: Iterable[Function], by_name: bool) -> tuple[Function, ...]:
    return tuple(function.by_name() if by_name else function for function in functions)


def _last_queues(of: Description) -> tuple[tuple[str, str], ...]:
    return tuple((name, of.last_queue(name)) for name in of.destinations)
