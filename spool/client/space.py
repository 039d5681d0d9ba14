"""A space of a server, by HTTP: puts, gets, claims, workers and looks, as in a space of this machine."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from spool.admin.stats import QueueStats
from spool.client.claims import RemoteClaims
from spool.client.connection import CALL_SECONDS, HttpConnection
from spool.client.fields import (
    MOST_JSON_BYTES,
    NDJSON,
    Lines,
    check_bytes,
    fields_of_put,
    headers_of_put,
    json_bytes,
    put_object,
)
from spool.client.problems import NotByHTTP
from spool.client.work import RemoteAttempt, RemoteAttempts, current_attempt
from spool.errors import BadMessageId, CommitUnknown, InvalidArgument, NotOpen, ProtocolError, SpoolError
from spool.index.browse import Filter
from spool.model.checks import body_list, check_timeout
from spool.model.message import Message, MessageId
from spool.model.objects import message_of
from spool.model.options import JOIN, GetOptions, Join, MessageFilters, PutOptions
from spool.model.settings import QueueConfig, check_queue_name
from spool.model.text import shown
from spool.policies.deduplication import check_single
from spool.runtime.closing import Closing
from spool.runtime.pickling import refuse_pickling
from spool.transactions.claiming import check_wanted
from spool.transactions.request_reply import IN_TRANSACTION

if TYPE_CHECKING:
    from spool.workers.handler import Handler
    from spool.workers.worker_run import WorkSummary

_REPEATS_SECONDS = 60.0
_MOST_REPLY_SECONDS = 43_200.0


def connect(
    address: str,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    certificate_file: str | os.PathLike[str] | None = None,
) -> "RemoteSpace":
    """Return a space of a server (``spool-serve``). The calls connect when they need to.

    Args:
        address: ``https://HOST:PORT/NAME``, or ``http://…`` without encryption.
        token: the client's token; by default that of the environment variable XASPOOL_TOKEN, if it is set.
        token_file: a file with the token.
        certificate_file: a file with the certificate of the server's authority, as PEM; by default, the authorities of
            the system count.

    Raises:
        InvalidArgument: the address is none, a file cannot be read, or httpx is not installed (the extra ``[http]``).
    """
    files = (None if name is None else os.fspath(name) for name in (token_file, certificate_file))
    return RemoteSpace(HttpConnection.of(address, token, *files))


class RemoteSpace(Closing):
    """A space of a server: see ``connect``. Many threads may use it, and forked children, too.

    Each call has the arguments, the result and the errors of the same call of ``spool.Space``. Besides, each call may
    raise SystemFailure: the server was not reached, and nothing has happened; and AccessDenied: the token does not give
    the right to the call.

    If the answer to a put is lost, the put may have happened, or not: the call raises CommitUnknown. With a
    ``deduplication_key`` the call repeats itself instead, for up to a minute; if the first try has happened, the
    ``duplicate`` of the returned id is True. A get acknowledges its message before it returns, and repeats that, too.
    So no message is lost, and only if the server dies during the call may another client get the same message.
    """

    __reduce_ex__ = refuse_pickling

    def __init__(self, connection: HttpConnection) -> None:
        """Applications call ``connect`` instead."""
        self._connection, self._closed = connection, False

    # -- puts ---------------------------------------------------------------------------------------------------------

    def put(self, queue: str, body: Any, *, transaction: Join | None = JOIN, **options: Unpack[PutOptions]) -> str:
        """As ``spool.Space.put``. The body has at most 64 MiB.

        Inside a worker's function the put joins the commit of the message, and the server checks it in the commit. If
        the put is refused, or the function fails, no message gets the returned id.
        """
        if (ids := self._joined(queue, [body], transaction, options)) is not None:
            return ids[0]
        found = self._sent(queue, "messages", body, options, _REPEATS_SECONDS if _key(options) else 0.0).json()
        return found["id"] if "duplicate" not in found else MessageId(found["id"], found["duplicate"])

    def put_many(
        self, queue: str, bodies: Iterable[Any], *, transaction: Join | None = JOIN, **options: Unpack[PutOptions]
    ) -> list[str]:
        """As ``spool.Space.put_many``. The bodies have at most 64 MiB together, and are at most 65,536."""
        listed = body_list(bodies)
        if (ids := self._joined(queue, listed, transaction, options)) is not None:
            return ids
        if _key(options) is not None:
            check_single(len(listed))
            return [self.put(queue, listed[0], transaction=None, **options)]
        puts = [fields_of_put(body, options) for body in listed]
        check_bytes(sum(len(raw) for raw, _ in puts))
        content = b"\n".join(json_bytes(put_object(*each)) for each in puts)
        check_bytes(len(content), MOST_JSON_BYTES)
        path, headers = ("queues", queue, "messages"), {"Content-Type": NDJSON}
        found: list[str] = self._connection.repeated("POST", *path, content=content, headers=headers).json()["ids"]
        return found

    def _joined(self, queue: str, bodies: list[Any], transaction: Join | None, options: PutOptions) -> list[str] | None:
        """Add the puts to the commit of a worker's message, and return their ids; None if they do not join one."""
        attempt = self._check(queue, transaction)
        return None if attempt is None else attempt.join(queue, bodies, options)

    def _sent(self, queue: str, call: str, body: Any, options: PutOptions, seconds: float, **given: Any) -> Any:
        """Send the put of one message."""
        raw, attributes = fields_of_put(body, options)
        check_bytes(len(raw))
        headers = [*headers_of_put({**attributes, "deduplication_key": _key(options)}), ("Accept", NDJSON)]
        path = "queues", queue, call
        return self._connection.repeated("POST", *path, content=raw, headers=headers, seconds=seconds, **given)

    # -- gets ---------------------------------------------------------------------------------------------------------

    def get(self, queue: str, *, transaction: Join | None = JOIN, **options: Unpack[GetOptions]) -> Message:
        """As ``spool.Space.get``. A message that another client holds is not found: the call raises Empty.

        Raises CommitUnknown if an answer was lost, and the call cannot look whether the message is there: e.g. the
        token has no right to look, or the server is not reached.
        """
        return self.get_many(queue, 1, transaction=transaction, **options)[0]

    def get_many(
        self, queue: str, max_messages: int, *, transaction: Join | None = JOIN, **options: Unpack[GetOptions]
    ) -> list[Message]:
        """As ``spool.Space.get_many``; at most 1,000 messages."""
        if self._check(queue, transaction) is not None:
            raise NotByHTTP(
                "by HTTP, only the puts of a worker's function join the commit of its message: give transaction=None "
                "for a get by itself"
            )
        wanted = check_wanted(queue, max_messages, **options)
        with RemoteClaims(self._connection, renews=False) as claims:
            while True:
                found = claims.wait(wanted)
                try:
                    claims.end("commit", found)
                except BadMessageId:
                    continue  # the server has started again: the messages are in their queue
                except CommitUnknown as error:
                    if self._are_there(found, error):
                        continue
                return found

    def _are_there(self, messages: list[Message], error: CommitUnknown) -> bool:
        """Return whether the messages are still in their queue. Raises the error if nobody knows."""
        try:
            return any(self.browse(messages[0].queue, message_id=[message.id for message in messages]))
        except SpoolError:
            raise error from None

    def claims(self) -> RemoteClaims:
        """As ``spool.Space.claims``: see ``spool.client.claims.RemoteClaims``."""
        self._check_open()
        return RemoteClaims(self._connection)

    def work(
        self,
        queue: str,
        function: "Callable[[Message], Any] | Handler",
        *,
        threads: int = 1,
        once: bool = False,
        timeout: float | None = 30.0,
        stop: threading.Event | None = None,
        pause_after: int = 10,
    ) -> "WorkSummary":
        """As ``spool.Space.work``: the reply, the function's puts, and the removal of the message are one commit.

        The function's gets do not join the commit: they need ``transaction=None``. A put of the function is checked by
        the server in the commit; if it is refused, the attempt has failed. While the server cannot be reached, the
        worker pauses. With ``once``, the token needs the right to look.
        """
        from spool.workers.worker import Worker

        return Worker(
            self, queue, function, threads=threads, once=once, timeout=timeout, stop=stop, pause_after=pause_after
        ).run()

    def _attempts(self) -> RemoteAttempts:
        return RemoteAttempts(self.claims())

    def request(self, queue: str, body: Any, *, timeout: float | None = 30.0, **options: Unpack[PutOptions]) -> Message:
        """As ``spool.Space.request``. ``timeout``: at most 12 hours, also for None.

        If the answer is lost, the call raises CommitUnknown, and a reply that the server had already taken is lost.
        Where that must not happen, put the request, and get its reply by its correlation id.
        """
        if self._check(queue, JOIN) is not None:
            raise ProtocolError(IN_TRANSACTION)
        check_timeout(timeout, "a number of seconds, or None to wait for ever")
        seconds = _MOST_REPLY_SECONDS if timeout is None else min(timeout, _MOST_REPLY_SECONDS)
        given = {"params": {"timeout": seconds}, "timeout": seconds + CALL_SECONDS}
        found = self._sent(queue, "request", body, options, 0.0, **given)
        return message_of(json.loads(found.content), undecoded=True)

    # -- looks --------------------------------------------------------------------------------------------------------

    def browse(self, queue: str, **filters: Unpack[MessageFilters]) -> Iterator[Message]:
        """As ``spool.Space.browse``. The iterator has a connection until its end."""
        self._check(queue, None)
        Filter.of(filters)  # (raises the errors about filters)
        found = self._browsed(queue, filters)
        next(found)  # (so that an error is raised now)
        return found

    def _browsed(self, queue: str, filters: MessageFilters) -> Iterator[Any]:
        given = {"filters": json.dumps(filters, default=_plain)}
        with self._connection.calling(
            "GET", "queues", queue, "messages", params=given, headers={"Accept": NDJSON}
        ) as found:
            yield None
            lines = Lines()
            for chunk in found.iter_bytes():
                for line in lines.ended_by(chunk):
                    yield message_of(json.loads(line), undecoded=True)

    @overload
    def stats(self) -> dict[str, QueueStats]: ...
    @overload
    def stats(self, queue: str) -> QueueStats: ...
    def stats(self, queue: str | None = None) -> dict[str, QueueStats] | QueueStats:
        """As ``spool.Space.stats``."""
        if queue is None:
            return {each["name"]: _made(QueueStats, each) for each in self._queues()}
        self._check(queue, None)
        found: QueueStats = _made(QueueStats, self._connection.call("GET", "queues", queue).json())
        return found

    def queues(self) -> dict[str, QueueConfig]:
        """As ``spool.Space.queues``."""
        return {each["name"]: _made(QueueConfig, each) for each in self._queues()}

    def _queues(self) -> list[dict[str, Any]]:
        self._check_open()
        found: list[dict[str, Any]] = self._connection.call("GET", "queues").json()["queues"]
        return found

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse further calls. Claims are closed separately."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise NotOpen("the space was closed: connect again")

    def _check(self, queue: str, transaction: Join | None) -> RemoteAttempt | None:
        """Check the first arguments of a call; return the attempt that the call joins, if it is inside a function."""
        self._check_open()
        check_queue_name(queue)
        if transaction not in (JOIN, None):
            raise InvalidArgument(
                f"for a space by HTTP, transaction is JOIN or None, not {shown(transaction)}: claims().commit "
                "acknowledges messages and puts others in one commit"
            )
        return None if transaction is None else current_attempt(self)

    def __getattr__(self, name: str) -> NoReturn:
        raise NotByHTTP(
            f"a space by HTTP has no {name}: claims().commit(messages, puts) acknowledges messages and puts others in "
            "one commit; for the rest, open the directory of the space on its machine"
        )

    def __repr__(self) -> str:
        return f"<queue space {self._connection.server}/{self._connection.space}{' (closed)' if self._closed else ''}>"


def _key(options: PutOptions) -> str | None:
    return options.get("deduplication_key")


def _plain(value: Any) -> Any:
    return value.timestamp() if hasattr(value, "timestamp") else dict(value) if hasattr(value, "keys") else list(value)


def _made(kind: Any, found: dict[str, Any]) -> Any:
    given = ((field.name, found[field.name]) for field in fields(kind) if field.name in found)
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given})
