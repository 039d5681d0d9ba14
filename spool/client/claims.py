"""Messages of a space by HTTP that a program holds: the server gives a lease of a minute for each, and a thread renews
the leases. If the program dies, or cannot reach the server for a minute, the leases end."""

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from spool.client.connection import CALL_SECONDS, Connection
from spool.client.fields import MOST_JSON_BYTES, NDJSON, check_bytes, fields_of_put, json_bytes, put_object
from spool.errors import BadMessageId, CommitUnknown, ProtocolError, SpoolError
from spool.model.message import Message
from spool.model.objects import message_of
from spool.transactions.claiming import Wanted, check_wanted, no_message
from spool.transactions.held_messages import HeldMessages

LEASE_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 20.0
"""The longest wait of one call for messages."""
_RENEWAL_SECONDS = LEASE_SECONDS / 3
_MOST_AT_ONCE = 1000


class RemoteClaims(HeldMessages):
    """As ``spool.Claims``, for a space by HTTP: see ``spool.connect``. ``remove``, ``reject`` and ``release`` make a
    commit for each process of the server that holds some of the messages, and ``release`` passes over ended leases.

    The server holds each message for a minute at a time, until the message is ended, or ``close`` releases it. While
    this object exists, a thread renews the leases. If the program dies, or the server cannot be reached for a minute,
    the leases end, and an attempt is counted for each message; the calls then raise BadMessageId. The same holds if the
    server dies. ``fail``, ``reject``, ``remove`` and ``commit`` repeat their calls until the server has answered.

    Raises CommitUnknown (from the futures) if the server died, or was not reached for a minute, before it had answered:
    the effect may have happened, or not. In both cases, the message is no longer held. The puts of one ``commit`` have
    at most 64 MiB.
    """

    def __init__(self, connection: Connection, *, renews: bool = True) -> None:
        self._connection, self._renews = connection, renews
        self._held: dict[str, str] = {}  # the receipts by message id
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._calls = ThreadPoolExecutor(8, "spool-claims")
        self._process = os.getpid()

    def take(
        self,
        queue: str,
        max_messages: int = 1,
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
        undecoded: bool = False,
    ) -> list[Message]:
        """As ``spool.Claims.take``; at most 1,000 messages. From now on, the end of the lease counts an attempt."""
        wanted = check_wanted(queue, max_messages, message_id=message_id, correlation_id=correlation_id)
        return self.decoded(self.claim(wanted, 0.0), undecoded=undecoded)

    def wait(self, wanted: Wanted) -> list[Message]:
        """Take messages, and wait for the first up to ``wanted.timeout`` seconds. Raises Empty."""
        until = time.monotonic() + (float("inf") if wanted.timeout is None else wanted.timeout)
        while True:
            left = until - time.monotonic()
            if found := self.claim(wanted, max(0.0, min(left, WAIT_SECONDS))):
                return self.decoded(found)
            if left <= WAIT_SECONDS:
                raise no_message(wanted)

    def claim(self, wanted: Wanted, wait: float) -> list[dict[str, Any]]:
        """Claim messages, and wait for the first up to ``wait`` seconds; return their ``message_object``."""
        self._check_open()
        given: dict[str, Any] = {"message_id": wanted.message_id, "correlation_id": wanted.correlation_id}
        given |= {"max": min(wanted.count, _MOST_AT_ONCE), "wait": wait, "lease": LEASE_SECONDS, "value": 0}
        found = self._connection.call(
            "POST",
            "queues",
            wanted.queue,
            "claims",
            headers={"Accept": NDJSON},
            timeout=wait + CALL_SECONDS,
            params={name: value for name, value in given.items() if value is not None},
        )
        messages = [json.loads(line) for line in found.content.splitlines()]
        with self._mutex:
            self._held.update((each["id"], each["receipt"]) for each in messages)
            starts, self._renews = self._renews, False
        if starts:
            arguments = weakref.ref(self), self._ended
            threading.Thread(target=_renew, args=arguments, name="spool-claims-renewal", daemon=True).start()
        if self._closed:
            self._release_all()
        return messages

    def decoded(self, found: list[dict[str, Any]], *, undecoded: bool = False) -> list[Message]:
        """Return claimed messages. If a body cannot be decoded, release all of them."""
        try:
            return [message_of(each, undecoded=undecoded) for each in found]
        except BaseException:
            self._give_back([each["id"] for each in found])
            raise

    def begin(self, message: Message) -> None:
        """Check that the message is held. The server has begun its attempt with its lease."""
        self._receipts_of([message])

    # -- the ends -----------------------------------------------------------------------------------------------------

    def _end_by(self, call: str, messages: list[Message], **given: Any) -> "Future[Any]":
        if puts := given.pop("puts", ()):
            given["put"] = [put_object(*fields_of_put(body, options), queue=queue) for queue, body, options in puts]
        self._receipts_of(messages)
        return self._calls.submit(lambda: (self.end(call, messages, **given) or {}).get("ids") or None)

    def _release(self, messages: list[Message]) -> None:
        self.end("release", messages)

    def extend(self) -> None:
        """Renew the leases of all messages now. Raises BadMessageId if all leases have ended."""
        if receipts := list(self._held.values()):
            self._call("extend", receipts, params={"lease": LEASE_SECONDS})

    def end(self, call: str, messages: list[Message], goes_on: Callable[[], bool] = lambda: True, **given: Any) -> Any:
        """End messages by a call; return its answer. The call is repeated until the server has answered.

        goes_on: whether to repeat the call.
        """
        if not messages:
            return {"ids": []}
        receipts, ended = self._receipts_of(messages), True
        try:
            seconds = 0.0 if call == "release" else LEASE_SECONDS  # (the end of a lease is a release, too)
            found = self._call(call, receipts, seconds=seconds, goes_on=goes_on, **given)
            ended = found is None or found.get("effect") != "kept"
            return found
        except (BadMessageId, CommitUnknown):
            raise
        except BaseException:
            ended = False
            raise
        finally:
            with self._mutex:
                for message, receipt in zip(messages, receipts, strict=True) if ended else ():
                    if self._held.get(message.id) == receipt:  # (else it was taken again meanwhile)
                        del self._held[message.id]

    def _call(self, call: str, receipts: list[str], **given: Any) -> Any:
        """Make a call for each process of the server that holds some of the messages; return the last answer."""
        groups: dict[str, list[str]] = {}
        for receipt in receipts:
            groups.setdefault(receipt.partition(".")[0], []).append(receipt)
        if len(groups) > 1 and given.get("put"):
            raise ProtocolError("two processes of the server hold the messages: commit each with messages of its own")
        options = {name: given.pop(name) for name in ("params", "seconds", "goes_on") if name in given}
        for first, *others in groups.values():
            content = json_bytes({**given, **({"receipts": others} if others else {})})
            check_bytes(len(content), MOST_JSON_BYTES)
            found = self._connection.repeated("POST", "claims", first, call, content=content, **options)
        return json.loads(found.content or b"null")

    def _receipts_of(self, messages: Iterable[Message]) -> list[str]:
        self._check_open()
        with self._mutex:
            return [self._find(message) for message in messages]

    # -- the end of the claims ----------------------------------------------------------------------------------------

    def _give_back(self, ids: Iterable[str]) -> None:
        with self._mutex:
            receipts = [self._held.pop(id_) for id_ in ids if id_ in self._held]
        if receipts:
            with suppress(SpoolError):  # (else the leases end by themselves)
                self._call("release", receipts)

    def _release_all(self) -> None:
        if self._process == os.getpid():  # (a forked child holds nothing)
            self._give_back(list(self._held))

    def close(self) -> None:
        """As ``spool.Claims.close``. Calls under way are completed first."""
        self._closed = True
        self._ended.set()
        self._calls.shutdown()
        self._release_all()


def _renew(claims: "weakref.ref[RemoteClaims]", closed: threading.Event) -> None:
    """Renew the leases as long as the claims are in use."""
    while not closed.wait(_RENEWAL_SECONDS) and (used := claims()) is not None:
        with suppress(SpoolError):  # (a later renewal, or the end of the message, meets the cause again)
            used.extend()
        del used
