"""A completion completes exactly once, with the first error, however its parties interleave (A02, A05)."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.store.completion import Completion


def interleavings(parties: int, named: int = 0, released: tuple[int, ...] = (), begun: bool = True) -> Iterator[list]:
    """Every order of: the initiator names each party, then releases his own; a party releases once it is named."""
    if not begun and len(released) == parties:
        yield []
        return
    if begun:
        step = ("expect", named) if named < parties else ("release", None)
        for rest in interleavings(parties, min(named + 1, parties), released, begun=named < parties):
            yield [step, *rest]
    for party in range(named):
        if party not in released:
            for rest in interleavings(parties, named, (*released, party), begun):
                yield [("release", party), *rest]


@pytest.mark.parametrize("parties", [0, 1, 2, 3])
def test_a02_it_completes_once_at_the_last_release_in_every_interleaving(parties: int) -> None:
    tried = 0
    for order in interleavings(parties):
        for failing in range(2**parties):
            tried += 1
            told: list[BaseException | None] = []
            completion = Completion(told.append)
            errors = [OSError(party) if failing >> party & 1 else None for party in range(parties)]
            first = None
            for step, party in order:
                assert told == []
                if step == "expect":
                    completion.expect()
                else:
                    error = None if party is None else errors[party]
                    first = first or error
                    completion.release(error)
            assert told == [first]
    assert tried >= 2**parties


@pytest.mark.parametrize("late", ["expect", "release"])
def test_nobody_joins_what_is_complete(late: str) -> None:
    told: list[BaseException | None] = []
    completion = Completion(told.append)
    completion.release()
    with pytest.raises(RuntimeError):
        getattr(completion, late)()
    assert told == [None]


def test_an_early_party_does_not_complete_it_before_the_initiator_has_named_the_next() -> None:
    """QPID-2921: a store that was faster than its caller completed the message twice."""
    told: list[BaseException | None] = []
    completion = Completion(told.append)
    completion.expect()
    completion.release()  # the store, at once
    assert told == []
    completion.expect()
    completion.release()
    assert told == []
    completion.release()
    assert told == [None]


@given(st.lists(st.booleans(), max_size=12))
def test_a02_it_completes_once_with_threads(failing: list[bool]) -> None:
    told: list[BaseException | None] = []
    completion = Completion(told.append)
    begin = threading.Barrier(len(failing) + 1)
    errors = [OSError(place) if fails else None for place, fails in enumerate(failing)]

    def party(error: OSError | None) -> None:
        begin.wait()
        completion.release(error)

    threads = [threading.Thread(target=party, args=[error]) for error in errors]
    for thread in threads:
        completion.expect()
        thread.start()
    begin.wait()
    completion.release()
    for thread in threads:
        thread.join()
    assert len(told) == 1
    assert told[0] in errors if any(failing) else told[0] is None
