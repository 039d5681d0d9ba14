"""The back end of Dramatiq's rate limiters and barriers: each key is the correlation id of a message.

The message keeps what each holder has added to the key, with the time at which this ends. A holder is a thread of a
process. So the share of a killed process ends at its time to live, even if other processes change the key all the time.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal
from uuid import uuid4

from dramatiq.rate_limits import RateLimiterBackend

import spool
from dramatiq_xaspool.names import short_text, space_path, space_with

Shares = dict[str, list[float]]
"""By holder: the number that it added, and the time since the epoch at which this ends."""

running: ContextVar[Any] = ContextVar("running")  # the message that a thread of a worker of this package runs

_process = ""  # a random name of this process


class XaspoolRateLimiterBackend(RateLimiterBackend):
    """A back end for the rate limiters, for barriers, and for the middleware ``GroupCallbacks``.

    If a worker dies after it has counted a message at the barrier of its group, and the message runs again, the barrier
    does not count the message again.

    Args:
        path: the directory of the space, e.g. the broker's. The first use creates a missing space.
        namespace: the queue that keeps the keys.
        durability: "flush" if the keys must survive a power cut, as those of barriers and groups must; "none" is
            faster, and enough for limiters. The option is set when the queue is created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "dramatiq-limits",
        durability: Literal["flush", "none"] = "flush",
    ) -> None:
        self.path, self.namespace, self._durability = space_path(path), namespace, durability

    # -- the methods of each back end; times are in milliseconds ------------------------------------------------------

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Set a key that does not exist; return whether it did not exist."""
        with self._locked(key) as space:
            if self._shares(space, key):
                return False
            self._store(space, key, {_holder(): [value, _end(ttl)]})
            return True

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        """Add an amount to a key, unless the sum exceeds the maximum; return whether it was added."""
        return self.incr_and_sum(key, lambda: (), amount, maximum, ttl)

    def incr_and_sum(self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int) -> bool:
        """Add an amount to a key, unless the sum of the keys exceeds the maximum; return whether it was added."""
        with self._locked(key, *keys()) as space:
            shares = self._shares(space, key)
            others = [self._shares(space, each) for each in keys()]  # (again, because the time may have gone on)
            if max(_total(shares), sum(map(_total, others))) + amount > maximum:
                return False
            own = shares.setdefault(_holder(), [0, 0.0])
            own[:] = own[0] + amount, _end(ttl)
            self._store(space, key, shares)
            return True

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        """Take an amount from a key, unless less than the minimum would remain; return whether it was taken.

        For the barrier of a group, this has an effect once for each message: a second run gets the first answer.
        """
        counted = _counted(key)
        with self._locked(key) as space:
            if counted is not None and (found := space.find(self.namespace, correlation_id=counted)) is not None:
                return bool(json.loads(found.body))
            shares = self._shares(space, key)
            if is_taken := _total(shares) - amount >= minimum:
                _take(shares, amount, _end(ttl))
            if counted is None:
                if is_taken:
                    self._store(space, key, shares)
                return is_taken
            with space.transaction() as tx:
                if is_taken:
                    self._store(tx, key, shares)
                tx.put(self.namespace, json.dumps(is_taken), correlation_id=counted, time_to_live=ttl / 1000)
            return is_taken

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait until ``wait_notify`` was called for a key; return False if the time is over before. None: no limit."""
        seconds = None if timeout is None else timeout / 1000
        return self._space().find(self.namespace, correlation_id=short_text(key), timeout=seconds) is not None

    def wait_notify(self, key: str, ttl: int) -> None:
        """End each wait for a key that exists now or begins in the next ``ttl`` milliseconds."""
        self._space().replace(
            self.namespace, "", correlation_id=short_text(key), time_to_live=ttl / 1000, transaction=None
        )

    # -- the keys in the space ----------------------------------------------------------------------------------------

    def _space(self) -> spool.Space:
        return space_with(self.path, self.namespace, durability=self._durability)

    @contextmanager
    def _locked(self, *keys: str) -> Iterator[spool.Space]:
        """Keep all other threads and processes from these keys. The death of the process ends this at once.

        The keys of a window limiter, ``KEY@SECOND``, have one lock, because their sum is limited. A transaction that is
        rolled back holds the locks: it replaces messages that never exist.
        """
        space = self._space()
        lock = space.transaction(timeout=None)
        try:
            for name in sorted({key.rpartition("@")[0] or key for key in keys}):
                lock.replace(self.namespace, "", correlation_id=short_text(f"lock of {name}"))
            yield space
        finally:
            lock.rollback()

    def _shares(self, space: spool.Space, key: str) -> Shares:
        found = space.find(self.namespace, correlation_id=short_text(key))
        shares: Shares = {} if found is None else json.loads(found.body)
        now = time.time()
        return {holder: share for holder, share in shares.items() if share[1] > now}

    def _store(self, target: spool.Space | spool.Transaction, key: str, shares: Shares) -> None:
        options: Any = {} if isinstance(target, spool.Transaction) else {"transaction": None}
        last = max((share[1] for share in shares.values()), default=time.time())
        target.replace(self.namespace, json.dumps(shares), correlation_id=short_text(key), expires_at=last, **options)


def _holder() -> str:
    """Return the name of this thread, which no other thread of any process has."""
    return f"{_process}-{threading.get_ident()}"


def _end(ttl: int) -> float:
    return time.time() + ttl / 1000


def _total(shares: Shares) -> int:
    return int(sum(number for number, _ in shares.values()))


def _take(shares: Shares, amount: int, end: float) -> None:
    """Take an amount from the holder that is this thread, or from the holders whose time ends first: a barrier, and a
    limiter that another thread releases. A share that remains ends at ``end``."""
    own = shares.get(_holder(), [0, 0.0])
    order = [_holder()] if own[0] >= amount else sorted(shares, key=lambda holder: shares[holder][1])
    for holder in order:
        taken = min(amount, int(shares[holder][0]))
        amount -= taken
        shares[holder][:] = shares[holder][0] - taken, end
        if not shares[holder][0] and len(shares) > 1:  # (a key remains for its time to live, even if its sum is 0)
            del shares[holder]
        if not amount:
            return


def _counted(key: str) -> str | None:
    """Return the correlation id of the note that the running message was counted, if the key is its group's barrier."""
    message = running.get(None)
    if message is None or message.options.get("group_completion_uuid") != key:
        return None
    return short_text(f"{key} counted {message.message_id}")


def _name_process() -> None:
    global _process
    _process = uuid4().hex


_name_process()
os.register_at_fork(after_in_child=_name_process)
