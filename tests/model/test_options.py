"""Signatures name the same options as the lists of options, so editors and type checkers know all of them."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest

import spool
import spool.aio
from spool.index.browse import Filter
from spool.model.message import FIELDS, PUT_OPTIONS
from spool.model.settings import QUEUE_OPTIONS, SPACE_OPTIONS

PUTS = [spool.Space.put, spool.Space.put_many, spool.Space.submit]
PUTS += [spool.Space.request, spool.aio.Space.request]
PUTS += [spool.Transaction.put, spool.Transaction.put_many, spool.Transaction.submit]
PUTS += [spool.aio.Space.put, spool.aio.Space.put_many, spool.aio.Transaction.put, spool.aio.Transaction.put_many]
GETS = [one for kind in (spool.Space, spool.Transaction) for one in (kind.get, kind.get_many)]
GETS += [one for kind in (spool.aio.Space, spool.aio.Transaction) for one in (kind.get, kind.get_many)]
TOLD = [
    *((call, spool.PutOptions) for call in PUTS),
    *((call, spool.GetOptions) for call in GETS),
    *((call, spool.QueueOptions) for call in (spool.Space.create_queue, spool.Space.change_queue)),
    (spool.create, spool.SpaceOptions),
    *((call, spool.MessageFilters) for call in (spool.Space.browse, spool.Space.purge, spool.Space.redrive)),
    (spool.aio.Space.browse, spool.MessageFilters),
]
# A value of each option of a put that is not its default; "before" takes the id of a message.
GIVEN: dict[str, Any] = {
    "priority": 7, "not_before": 4e9, "delay": 60.0, "expires_at": 4e9, "time_to_live": 1e9, "correlation_id": "c",
    "reply_queue": "orders", "failure_queue": "orders", "user_code": -3, "client_id": "me", "application_key": "k",
    "headers": {"a": "b"}, "content_type": "text/plain", "top": True, "before": None, "group": "g",
    "deduplication_key": "d",
}  # fmt: skip
NOT_ASKED = {"delay", "time_to_live", "top", "before", "deduplication_key"}  # a message has no field of their names


@pytest.mark.parametrize(
    ("options", "known"),
    [
        (spool.PutOptions, set(PUT_OPTIONS)),
        (spool.GetOptions, {"timeout", "message_id", "correlation_id"}),
        (spool.QueueOptions, set(QUEUE_OPTIONS)),
        (spool.SpaceOptions, {*SPACE_OPTIONS, "defaults"}),
        (spool.MessageFilters, {field.name for field in fields(Filter)}),
    ],
)
def test_each_listed_option_has_a_key_for_type_checkers_and_a_line_of_help(options: type, known: set[str]) -> None:
    assert set(options.__annotations__) == known
    told = re.findall(r"^    `{0,2}(\w+)`{0,2}:? ", options.__doc__ or "", re.MULTILINE)
    assert known <= set(told)


@pytest.mark.parametrize(("call", "options"), TOLD, ids=lambda value: getattr(value, "__qualname__", value))
def test_a_call_with_options_names_them_in_its_signature(call: Callable[..., Any], options: type) -> None:
    [rest] = [one for one in inspect.signature(call).parameters.values() if one.kind is one.VAR_KEYWORD]
    assert get_type_hints(call)[rest.name] == Unpack[options]  # type: ignore[valid-type]


def test_a_message_with_any_option_can_be_read_after_the_space_was_opened_again(tmp_path: Path) -> None:
    assert GIVEN.keys() == spool.PutOptions.__annotations__.keys(), "give each option of a put a value in GIVEN"
    assert GIVEN.keys() - NOT_ASKED <= set(FIELDS), "an option that travels is in FIELDS and has a property"
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders", out_of_order=["top", "before"])
        first = space.put("orders", b"first")
        options = {**GIVEN, "before": first}
        ids = {name: space.put("orders", b"x", **{name: value}) for name, value in options.items()}
    with spool.open(tmp_path / "space") as space:
        problems = [str(finding) for finding in space.check()]
        assert not problems, "what was put cannot be read: has spool/format/schema.py (_FIELDS) a type for each option?"
        for name in GIVEN.keys() - NOT_ASKED:
            assert getattr(space.show(ids[name]), name) == GIVEN[name], name


def test_a_filter_that_is_none_is_refused_with_those_that_are(tmp_path: Any) -> None:
    with spool.create(tmp_path) as space:
        space.create_queue("orders")
        for call in (space.purge, space.redrive):
            with pytest.raises(
                TypeError, match=r"'older'; the filters are message_id, .*, reason, since, until, older_than"
            ):
                call("orders", older=5)  # type: ignore[call-arg]


def test_an_option_of_a_put_or_a_get_that_is_none_is_refused_by_name(tmp_path: Any) -> None:
    with spool.create(tmp_path) as space, space.transaction() as tx:
        space.create_queue("orders")
        for call, name, body in [
            (space.put, "put", [b"x"]),
            (space.submit, "put", [b"x"]),
            (space.get, "get", []),
            (tx.get, "get", []),
        ]:
            with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'timout'"):
                call("orders", *body, timout=5)
