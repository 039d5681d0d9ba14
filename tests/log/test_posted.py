"""A request that passes through another process becomes the same commit as in its own process."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.log.posted import decode, encode
from spool.log.write_set import WriteSet, destinations_of, merged, puts, removal
from spool.model.layout import MAX_NUMBER
from spool.model.xid import FORMAT_LOCAL, Xid

BRANCH = bytes(range(12))
CHANGED: dict[str, list[Any]] = {
    "priority": [1, 100], "not_before": [0.5, 2**40], "expires_at": [1e12, 1], "attempts": [0, 7],
    "origin_queue": ["orders"], "failure_reason": ["", "ä"], "origin_attempts": [2**31],
}  # fmt: skip
FIELDS: dict[str, list[Any]] = {
    **CHANGED, "delay": [0, 0.25], "time_to_live": [60, 1e9], "correlation_id": ["", "\0", "ä" * 255],
    "client_id": ["c"], "application_key": ["k"], "reply_queue": ["replies"], "failure_queue": ["errors"],
    "user_code": [-(2**63), 2**63 - 1], "headers": [{}, {"k": "v", "": "ä"}], "codec": ["json"],
    "content_type": ["text/plain"], "top": [True], "before": [[1, 2, 50, 1.5, False], [1, 0, 9, 2, True, 3, 4]],
    "group": ["g", "h"],
}  # fmt: skip
QUEUES = st.sampled_from(["orders", "replies", "ä"])
BODIES = st.lists(st.sampled_from([b"", b"x", b"y" * 255, b"z" * 256]), min_size=1, max_size=3)
RANGES = st.tuples(st.sampled_from([1, 2, MAX_NUMBER]), st.integers(0, 5), st.integers(1, 5))


def some(of: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    pairs = [(name, value) for name, values in of.items() for value in values]
    return st.lists(st.sampled_from(pairs), max_size=3).map(dict)


Action = Callable[[WriteSet], object]
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(lambda *put: lambda batch: batch.put(*put), QUEUES, BODIES, some(FIELDS)),
    st.builds(lambda at, why: lambda batch: batch.remove(*at, why), RANGES, st.sampled_from(["dequeued", "failed"])),
    st.builds(
        lambda at, changes: lambda batch: batch.update(*at, changes),
        RANGES,
        some({**CHANGED, "queue": ["orders", "errors"], "why": ["expired"], "not_before": [None]}),
    ),
    st.builds(
        lambda *fact: lambda batch: batch.fact(*fact),
        st.sampled_from(["deduplication:k", "ä"]),
        st.sampled_from(["id", 2**64 - 1]),
        st.sampled_from([None, 1.5]),
    ),
)


def branch_of(actions: list[Action]) -> WriteSet:
    batch = WriteSet()
    batch.begin_branch(Xid(FORMAT_LOCAL, BRANCH, b""), BRANCH)
    for act in actions:
        act(batch)
    return batch


REQUESTS: st.SearchStrategy[WriteSet] = st.one_of(
    st.builds(puts, st.none(), QUEUES, st.lists(st.tuples(BODIES, some(FIELDS)), min_size=1, max_size=3)),
    st.builds(removal, st.none(), st.lists(RANGES, min_size=1, max_size=4)),
    st.builds(branch_of, st.lists(ACTIONS, max_size=5)),
)


def commit_of(requests: list[WriteSet]) -> tuple[Any, ...]:
    """Return what the commit of these requests writes, without ids that are random."""
    batch = merged(requests)
    batch.close_section()
    counts = [(branch.first, branch.count) for branch in batch.branches]
    places = [(request.first, request.messages, request.size, request.is_empty) for request in requests]
    return [section.parts for section in batch.sections], counts, places, batch.messages, batch.commands, batch.facts


@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_posted_requests_become_the_same_commit(requests: list[WriteSet]) -> None:
    encoded = encode(requests)
    posted = decode(encoded[0])
    assert [list(map(tuple, one.addressed)) for one in posted] == [list(map(tuple, one.addressed)) for one in requests]
    assert [destinations_of(one.tables) for one in posted] == [destinations_of(one.tables) for one in requests]
    assert [one.branch for one in posted] == [one.branch for one in requests]
    assert commit_of(posted) == commit_of(requests)


@pytest.mark.parametrize(
    "act",
    [
        lambda batch: batch.record_captured_file("drop.orders.0123456789abcdef", b"order.txt"),
        lambda batch: batch.leave(0, 1),
    ],
    ids=["a captured file", "a message that a compaction leaves"],
)
def test_a_branch_with_other_commands_is_left_to_its_own_process(act: Action) -> None:
    """Another intake could commit the captured file a second time, because a posted request outlives its process."""
    assert encode([branch_of([lambda batch: batch.put("orders", [b"x"], {}), act])]) is None


def test_an_addition_to_a_joined_range_leaves_the_other_batch_as_it_is() -> None:
    """Requests that failed are committed again without the others."""
    first, second = branch_of([lambda batch: batch.remove(9, 0, 1, "dequeued")]), WriteSet()
    second.append(first)
    second.remove(9, 1, 1, "dequeued")
    assert [command[1:4] for command in second.tables[0].commands] == [(9, 0, 2)]
    assert first.addressed == [(9, 0, 1)]
