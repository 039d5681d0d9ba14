"""A put refuses texts and headers that cannot be stored; all other texts and headers come back equal."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import spool
from spool.intake.intake import Intake
from tests.spaces import space_with

LONE = os.fsdecode(b"caf\xe9")  # as an argument of a program is read, or a file's name
TEXTS = ("content_type", "correlation_id", "client_id", "application_key", "group", "deduplication_key")


space = space_with(orders={"deduplication_window": 0.0})


def by_put(space: spool.Space, body: Any, **options: Any) -> str:
    return space.put("orders", body, **options)


def by_put_many(space: spool.Space, body: Any, **options: Any) -> str:
    return space.put_many("orders", [body], **options)[0]


def by_submit(space: spool.Space, body: Any, **options: Any) -> str:
    return space.submit("orders", body, **options).result()


def in_a_transaction(space: spool.Space, body: Any, **options: Any) -> str:
    with space.transaction() as tx:
        return tx.put("orders", body, **options)


def by_a_worker(space: spool.Space, body: Any, **options: Any) -> str:
    return str(spool.NewMessage("orders", body, **options))


WAYS = [by_put, by_put_many, by_submit, in_a_transaction]


@pytest.mark.parametrize("put", [*WAYS, by_a_worker])
@pytest.mark.parametrize("option", TEXTS)
@pytest.mark.every(7)
def test_a_text_that_utf8_cannot_write_is_refused_at_the_put(space: spool.Space, put: Callable[..., str], option: str):
    if put in (by_put_many, by_a_worker) and option == "deduplication_key":
        pytest.skip("it takes no such key")
    for body in (b"bytes", "text", {"a": "map"}):
        with pytest.raises(spool.InvalidArgument, match=rf"^{option} cannot be written as UTF-8: 'caf\\udce9'$"):
            put(space, body, **{option: LONE})
    assert list(space.browse("orders")) == []


class Lying(Mapping[str, Any]):
    """A mapping that returns a text a given number of times, and a number afterwards; or raises."""

    def __init__(self, texts: int, error: Exception | None = None) -> None:
        self._texts = texts
        self._error = error

    def __getitem__(self, name: str) -> Any:
        if self._error is not None:
            raise self._error
        self._texts -= 1
        return "text" if self._texts >= 0 else 7

    def __iter__(self) -> Iterator[str]:
        return iter(["name"])

    def __len__(self) -> int:
        return 1


class Word(str):
    """A text that lies about itself."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"short"

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("put", [*WAYS, by_a_worker])
def test_headers_are_read_once_and_refused_unless_they_are_texts(space: spool.Space, put: Callable[..., str]) -> None:
    bad = [{"a": LONE}, {LONE: "a"}, {"a": 7}, {7: "a"}, {"": "a"}, 7, Lying(0), Lying(9, RuntimeError("no"))]
    for headers in bad:
        with pytest.raises(spool.InvalidArgument, match=r"^(headers|a header) "):
            put(space, b"x", headers=headers)
    put(space, b"x", headers=Lying(1))
    for message in space.browse("orders"):
        assert message.headers == {"name": "text"}


@pytest.mark.parametrize("option", ["headers", "correlation_id"])
def test_a_limit_counts_a_text_as_it_is(space: spool.Space, option: str) -> None:
    long = Word("x" * 10_000)
    with pytest.raises(spool.InvalidArgument):
        space.put("orders", b"x", **{option: {"a": long} if option == "headers" else long})  # type: ignore[arg-type]


def test_headers_that_change_before_the_commit_are_those_of_the_put(space: spool.Space) -> None:
    headers: dict[Any, Any] = {"a": "b"}
    with space.transaction() as tx:
        tx.put("orders", b"x", headers=headers)
        headers |= {"a": LONE, 7: 8}
    [message] = space.browse("orders")
    assert message.headers == {"a": "b"}


def test_a_call_with_a_lone_surrogate_is_refused(space: spool.Space) -> None:
    asking: list[Callable[[], object]] = [
        lambda: space.get("orders", correlation_id=LONE),
        lambda: space.purge("orders", correlation_id=LONE),
        lambda: space.redrive("orders", headers={"a": LONE}),
        lambda: list(space.browse("orders", headers={LONE: "a"})),
        lambda: space.put(LONE, b"x"),
        lambda: space.create_queue(LONE),
        lambda: space.move("0" * 32, LONE),
        lambda: space.change_queue("orders", capacity_command=LONE),
        lambda: spool.create(f"{space.path}2", mirror=f"/{LONE}"),
        lambda: spool.register_codec(LONE, spool.Codec("x", bytes, bytes), complex),
        lambda: spool.register_codec("x", spool.Codec(LONE, bytes, bytes), complex),
    ]
    for ask in asking:
        with pytest.raises(spool.InvalidArgument) as caught:
            ask()
        str(caught.value).encode()
    with space.transaction(), pytest.raises(spool.BadMessageId):
        space.show(LONE)


def test_a_dropped_stream_with_such_a_text_goes_to_quarantine(space: spool.Space) -> None:
    folder = Path(space.path, "drop", "orders")
    texts = {"correlation_id": LONE, "headers": {"a": LONE}, "content_type": LONE, "body": {"a": LONE}}
    for name, value in texts.items():
        stream = msgpack.packb({"body": b"x", name: value}, unicode_errors="surrogatepass")
        (folder / f"{name}.msgpack").write_bytes(stream)
    Intake(space).run(once=True)
    assert list(space.browse("orders")) == []
    found = space.quarantined()
    assert len(found) == len(texts)
    for one in found:
        assert "utf-8" in str(one)


texts = st.text(st.characters() | st.sampled_from("\udce9\ud800"), max_size=300) | st.text(max_size=300)
values = st.none() | texts | st.binary(max_size=20) | st.integers()


@example(body="", options={}, headers={"": "\ud800"}, put=WAYS[0])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=texts | st.binary(max_size=300) | st.dictionaries(texts, texts, max_size=2),
    options=st.dictionaries(st.sampled_from(TEXTS), values, max_size=2),
    headers=st.none() | st.dictionaries(texts, texts | st.binary(max_size=3), max_size=2),
    put=st.sampled_from(WAYS),
)
def test_a_put_is_refused_or_comes_back_equal(
    space: spool.Space, body: Any, options: dict[str, Any], headers: Any, put: Callable[..., str]
) -> None:
    if put is by_put_many:
        options.pop("deduplication_key", None)
    try:
        message_id = put(space, body, headers=headers, **options)
    except spool.InvalidArgument as error:
        str(error).encode()
        return
    options.pop("deduplication_key", None)
    with spool.open(space.path) as another:
        message = another.show(message_id)
        another.delete(message_id)
    assert message.body == body
    assert dict(message.headers) == (headers or {})
    for name, value in options.items():
        assert value is None or getattr(message, name) == value
