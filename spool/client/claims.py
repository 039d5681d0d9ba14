"""Messages of a space by HTTP that a program holds: the server gives a lease of a minute for each, and a thread renews
the leases. If the program dies, or cannot reach the server for a minute, the leases end."""

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from spool.client.connection import CALL_SECONDS, HttpConnection
from spool.client.fields import MOST_JSON_BYTES, NDJSON, branch_of, check_bytes, fields_of_put, json_bytes, put_object
from spool.errors import BadMessageId, CommitUnknown, MessageInUse, NotOpen, ProtocolError, SpoolError
from spool.model.message import Message
from spool.model.objects import message_of
from spool.model.text import one_line
from spool.transactions.claiming import Wanted, no_message
from spool.transactions.held_messages import HeldMessages

LEASE_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 20.0
"""The longest wait of one call for messages."""
_RENEWAL_SECONDS = LEASE_SECONDS / 3
_MOST_AT_ONCE = 1000


@dataclass(eq=False)
class _Lease:
    """The lease of a held message. ``until``: its end, if it is not renewed, by the monotonic clock."""

    id: str
    receipt: str
    until: float
    is_ending: bool = False


class RemoteClaims(HeldMessages):
    """As ``spool.Claims``, for a space by HTTP: see ``spool.connect``. ``remove``, ``reject`` and ``release`` make a
    commit for each process of the server that holds some of the messages, and ``release`` passes over ended leases.

    The server holds each message for a minute at a time, until the message is ended, or ``close`` releases it. While
    this object exists, a thread renews the leases. If the program dies, or the server cannot be reached for a minute,
    the leases end, and an attempt is counted for each message; the calls then raise BadMessageId. The same holds if the
    server dies. ``fail``, ``reject``, ``remove`` and ``commit`` repeat their calls until the server has answered.

    ``take`` takes at most 1,000 messages, and the end of the lease of each counts an attempt, also without ``begin``.

    Raises CommitUnknown (from the futures) if the server died, or was not reached for a minute, before it had answered:
    the effect may have happened, or not. In both cases, the message is no longer held. The puts of one ``commit`` have
    at most 64 MiB.
    """

    def __init__(self, connection: HttpConnection, *, renews: bool = True) -> None:
        super().__init__(f"{connection.server}/{connection.space}")
        self._connection, self._renews, self._process = connection, renews, os.getpid()
        self._calls, self._ended = ThreadPoolExecutor(8, "spool-claims"), threading.Event()

    def _take(self, wanted: Wanted) -> list[Message]:
        with suppress(MessageInUse):
            return self.decoded(self.claim(wanted, 0.0), undecoded=wanted.only_shown)
        return []

    def wait(self, wanted: Wanted) -> list[Message]:
        """Take messages, and wait for the first up to ``wanted.timeout`` seconds. Raises Empty, MessageInUse."""
        until = time.monotonic() + (math.inf if wanted.timeout is None else wanted.timeout)
        while True:
            left = until - time.monotonic()
            error: SpoolError = no_message(wanted)
            try:
                if found := self.claim(wanted, max(0.0, min(left, WAIT_SECONDS))):
                    return self.decoded(found)
            except MessageInUse as in_use:
                error = in_use
            if left <= WAIT_SECONDS:
                raise error

    def claim(self, wanted: Wanted, wait: float) -> list[dict[str, Any]]:
        """Claim messages, and wait for the first up to ``wait`` seconds; return their ``message_object``."""
        self._check_open()
        given: dict[str, Any] = {"message_id": wanted.message_id, "correlation_id": wanted.correlation_id}
        given |= {"max": min(wanted.count, _MOST_AT_ONCE), "wait": wait, "lease": LEASE_SECONDS, "value": 0}
        until = time.monotonic() + LEASE_SECONDS
        params = {name: value for name, value in given.items() if value is not None}
        call = partial(self._connection.call, headers={"Accept": NDJSON}, params=params, timeout=wait + CALL_SECONDS)
        found = call("POST", "queues", wanted.queue, "claims")
        messages = [json.loads(line) for line in found.content.splitlines()]
        with self._mutex:
            self._held.update((each["id"], _Lease(each["id"], each["receipt"], until)) for each in messages)
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

    def _check_open(self) -> None:
        super()._check_open()
        if self._process != os.getpid():
            raise NotOpen("these claims belong to the parent process: call space.claims() for new ones")

    def begin(self, message: Message) -> None:
        """Check that the message is held. The server has begun its attempt with its lease."""
        with self._mutex:
            self._find(message)

    # -- the ends -----------------------------------------------------------------------------------------------------

    def _end_by(self, call: str, messages: list[Message], **given: Any) -> "Future[Any]":
        self._check_open()
        if puts := given.pop("puts", ()):
            given["put"] = [put_object(*fields_of_put(body, options), queue=queue) for queue, body, options in puts]
        if "reason" in given:
            given["reason"] = one_line(given["reason"])
        leases = self._mark(messages)
        return self._calls.submit(lambda: self._finish(call, leases, **given).get("ids") or None)

    def _release(self, messages: list[Message]) -> None:
        self.end("release", messages)

    def end(self, call: str, messages: list[Message], goes_on: Callable[[], bool] = lambda: True, **given: Any) -> Any:
        """End messages by a call; return its answer. The call is repeated until the server has answered.

        goes_on: whether to repeat the call.
        """
        self._check_open()
        return self._finish(call, self._mark(messages), goes_on=goes_on, **given)

    def _finish(self, call: str, leases: list[_Lease], **given: Any) -> dict[str, Any]:
        ended = True
        try:
            seconds = 0.0 if call == "release" else LEASE_SECONDS  # (the end of a lease is a release, too)
            found = self._call(call, leases, seconds=seconds, **given)
            ended = found.get("effect") != "kept"
            return found
        except (BadMessageId, CommitUnknown):
            raise
        except BaseException:
            ended = False
            raise
        finally:
            with self._mutex:
                for lease in leases:
                    lease.is_ending = False
                    if ended and self._held.get(lease.id) is lease:  # (else it was taken again meanwhile)
                        del self._held[lease.id]

    def extend(self, lease: float = LEASE_SECONDS) -> None:
        """Let the leases of all held messages end ``lease`` seconds from now, from 1 to 43,200. For so long, the
        program may be suspended, or without a connection. The thread renews a lease only in its last minute.

        Raises BadMessageId if all leases have ended, and InvalidArgument.
        """
        self.extend_if_before(math.inf, lease)

    def extend_if_before(self, moment: float, lease: float) -> None:
        """Extend the leases that end before a moment of the monotonic clock."""
        until = time.monotonic() + lease
        with self._mutex:
            leases = [each for each in self._held.values() if each.until < moment]
        self._call("extend", leases, params={"lease": lease})
        for each in leases:
            each.until = until

    def _call(self, call: str, leases: list[_Lease], **given: Any) -> dict[str, Any]:
        """Make a call for each process of the server that holds some of the messages; return the last answer.

        If one process has died, the calls to the others are still made. Then ``extend`` and ``release`` raise no error,
        because they pass over ended leases.
        """
        groups: dict[str, list[str]] = {}
        for lease in leases:
            groups.setdefault(lease.receipt.partition(".")[0], []).append(lease.receipt)
        if len(groups) > 1 and given.get("put"):
            raise ProtocolError("two processes of the server hold the messages: commit each with messages of its own")
        options = {name: given.pop(name) for name in ("params", "seconds", "goes_on") if name in given}
        answer, failed = b"", list[SpoolError]()
        for first, *others in groups.values():
            content = json_bytes({**given, **({"receipts": others} if others else {})})
            check_bytes(len(content), MOST_JSON_BYTES)
            try:
                answer = self._connection.repeated("POST", "claims", first, call, content=content, **options).content
            except (BadMessageId, CommitUnknown) as error:
                failed.append(error)
        if failed and (call not in ("extend", "release") or len(failed) == len(groups)):
            raise max(failed, key=lambda error: isinstance(error, CommitUnknown))
        return json.loads(answer or b"{}")  # type: ignore[no-any-return]

    def branch_of(self, message: Message) -> str:
        """Return the beginning of the ids of the messages that the end of the attempt puts, in hexadecimal digits."""
        with self._mutex:
            return branch_of(self._find(message).receipt).hex()

    # -- the end of the claims ----------------------------------------------------------------------------------------

    def _give_back(self, ids: Iterable[str]) -> None:
        with self._mutex:
            leases = [self._held.pop(id_) for id_ in ids if id_ in self._held]
        with suppress(SpoolError):  # (else the leases end by themselves)
            self._call("release", leases)

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
            used.extend_if_before(time.monotonic() + LEASE_SECONDS, LEASE_SECONDS)
        del used
