"""The results of actors: each result is a message with a time to live, and its key is the correlation id."""

import os
from typing import Any

from dramatiq.results.backend import DEFAULT_TIMEOUT, ResultBackend
from dramatiq.results.errors import ResultMissing, ResultTimeout

import spool


class XaspoolResults(ResultBackend):
    """A result backend, for the middleware Results of Dramatiq.

    Args:
        path: the directory of the space, e.g. the broker's. The first use creates a missing space.
        options: the options of each result backend of Dramatiq: ``namespace``, the name of the queue that keeps the
            results (default "dramatiq-results"); and ``encoder`` (default: Dramatiq's global encoder).
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = os.path.abspath(path)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """As in every backend; ``block`` waits until the result is durable. The result remains until its time to live
        ends."""
        seconds = (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000 if block else 0
        found = self._space().find(self.namespace, correlation_id=self.build_message_key(message), timeout=seconds)
        if found is None:
            raise ResultTimeout(message) if block else ResultMissing(message)
        return self.unwrap_result(self.encoder.decode(found.body))  # type: ignore[no-untyped-call]

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        """Store a result for ``ttl`` milliseconds. It replaces the result of an earlier run of the message."""
        body = self.encoder.encode(result)
        self._space().replace(self.namespace, body, correlation_id=message_key, time_to_live=ttl / 1000)

    def _space(self) -> spool.Space:
        space = spool.shared(self.path)
        space.ensure_queue(self.namespace, role="state", on_expiry="drop")
        return space
