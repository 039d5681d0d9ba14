"""The workers of a cluster: each worker has to run on the machine of the space, see the space, and reach the services.

The driver checks the workers before it claims a message. A worker that joins later checks itself when a task begins.
``RemoteBranch`` checks that the worker sees the space on the same machine. ``task.run`` checks the version of xaspool.
If a check fails, the round ends without an outcome for any message. A service that the worker cannot open counts as
unreachable.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import spool
from forwarder.services import Service, ServiceError
from forwarder.session import SparkUnavailable, reason_of
from spool.engine.tasks import check_place, identity_of
from spool.errors import SpoolError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120.0
"""The seconds within which a cluster has to start a worker."""

_LOOK_SECONDS, _SAY_SECONDS = 0.2, 5.0


def check_workers(
    spark: "SparkSession", path: str, services: Sequence[Service], say: Callable[[str], None] = lambda text: None
) -> None:
    """Wait for the workers of a cluster, and let each worker check the space and the services.

    Args:
        path: the directory of the space. This process has the space open.
        say: called with a short text while this process waits for the cluster.

    Raises:
        SparkUnavailable: the cluster starts no worker, or a worker cannot work for this space.
    """
    context, path = spark.sparkContext, os.path.abspath(path)
    wait_for_workers(context, say)
    count = context.defaultParallelism
    look = partial(defects, path, identity_of(path), spool.__version__, tuple(services))
    try:
        found = set(context.parallelize(range(count), count).flatMap(look).collect())
    except Exception as error:  # the bridge to Java raises exceptions of many kinds
        raise SparkUnavailable(
            f"Spark's Python workers do not start: {reason_of(error)}; each needs Python and xaspool as "
            "they are here (spool-admin docs scaling)"
        ) from None
    if found:
        raise SparkUnavailable(f"a worker cannot work for this space: {min(found)}")


def wait_for_workers(context: "SparkContext", say: Callable[[str], None], seconds: float = WAIT_SECONDS) -> None:
    """Wait until the cluster has started a worker for this program.

    Raises:
        SparkUnavailable: no worker was started within the time, or the cluster has ended.
    """
    begun = time.monotonic()
    said = False
    while not has_workers(context):
        waited = time.monotonic() - begun
        if waited > seconds:
            memory, master = context.getConf().get("spark.executor.memory", "1g"), context.master
            raise SparkUnavailable(
                f"{master} has started no worker within {seconds:g} s: its machines need a free core and {memory} of "
                "memory (--conf spark.executor.memory=…), and have to reach this one by its name"
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


def defects(
    path: str, identity: tuple[int, int] | None, version: str, services: Sequence[Service], _: object = None
) -> list[str]:
    """Return why this worker process cannot work for the driver. Each reason names the machine."""
    try:
        if identity_of(path) != identity:
            raise ServiceError(
                f"another directory is at {path} there: a worker has to run on the machine of the space, and to "
                "see it at the same path (spool-admin docs scaling)"
            )
        check_place(path)
        if spool.__version__ != version:
            raise ServiceError(f"xaspool is {spool.__version__} there, and {version} here: install the same")
        for service in services:
            service.check()
    except (SpoolError, OSError, ServiceError) as error:
        return [f"on {socket.gethostname()}: {error}"]
    return []
