"""A pipeline, from its source to its destinations: its queues, its routes, and its run."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forwarder.forwarder import Forwarder
from forwarder.pipelines.description import Description, Destination, RouteDescription, described, read_toml
from forwarder.pipelines.functions import Function
from forwarder.pipelines.queues import check_left, create_queues, left_queues
from forwarder.pipelines.stages import HookStage, Stage, TranslationStage, Way
from forwarder.round import Route
from forwarder.routes.in_threads import ThreadForwarder
from forwarder.services import ServiceError, parse
from forwarder.summary import Summary
from spool import Space
from spool import open as open_space

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pipeline:
    """Inbound hooks, translation with routes, one queue for each destination, outbound hooks, service.

    ::

        pipeline = forwarder.Pipeline(
            name="adt",
            inbound=["hl7:read_header"],
            routes=[{"name": "lab", "when": {"event": ["admitted"]}, "translate": "hl7:to_json", "to": "lab"}],
            destinations={"lab": {"service": "http://lab.example/adt"}},
        )
        pipeline = forwarder.Pipeline.load("adt.toml")

    The arguments are the options of a TOML file, as in `docs/pipelines.md`. A function is given as a name,
    ``package.module:function``, or as an object.

    Raises:
        ServiceError: the description is wrong. Each line of the text names one mistake, with its place.
    """

    def __init__(
        self,
        *,
        name: str,
        routes: Sequence[Mapping[str, Any]],
        destinations: Mapping[str, Mapping[str, Any]],
        **options: Any,
    ) -> None:
        given = {"name": name, "routes": routes, "destinations": dict(destinations), **options}
        self._describe(given, f"pipeline {name}")

    def _describe(self, given: Mapping[str, Any], where: str) -> None:
        self._where = where
        self.description: Description = described(given, where)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the pipeline of a TOML file. ServiceError if the file cannot be read, or the description is wrong."""
        pipeline = cls.__new__(cls)
        pipeline._describe(read_toml(path), str(path))
        return pipeline

    def create_queues(self, space: Space, *, leave: bool = False) -> dict[str, str]:
        """Create missing queues, and change options that differ from the description.

        Args:
            leave: go on even if messages wait in former queues of the pipeline.

        Returns:
            "created", "changed" or "as it was", by queue.

        Raises:
            MessagesLeft: messages wait in former queues; no queue was created or changed.
        """
        return create_queues(space, self.description, leave=leave)

    def left_queues(self, space: Space) -> dict[str, int]:
        """Return the number of messages in each former queue of the pipeline."""
        return left_queues(space, [self.description])

    def routes(self, *, by_name: bool = True) -> list[Route]:
        """Return the route of each queue, without the queues of stopped destinations.

        Args:
            by_name: whether other processes import the functions, so that each must have a name.

        Raises:
            ServiceError: a function cannot be called, or has no name.
        """
        try:
            return routes_of(self.description, by_name=by_name)
        except ServiceError as error:
            raise ServiceError(f"{self._where}: {error}") from None

    def run(
        self,
        path: str,
        spark: "SparkSession | None" = None,
        *,
        once: bool = False,
        master: str = "local[*]",
        leave: bool = False,
    ) -> Summary:
        """Run the pipeline through Spark, on the space in the directory ``path``.

        Args:
            spark: the session; without it, a session is started on ``master``.
            once: end when no message can be handled now.
            leave: run even if messages wait in former queues of the pipeline.

        Raises:
            MessagesLeft: messages wait in former queues; no message was handled.
            ServiceError, SparkUnavailable: as for ``Forwarder``.
        """
        self._check_left(path, leave)
        return Forwarder(path, self.routes(), spark, master=master).run(once)

    def work(self, path: str, *, once: bool = False, leave: bool = False) -> Summary:
        """Run the pipeline in threads of this process, without Spark. Arguments, result and errors as for ``run``."""
        self._check_left(path, leave)
        return ThreadForwarder(path, self.routes(by_name=False)).run(once)

    def _check_left(self, path: str, leave: bool) -> None:
        if not leave:
            with open_space(path) as space:
                check_left(space, self.description)


# -- the routes of a pipeline ------------------------------------------------------------------------------------------


def routes_of(of: Description, *, by_name: bool) -> list[Route]:
    """Return the routes of a pipeline, as ``Pipeline.routes`` does.

    This function checks the stages; the forwarder checks the services.
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


def _way(of: Description, route: RouteDescription, by_name: bool) -> Way:
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
