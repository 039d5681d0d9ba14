"""Deduplication: a second put with the same key within the queue's window adds no message.

The commit of a message records the message's key as a fact, which is forgotten after the window. A later put with the
same key returns the id of the first message, even if this message has left the queue. A transaction that puts a key
holds a byte lock for the key until the transaction ends. So another put with the same key waits for the transaction's
outcome, as an insert into a unique index does in a database. If two transactions wait for each other's keys, only their
deadlines end the wait.
"""

from spool.coordination.locks import deduplication_byte
from spool.errors import Argument, InvalidArgument, MessageInUse
from spool.log.visibility import revalidate
from spool.log.write_set import WriteSet
from spool.model.settings import QueueConfig
from spool.runtime.clock import WaitExpired
from spool.store.store import WAIT_SECONDS, Store


class DeduplicationKeys:
    """The deduplication keys that one transaction puts.

    ``locks``: the locked bytes of run/xids that the transaction unlocks at its end.
    """

    def __init__(self, store: Store, locks: list[int]) -> None:
        self._store = store
        self._locks = locks
        self._own: dict[str, str] = {}

    def seen(self, queue: str, key: str, seconds: float) -> str | None:
        """Return the id of the first message with the key. If no message has the key, lock the key and return None.

        ``seconds``: the time that is left to the transaction, in which it may wait for another one that has the lock.

        Raises:
            MessageInUse: an undecided transaction or a prepared branch has put the key.
        """
        store, name = self._store, fact_key(queue, key)
        if name in self._own:
            return self._own[name]
        byte, deadline = deduplication_byte(queue, key), store.deadline(max(0.0, min(seconds, WAIT_SECONDS)))
        if byte in self._locks:  # an earlier call locked the key, and then put no message
            return None
        try:
            store.shared.xids.lock(byte, deadline, f"the deduplication key {key!r}")
        except WaitExpired as error:
            raise MessageInUse(f"{error}: try again later") from None
        self._locks.append(byte)
        found: str | None = ""
        try:
            found = self._published(name, key)
        finally:
            if found is not None:
                self._locks.remove(byte)
                store.shared.xids.unlock(byte)
        return found

    def _published(self, name: str, key: str) -> str | None:
        store = self._store
        revalidate(store)  # a process may have died between the numbering and the publication of a commit
        with store.view.mutex:
            for xid, contents in store.view.prepared.branches.items():
                if any(fact[0] == name for table in contents.tables for fact in table.facts):
                    raise MessageInUse(f"a message with the deduplication key {key!r} is in doubt, in branch {xid}")
            fact = store.view.index.facts.get(name)
        if fact is None or (fact[2] is not None and fact[2] <= store.clock.now()):
            return None
        return str(fact[1])

    def remember(self, batch: WriteSet, config: QueueConfig, key: str, message_id: str) -> None:
        """Add the key of a message to the batch that contains the message."""
        name = fact_key(config.name, key)
        batch.fact(name, message_id, self._store.clock.now() + config.deduplication_window)
        self._own[name] = message_id


def check_single(count: int) -> None:
    """Raise InvalidArgument unless exactly one message is put, because a key belongs to one message."""
    if count != 1:
        raise InvalidArgument(
            "a ", Argument("deduplication_key"), f" belongs to one message, and there are {count}: put them one by one"
        )


_KEY_FACT = "deduplication:"


def fact_key(queue: str, key: str) -> str:
    """Return the key of the fact that records a deduplication key."""
    return f"{_KEY_FACT}{queue}:{key}"


def parse_fact_key(fact: str) -> tuple[str, str] | None:
    """Return the queue and the deduplication key in a fact's key, or None for another kind of fact."""
    if not fact.startswith(_KEY_FACT):
        return None
    queue, _, key = fact.removeprefix(_KEY_FACT).partition(":")
    return queue, key
