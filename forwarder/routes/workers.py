"""Check the workers of a cluster: each worker has to see the space, or reach the endpoint, and to reach the services.

A worker sees the space if it runs on the machine of the space and finds the space at the same path. The driver checks
the workers before it claims a message. A worker that joins later checks itself when a task begins. ``RemoteBranch``
checks that the worker sees the space on the same machine. ``task.run`` checks the version of xaspool. If a check fails,
the round ends without an outcome for any message. A service that the worker cannot open counts as unreachable.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import spool
from forwarder.network.space_directory import Place
from forwarder.services import Service, ServiceError
from forwarder.session import SparkUnavailable, reason_of
from spool.engine.remote import boot_id, check_place
from spool.errors import SpoolError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from spool.client.connection import HttpConnection

WAIT_SECONDS = 120.0
"""The seconds within which a cluster has to start a worker."""

_GIVE_ENDPOINT = (
    "give the forwarder --listen HOST:PORT, so that workers which do not see the space get messages over the network "
    "(spool-admin docs scaling)"
)
_LOOK_SECONDS, _SAY_SECONDS = 0.2, 5.0


class Look(NamedTuple):
    """The result of a worker's check. ``over_network``: whether the worker needs the endpoint.

    defects: the reasons why the worker cannot work for the driver. Each reason names the machine.
    """

    host: str
    over_network: bool
    defects: tuple[str, ...] = ()


def check_workers(
    spark: "SparkSession",
    path: str,
    services: Sequence[Service],
    say: Callable[[str], None] = lambda text: None,
    connection: "HttpConnection | None" = None,
) -> None:
    """Wait for the workers of a cluster, and let each worker check the space and the services.

    Args:
        path: the directory of the space. This process has the space open.
        say: called with a short text during a wait for the cluster, and for each machine that does not see the space.
        connection: a connection to the forwarder's endpoint; None without an endpoint.

    Raises:
        SparkUnavailable: the cluster starts no worker, or a worker cannot work for this space.
    """
    context, path = spark.sparkContext, os.path.abspath(path)
    wait_for_workers(context, say)
    count = context.defaultParallelism
    looks = partial(look, Place.of(path), spool.__version__, tuple(services), connection)
    try:
        found = set(context.parallelize(range(count), count).map(looks).collect())
    except Exception as error:  # the bridge to Java raises exceptions of many kinds
        raise SparkUnavailable(
            f"Spark's Python workers do not start: {reason_of(error)}; each needs Python and xaspool as "
            "they are here (spool-admin docs scaling)"
        ) from None
    if defects := {text for one in found for text in one.defects}:
        raise SparkUnavailable(f"a worker cannot work for this space: {min(defects)}")
    for one in sorted(found):
        if one.over_network:
            say(f"the worker on {one.host} does not see the space: it gets messages over the network")


def wait_for_workers(context: "SparkContext", say: Callable[[str], None]) -> None:
    """Wait until the cluster has started a worker for this program.

    Raises:
        SparkUnavailable: no worker was started within the time, or the cluster has ended.
    """
    begun = time.monotonic()
    said = False
    while not has_workers(context):
        waited = time.monotonic() - begun
        if waited > WAIT_SECONDS:
            memory, master = context.getConf().get("spark.executor.memory", "1g"), context.master
            raise SparkUnavailable(
                f"{master} has started no worker within {WAIT_SECONDS:g} s: its machines need a free core and {memory} "
                "of memory (--conf spark.executor.memory=…), and have to reach this one by its name"
            )
        if waited > _SAY_SECONDS and not said:
            said = True
            say(f"waiting for workers of {context.master}")
        time.sleep(_LOOK_SECONDS)


def has_workers(context: "SparkContext") -> bool:
    """Return whether any executor is running, apart from the driver's own executor."""
    try:
        java: Any = context._jsc.sc()
        if not java.isStopped():
            return len(java.statusTracker().getExecutorInfos()) > 1
    except Exception:  # the bridge to Java raises exceptions of many kinds
        pass
    raise SparkUnavailable(f"{context.master} has ended this program's work: look into the log of its master")


def look(
    place: Place, version: str, services: Sequence[Service], connection: "HttpConnection | None", _: object = None
) -> Look:
    """Check whether this worker process can work for the driver, and whether it needs the endpoint."""
    host, is_seen = socket.gethostname(), False
    try:
        if spool.__version__ != version:
            raise ServiceError(f"xaspool is {spool.__version__} there, and {version} here: install the same")
        if is_seen := place.is_seen():
            check_place(place.path)
        elif connection is not None:
            from forwarder.network.server_calls import act  # (a forwarder without Spark needs no Arrow)

            act(connection, "now")
        elif boot_id() != place.boot_id:
            raise ServiceError(f"{place.path} is open on another machine: {_GIVE_ENDPOINT}")
        else:
            raise ServiceError(f"another directory is at {place.path} there, or none: {_GIVE_ENDPOINT}")
        for service in services:
            service.check()
    except (SpoolError, OSError, ServiceError) as error:
        return Look(host, not is_seen, (f"on {host}: {error}",))
    return Look(host, not is_seen)
