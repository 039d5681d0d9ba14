"""A mode of the tests in which another process leads: it commits the requests of the process under test.

Each commit of the process under test is encoded, posted in a slot of ``run/requests``, and answered there. While the
owner of the request waits, ``Leader`` takes its turn in the owner's thread: it joins the request, decodes it, and
commits the decoded form. So a test meets what it would meet beside another process that leads: a request that cannot be
posted, or that comes out differently; an error under the number lock, which only the owner raises; a commit that the
owner reads from the feed or from its file.

The leader is a separate group commit on the store of the process under test, because a second opener of the space would
change the locks, the recovery and the closing that tests are about.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from spool.coordination.counters import CounterPage
from spool.coordination.request_slots import RequestSlots
from spool.log import write
from spool.log.ring import Ring
from spool.log.write_set import WriteSet
from spool.store.store import Store
from tests import door


class Leader:
    """A process that leads while a process under test commits. It commits nothing of its own."""

    def __init__(self, store: Store) -> None:
        self._store, self.leads = store, True

    def take_turn(self) -> None:
        """Commit the posted requests, and release the lead."""
        self.leads, _turn.runs = False, True
        try:
            door.commit_as_another(self._store)
        finally:
            _turn.runs = False


class _Turn(threading.local):
    """Whether this thread is the leader's at this moment."""

    runs = False


_turn = _Turn()


@contextmanager
def another_process_leads(counts: Counter[str] | None = None) -> Iterator[None]:
    """Let another process lead whenever a process that this process simulates, or is, begins a commit.

    counts: gets the number of requests that were *posted*, and of those that were left to their *owner*.
    """
    counts = Counter() if counts is None else counts
    leaders: dict[RequestSlots, Leader] = {}
    has_company, exchange, try_lead = Ring.expects_others, Ring.exchange, Ring._try_lead
    wait, keep = RequestSlots.wait, write.keep

    def expect_others(self: Ring, page: CounterPage | None) -> bool:
        return has_company(self, page) or (self._slots.exist and not _turn.runs)

    def post(self: Ring, requests: list[WriteSet]) -> list[WriteSet]:
        if _turn.runs:
            return exchange(self, requests)
        leaders[self._slots] = Leader(door.store(self))
        try:
            left = exchange(self, requests)
            counts.update(posted=len(requests) - len(left), owner=len(left))
            return left
        finally:
            del leaders[self._slots]

    def lead_unless_led(self: Ring) -> bool:
        leader = leaders.get(self._slots)
        return (leader is None or not leader.leads) and try_lead(self)

    def wait_for_turn(self: RequestSlots, slot: int, state: bytes, seconds: float) -> bool:
        leader = leaders.get(self)
        if leader is None or not leader.leads:
            return wait(self, slot, state, seconds)
        leader.take_turn()
        return self.state(slot) != state

    def keep_unless_led(*args: Any) -> None:
        if not _turn.runs:  # else the process under test reads the commit, as a commit of another process
            keep(*args)

    replaced: list[tuple[Any, str, Any]] = [
        (Ring, "expects_others", expect_others),
        (Ring, "last", property(lambda _: -1, lambda *_: None)),  # others have always committed
        (Ring, "exchange", post),
        (Ring, "_try_lead", lead_unless_led),
        (RequestSlots, "wait", wait_for_turn),
        (write, "keep", keep_unless_led),
    ]
    patches = [mock.patch.object(target, name, function) for target, name, function in replaced]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def of_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of programs beside which another process leads, too."""
    root = Path(__file__).parents[1]
    paths = (str(root / "tests" / "led_programs"), environment.get("PYTHONPATH", ""), str(root))
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
