"""A pipeline from its source to its destinations: create its queues, get its routes, and run it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forwarder.forwarder import Forwarder
from forwarder.pipelines.description import Description, Destination, described, read_toml
from forwarder.pipelines.pipeline_functions import Function
from forwarder.pipelines.stages import PipelineStage, Way
from forwarder.result import Summary
from forwarder.round import Route
from forwarder.routes.in_threads import ThreadForwarder
from forwarder.services import ServiceError, parse
from spool import Space
from spool import open as open_space

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MessagesLeft(ServiceError):
    """Messages wait in former queues of a changed pipeline. No route serves these queues now.

    queues: the number of waiting messages in each queue.
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


class Pipeline:
    """A chain of inbound hooks, translation with routes, a queue for each destination, outbound hooks, and services.

    ::

        pipeline = forwarder.Pipeline(
            name="adt",
            inbound=["hl7:read_header"],
            routes=[{"name": "lab", "when": {"event": ["admitted"]}, "translate": "hl7:to_json", "to": "lab"}],
            destinations={"lab": {"service": "http://lab.example/adt"}},
        )
        pipeline = forwarder.Pipeline.load("adt.toml")

    The arguments are the same options as in a TOML file (see `docs/pipelines.md`). A function is given as a name,
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
        given = {"name": name, "routes": routes, "destinations": destinations, **options}
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
            For each queue, "created", "changed" or "as it was".

        Raises:
            MessagesLeft: messages wait in former queues; no queue was created or changed.
        """
        if not leave and (left := self.left_queues(space)):
            raise MessagesLeft(left)
        done, there = {}, space.queues()
        for name, options in _queue_options(self.description).items():
            if name not in there:
                space.create_queue(name, **options)
                done[name] = "created"
            elif changes := {option: one for option, one in options.items() if getattr(there[name], option) != one}:
                space.change_queue(name, **changes)
                done[name] = "changed"
            else:
                done[name] = "as it was"
        return done

    def left_queues(self, space: Space) -> dict[str, int]:
        """Return the number of messages in each former queue of the pipeline."""
        return left_queues(space, [self.description])

    def routes(self, *, by_name: bool = True) -> list[Route]:
        """Return the route of each queue, without the queues of stopped destinations.

        Args:
            by_name: whether other processes import the functions; each function then needs a name.

        Raises:
            ServiceError: a function cannot be called, or has no name.
        """
        try:
            routes = list(_routes(self.description))
            stages = [route.service for route in routes if isinstance(route.service, PipelineStage)]
            for function in (function for stage in stages for function in stage.functions):
                function.load()
                if by_name:
                    function.check_name()
        except ServiceError as error:
            raise ServiceError(f"{self._where}: {error}") from None
        return routes

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
            ServiceError, SparkUnavailable: the same errors as in ``Forwarder``.
        """
        self._check_left(path, leave)
        return Forwarder(path, self.routes(), spark, master=master).run(once)

    def work(self, path: str, *, once: bool = False, leave: bool = False) -> Summary:
        """Run the pipeline in threads of this process, without Spark. ``run`` describes the arguments and errors."""
        self._check_left(path, leave)
        return ThreadForwarder(path, self.routes(by_name=False)).run(once)

    def _check_left(self, path: str, leave: bool) -> None:
        if not leave:
            with open_space(path) as space:
                if left := self.left_queues(space):
                    raise MessagesLeft(left)


# -- the queues of a pipeline -----------------------------------------------------------------------------------------


_RETRYING = ("retries", "retry_delay", "retry_delay_max")
_LIMITS = ("max_messages", "max_bytes")


def _options(of: Description | Destination, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _queue_options(description: Description) -> dict[str, dict[str, Any]]:
    """Return the options of each queue by the queue's name. A queue follows the queues that its options name."""
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


# -- the routes of a pipeline ------------------------------------------------------------------------------------------


def _routes(of: Description) -> Iterator[Route]:
    """Yield the route of each queue. The services are not checked here, because the forwarder checks them."""
    ends = tuple((name, of.last_queue(name)) for name in of.destinations)

    def hooks(queue: str, functions: tuple[Function, ...], into: str, step: int) -> Route:
        stage = PipelineStage((Way("", (), functions, (into,)),), ends, of.timeout)
        return Route(queue, stage, into=(into,), step=step, pause_after=0)

    if of.inbound:
        yield hooks(of.source_queue, of.inbound, of.translate_queue, 0)
    ways = tuple(
        Way(route.name, route.when, route.translate, tuple(map(of.first_queue, route.to)), route.severity == "route")
        for route in of.routes
    )
    into = dict.fromkeys([*(queue for way in ways for queue in way.into), of.failures])
    translation = PipelineStage(ways, ends, of.timeout, of.failures, of.unrouted, of.retries)
    yield Route(of.translate_queue, translation, into=tuple(into), step=1, pause_after=0)
    for name, destination in of.destinations.items():
        if destination.stopped:
            continue
        first, last = of.first_queue(name), of.last_queue(name)
        if destination.outbound:
            yield hooks(first, destination.outbound, last, 2)
        service = parse(destination.service, timeout=destination.timeout, threads=destination.threads)
        yield Route(last, service, destination.on_failure, step=3, pause_after=destination.pause_after)
