"""A pipeline: what is called with its messages, queue by queue, from its source to its destinations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forwarder.forwarder import Forwarder
from forwarder.pipelines.former import check_left, left_queues
from forwarder.round import Route
from forwarder.routes.in_threads import ThreadForwarder
from forwarder.services import ServiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forwarder.pipelines.description import Description
    from forwarder.summary import Summary
    from spool import Space


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

    The arguments are the options that a TOML file has; `docs/pipelines.md` tells each. A function is named, as
    ``package.module:function``, or given as it is.

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
        from forwarder.pipelines.description import described  # only a program with a pipeline needs it

        self._where = where
        self.description: Description = described(given, where)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the pipeline that a TOML file describes. ServiceError as for a new one, or if it cannot be read."""
        from forwarder.pipelines.description import read_toml

        pipeline = cls.__new__(cls)
        pipeline._describe(read_toml(path), str(path))
        return pipeline

    def create_queues(self, space: "Space", *, leave: bool = False) -> dict[str, str]:
        """Make the queues that are missing, and change options that differ from the description.

        Args:
            leave: also if messages wait in queues that the pipeline had before and has no more.

        Returns:
            By queue, what was done: "created", "changed", or "as it was".

        Raises:
            MessagesLeft: messages wait in such queues; nothing was done.
        """
        from forwarder.pipelines.queues import create_queues

        return create_queues(space, self.description, leave=leave)

    def left_queues(self, space: "Space") -> dict[str, int]:
        """Return the queues that the pipeline had before and has no more, and how many messages wait in each."""
        return left_queues(space, [self.description])

    def routes(self, *, by_name: bool = True) -> list[Route]:
        """Return what is called with the messages of each queue; nothing for a destination that is stopped.

        Args:
            by_name: its functions are imported by other processes, so each must have a name.

        Raises:
            ServiceError: a function cannot be called, or has no name.
        """
        from forwarder.pipelines.routes import routes_of

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
    ) -> "Summary":
        """Run the pipeline through Spark, on the space in the directory ``path``, and return what was done.

        Args:
            spark: the session to use; without it, one is started on ``master``.
            once: end when each message that can be handled now has gone as far as it gets.
            leave: run also if messages wait in queues that the pipeline had before and has no more.

        Raises:
            MessagesLeft: messages wait in such queues; nothing was done.
            ServiceError, SparkUnavailable: as ``Forwarder``.
        """
        self._check_left(path, leave)
        return Forwarder(path, self.routes(), spark, master=master).run(once)

    def work(self, path: str, *, once: bool = False, leave: bool = False) -> "Summary":
        """Run the pipeline in threads of this process, without Spark. Arguments, result and errors as of ``run``."""
        self._check_left(path, leave)
        return ThreadForwarder(path, self.routes(by_name=False)).run(once)

    def _check_left(self, path: str, leave: bool) -> None:
        from spool import open as open_space

        if not leave:
            with open_space(path) as space:
                check_left(space, self.description)
