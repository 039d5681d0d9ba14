"""The results of actors: each result is a message with a time to live. Its correlation id is the id of the message that
the actor ran."""

import os
import time
from socket import gethostname
from typing import Any

from dramatiq.results.backend import DEFAULT_TIMEOUT, ResultBackend
from dramatiq.results.errors import ResultMissing, ResultTimeout
from dramatiq.results.result import wrap_exception, wrap_result

import spool
from dramatiq_xaspool.names import short_text, space_path, space_with


class XaspoolResults(ResultBackend):
    """A result backend, for the middleware Results of Dramatiq.

    Args:
        path: the directory of the space, e.g. the broker's. The first use creates a missing space.
        options: the options of each result backend of Dramatiq: ``namespace``, the name of the queue that keeps the
            results (default "dramatiq-results"); and ``encoder`` (default: Dramatiq's global encoder).
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = space_path(path)

    def build_message_key(self, message: Any) -> str:
        """Return the id of a message, as a correlation id."""
        return short_text(message.message_id)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """As in every backend; ``block`` waits until the result is durable. The result remains until its time to live
        ends."""
        seconds = (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000 if block else 0
        found = self._space().find(self.namespace, correlation_id=self.build_message_key(message), timeout=seconds)
        if found is None:
            raise ResultTimeout(message) if block else ResultMissing(message)
        return self.unwrap_result(self.encoder.decode(found.body))  # type: ignore[no-untyped-call]

    def store_result(self, message: Any, result: Any, ttl: int) -> None:
        """Store a result for ``ttl`` milliseconds. It replaces the result of an earlier run of the message."""
        self._store(self.build_message_key(message), wrap_result(result), ttl, _headers(message, "SUCCESS"))

    def store_exception(self, message: Any, exception: BaseException, ttl: int) -> None:
        """Store the exception of a failed message, as ``store_result`` a result."""
        self._store(self.build_message_key(message), wrap_exception(exception), ttl, _headers(message, "FAILURE"))

    def _store(self, message_key: str, result: Any, ttl: int, headers: dict[str, str] | None = None) -> None:
        self._space().replace(
            self.namespace, self.encoder.encode(result), correlation_id=message_key, time_to_live=ttl / 1000,
            headers=headers,
        )  # fmt: skip

    def _space(self) -> spool.Space:
        return space_with(self.path, self.namespace)


def _headers(message: Any, state: str) -> dict[str, str]:
    """Return the headers of a result, which the tools of administrators show."""
    headers = {"task": short_text(message.actor_name), "state": state, "worker": f"{gethostname()}:{os.getpid()}"}
    if (begun := getattr(message, "begun", None)) is not None:
        headers["runtime"] = f"{time.monotonic() - begun:.3f}"
    return headers
