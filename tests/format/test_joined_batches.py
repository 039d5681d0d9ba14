"""Many branches in one file: each keeps its messages, in its order, its commands and its facts."""

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from spool.coordination.counters import CounterPage
from spool.format import schema
from spool.format.table import decode_table
from spool.log import write_set
from spool.log.write_set import WriteSet, merged, puts
from spool.model.xid import FORMAT_LOCAL, Xid

PAGE = CounterPage(bytes(320))

Message = tuple[str, dict[str, Any], bytes]

messages = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from([{}, {"priority": 60}]), st.binary(min_size=1, max_size=20)
)
some_puts = st.lists(messages, min_size=1, max_size=4)
branches = st.tuples(
    st.lists(messages, max_size=5),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(1, 4)), max_size=5),
    st.lists(st.sampled_from(["one", "two"]), max_size=2),
)


def puts_of(made: list[Message]) -> WriteSet:
    return puts(PAGE, made[0][0], [([body], attributes) for _, attributes, body in made])


def branch_of(place: int, made: list[Message], removes: list[tuple[int, int, int]], facts: list[str]) -> WriteSet:
    found, id = WriteSet(), bytes([place]) * 12
    found.begin_branch(Xid(FORMAT_LOCAL, id, b""), id)
    for queue, attributes, body in made:
        found.put(queue, [body], attributes)
    for number, first, count in removes:
        found.remove(number, first, count, "dequeued")
    for key in facts:
        found.fact(key, place)
    return found


def contents(whole: WriteSet) -> tuple[list[Message], list[list[Any]], list[list[Any]]]:
    """Return the messages, commands and facts that a reader finds in the file."""
    whole.close_section()
    found: list[Message] = []
    commands: list[list[Any]] = []
    facts: list[list[Any]] = []
    for section in whole.sections:
        table = decode_table(section.parts[0], section.entry)
        assert section.entry.messages <= write_set.SECTION_MESSAGES
        assert sum(command[3] for command in table.commands) <= write_set.MOST_ADDRESSED
        bodies = iter(section.parts[2::2])
        for queue, attributes, count in table.runs:
            found += [(table.queues[queue], table.attributes[attributes], next(bodies)) for _ in range(count)]
        commands += table.commands
        facts += table.facts
    return found, commands, facts


@settings(max_examples=40)
@given(st.lists(st.one_of(some_puts, branches), min_size=1, max_size=6))
def test_joined_drafts_are_one_behind_the_other(given_: list[Any]) -> None:
    with (
        mock.patch.object(write_set, "SECTION_MESSAGES", 3),
        mock.patch.object(write_set, "SECTION_BYTES", 60),
        mock.patch.object(write_set, "MOST_ADDRESSED", 6),
        mock.patch.object(schema, "MOST_ADDRESSED", 6),
    ):
        works: list[WriteSet] = []
        wanted: list[Message] = []
        removed: list[tuple[int, int]] = []
        told: list[tuple[str, int]] = []
        for place, made in enumerate(given_):
            if isinstance(made, list):
                works.append(puts_of(made))
                wanted += [(made[0][0], attributes, body) for _, attributes, body in made]
            else:
                works.append(branch_of(place, *made))
                wanted += made[0]
                removed += [(number, first + n) for number, first, count in made[1] for n in range(count)]
                told += [(key, place) for key in made[2]]
        whole = merged(works)
        ids = [id for work in works for id in work.ids]
        assert len(set(ids)) == len(ids) == whole.messages == len(wanted)
        entries_ = whole.branches
        by_place = {entry.id.hex() + f"{n:08x}": entry.first + n for entry in entries_ for n in range(entry.count)}
        assert [by_place[id] for id in ids] == list(range(len(wanted)))
        found, commands, facts = contents(whole)
        assert found == wanted
        assert [(c[1], c[2] + n) for c in commands for n in range(c[3])] == removed
        assert [(key, value) for key, value, _ in facts] == told
