"""The services to which queues are forwarded, each named by a URL."""

from forwarder.services import file, http, kafka, queue_service
from forwarder.services.exec import ExecService
from forwarder.services.file import FileService
from forwarder.services.http import HttpService
from forwarder.services.kafka import KafkaService
from forwarder.services.python import PythonService
from forwarder.services.queue_service import OtherSpaceService, QueueService
from forwarder.services.service import MAX_REPLY, Caller, MissingQueue, Request, Service, ServiceError, check_sendable

__all__ = [
    "MAX_REPLY", "TIMEOUT_SECONDS", "Caller", "MissingQueue", "OtherSpaceService", "PythonService", "QueueService",
    "Request", "Service", "ServiceError", "check_sendable", "named_as", "parse",
]  # fmt: skip

TIMEOUT_SECONDS = 30.0
"""The default time limit of a call."""


def parse(url: str, *, timeout: float = TIMEOUT_SECONDS, threads: int | None = None) -> Service:
    """Return the service that `url` names, unchecked.

    Args:
        timeout: the time limit of a call in seconds.
        threads: the largest number of concurrent calls in each task; None means the default. Some kinds of services
            allow no concurrent calls.

    Raises:
        ServiceError: no kind of service has URLs of this form.
    """
    scheme, colon, rest = url.partition(":")
    match scheme.lower() if colon else None:
        case "python":
            return PythonService(rest, timeout)
        case "http" | "https":
            return HttpService(url, timeout, threads or http.THREADS)
        case "exec":
            return ExecService(rest, timeout, threads or 1)
        case "file":
            return FileService(rest, threads or file.THREADS)
        case "kafka":
            return KafkaService(rest, timeout, threads or kafka.THREADS)
        case "queue":
            queue, at, path = rest.partition("@")
            return OtherSpaceService(queue, path, threads or queue_service.THREADS) if at else QueueService(rest)
    raise ServiceError(
        f"{url!r} names no service: it begins with python: (python:package.module:function), http://, https://, "
        "exec: (exec:command argument), file: (file:directory), kafka: (kafka://host:port/topic) "
        "or queue: (queue:name, or queue:name@/path/of/a/space)"
    )


def named_as(queue: str, services: str) -> str:
    """Return the URL of the service that has the same name as the queue.

    Args:
        services: the module of the functions (`python:package.module`), a URL, a directory, or the brokers of Kafka.
            The queue's name becomes the name of the function, or the last part of the path.
    """
    if services.startswith("python:"):
        return f"{services}{'.' if ':' in services[len('python:') :] else ':'}{queue}"
    return f"{services.rstrip('/')}/{queue}"
