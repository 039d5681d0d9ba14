"""The refusals of calls, their moment, and the length of their texts."""

import io
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import spool
import xa
from spool.disk import Disk
from spool.routing import Router
from tests.spaces import space_with

LONG = "c" * 5_000_000
PATIENT_SECONDS = 60


space = space_with("q", defaults={})


@pytest.mark.parametrize("bodies", ["abc", b"abc", {"a": 1}])
def test_one_body_is_not_taken_for_many(space: spool.Space, bodies: str | bytes | dict[str, int]) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"put_many takes bodies, e\.g\. a list, not one .*: use put"):
        space.put_many("q", bodies)
    assert space.stats("q").ready == 0


_OPTIONS_OF_PUT = ["correlation_id", "group", "priority", "content_type", "reply_queue", "before", "expires_at"]


@pytest.mark.parametrize(
    "attempt",
    [
        *(lambda space, name=name: space.put("q", 1, **{name: LONG}) for name in _OPTIONS_OF_PUT),
        *(lambda space, name=name: space.get("q", **{name: LONG}) for name in ("message_id", "timeout", "transaction")),
        lambda space: space.put("q", 1, headers={LONG: "x"}),
        lambda space: space.put(LONG, 1),
        lambda space: space.show(LONG),
        lambda space: space.create_queue(LONG),
        lambda space: space.create_queue("new", error_queue=LONG),
        lambda space: space.create_queue("new", order=[LONG]),
        lambda space: space.create_queue("new", retries=b"x" * 5_000_000),
        lambda space: space.change_queue("q", drop_group=LONG),
        lambda space: space.browse("q", older_than=LONG),
    ],
)
def test_an_error_does_not_repeat_a_long_value(space: spool.Space, attempt: Callable[[spool.Space], object]) -> None:
    with pytest.raises(spool.SpoolError) as raised:
        attempt(space)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("body", [b"x" * 1_000_000, "x" * 1_000_000, list(range(1_000_000)), {"a": {"b": LONG}}])
def test_the_repr_of_a_message_is_short(space: spool.Space, body: object) -> None:
    space.put("q", body)
    assert len(repr(space.get("q"))) < 500


def test_the_repr_of_a_message_shows_a_short_body_whole(space: spool.Space) -> None:
    space.put("q", {"item": "tea", "count": 2})
    assert "body={'count': 2, 'item': 'tea'})" in repr(space.get("q"))


@pytest.mark.parametrize("timeout", [0, 0.0, -1, True, "1", float("nan")])
def test_a_transaction_without_any_time_is_refused(space: spool.Space, tmp_path: Path, timeout: float) -> None:
    with xa.TransactionManager(tmp_path / "log") as manager:
        for begin in (space.transaction, partial(xa.ResourceManager, space), manager.transaction):
            with pytest.raises(spool.InvalidArgument, match=r"timeout is .* seconds above 0, or None for no limit"):
                begin(timeout=timeout)


def test_a_router_without_routes_is_refused() -> None:
    with pytest.raises(spool.InvalidArgument, match="there are no routes"):
        Router([], field="customer")


@pytest.mark.parametrize("look", [spool.Space.browse, spool.Space.entries])
def test_a_browse_of_a_missing_queue_is_refused_at_once(space: spool.Space, look: Callable[..., object]) -> None:
    with pytest.raises(spool.QueueNotFound):
        look(space, "nope")
    with pytest.raises(TypeError):
        look(space, "q", colour="red")


def test_an_opener_that_waits_for_another_says_so(
    space: spool.Space, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opener logs one line if it waits longer than usual."""
    monkeypatch.setattr("spool.coordination.locks._SILENT_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "spool")
    other = Disk(space.path)
    handle = other.open_directory("")
    assert other.flock(handle)
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    listener = Told()
    logging.getLogger("spool").addHandler(listener)
    opener = threading.Thread(target=lambda: spool.open(space.path).close())
    try:
        opener.start()
        assert told.wait(PATIENT_SECONDS)
    finally:
        logging.getLogger("spool").removeHandler(listener)
        other.close_all()
        opener.join()
    (record,) = [record for record in caplog.records if "which is opening the space" in record.getMessage()]
    assert str(space.path) in record.getMessage()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: spool.create(path, mirror=str(path.parent / "mirror")),  # which is not empty
        lambda path: spool.import_space(path, io.BytesIO(b"")),
    ],
    ids=["create", "import"],
)
def test_a_refused_space_leaves_the_directory_as_it_was(tmp_path: Path, make: Callable[[Path], spool.Space]) -> None:
    """For example, the empty directories of a space without its space.toml remain."""
    for name in ("space/drop", "space/active", "mirror/other"):
        (tmp_path / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(spool.SpoolError):
        make(tmp_path / "space")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("where", ["space", "transaction"])
def test_put_many_passes_on_an_exception_of_the_caller_s_iterable(space: spool.Space, where: str) -> None:
    def rows() -> Iterator[bytes]:
        yield b"first"
        raise ConnectionResetError("the database is gone")

    with space.transaction() as tx:
        put_many = space.put_many if where == "space" else tx.put_many
        with pytest.raises(ConnectionResetError, match="the database is gone"):
            put_many("q", rows())
    assert not list(space.browse("q"))
