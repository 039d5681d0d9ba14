"""Messages as files of a directory: whole, durable, once a message, and never elsewhere."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder.services import Caller, ServiceError, parse
from forwarder.services.file import file_name
from spool.workers.outcome import Rejected, Replied
from tests.forwarder.test_services import assert_not_reached, call, request

ID = "0" * 31 + "1"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_message_becomes_a_file_and_its_name_the_reply(tmp_path: Path) -> None:
    assert call(parse(f"file:{tmp_path}"), request(b"a\0b")) == Replied(
        ID.encode(), "text/plain; charset=utf-8", "text"
    )
    assert (tmp_path / ID).read_bytes() == b"a\0b"
    assert names(tmp_path) == [ID]


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_a_directory_is_a_path_or_a_file_url(tmp_path: Path, form: str) -> None:
    call(parse(form.format(tmp_path)))
    assert names(tmp_path) == [ID]


def test_the_same_message_again_is_the_same_file(tmp_path: Path) -> None:
    service = parse(f"file:{tmp_path}")
    call(service, request(b"first"))
    call(service, request(b"first"))
    assert names(tmp_path) == [ID]


def test_names_are_made_of_fields(tmp_path: Path) -> None:
    sent = request(b"x", correlation_id="c 1", headers={"filename": "a.hl7"}, priority=7)
    call(parse(f"file:{tmp_path}?name={{queue}}-{{priority}}-{{correlation_id}}-{{id}}-{{header.filename}}"), sent)
    assert names(tmp_path) == [f"orders-7-c 1-{ID}-a.hl7"]


@pytest.mark.parametrize(
    ("value", "stands"),
    [
        ("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"),
        ("/x", "%2Fx"),
        ("a\0\n", "a%00%0A"),
        ("100%", "100%25"),
        ("", ""),
    ],
)
def test_no_value_leads_out_of_the_directory(tmp_path: Path, value: str, stands: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    call(parse(f"file:{place}?name={{id}}{{header.x}}"), request(b"x", headers={"x": value}))
    assert names(place) == [ID + stands]
    assert names(tmp_path) == ["place"]


@pytest.mark.parametrize("value", [".", "..", ".hidden"])
def test_no_file_is_hidden_by_a_value(value: str) -> None:
    assert file_name("{header.x}{id}", request(headers={"x": value}).message).startswith("%2E")


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the file is written, it has a hidden name. Its bytes are flushed before the rename, and its directory after
    the rename."""
    steps: list[Any] = []
    flush, rename = os.fsync, os.rename

    def flushed(file: int) -> None:
        steps.append((os.fstat(file).st_size, os.readlink(f"/proc/self/fd/{file}").rpartition("/")[2], names(tmp_path)))
        flush(file)

    def renamed(*args: Any, **options: Any) -> None:
        steps.append("rename")
        rename(*args, **options)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    call(parse(f"file:{tmp_path}"))
    (size, hidden, there), middle, (_, place, there_then) = steps
    assert size == (tmp_path / ID).stat().st_size
    assert hidden.startswith(".")
    assert hidden.endswith(".tmp")
    assert there == [hidden]
    assert middle == "rename"
    assert (place, there_then) == (tmp_path.name, [ID])


def test_a_half_written_file_of_a_killed_process_is_removed_later(tmp_path: Path) -> None:
    old, new, other = f".{ID}.0123abcd.tmp", f".{ID}.0123abce.tmp", ".profile"
    for name in (old, new, other):
        (tmp_path / name).write_bytes(b"half")
    for name in (old, other):
        os.utime(tmp_path / name, (0, 0))
    parse(f"file:{tmp_path}").open()
    assert names(tmp_path) == sorted([new, other])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_q12_a_disk_that_is_full_burns_no_attempt_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(file: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)
    assert_not_reached(call(parse(f"file:{tmp_path}")))
    assert names(tmp_path) == []


def test_a_directory_that_went_away_burns_no_attempt_and_may_come_back(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    caller = parse(f"file:{place}").open()
    place.rmdir()
    assert_not_reached(caller(request()))
    place.mkdir()
    assert isinstance(caller(request()), Replied)


def test_a_name_that_is_too_long_is_final(tmp_path: Path) -> None:
    outcome = call(parse(f"file:{tmp_path}?name={{id}}{{header.x}}"), request(headers={"x": "y" * 250}))
    assert isinstance(outcome, Rejected)
    assert names(tmp_path) == []


def test_two_tasks_that_write_the_same_message_do_not_meet(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    caller, body = parse(f"file:{tmp_path}").open(), os.urandom(1 << 20)
    list(pool.map(caller, [request(body)] * 4))
    assert names(tmp_path) == [ID]
    assert (tmp_path / ID).read_bytes() == body


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("{correlation_id}", r"lacks \{id\}"),
        ("{id}{body}", "no field 'body'"),
        ("../{id}", "no plain name"),
        (".{id}", "no plain name"),
    ],
)
def test_names_that_would_not_do_are_found_before_any_work(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ServiceError, match=text):
        parse(f"file:{tmp_path}?name={name}").check()


@pytest.mark.parametrize(("directory", "text"), [("", "names no directory"), ("/no/such/place", "no directory '/no")])
def test_a_directory_that_is_not_there_is_found_before_any_work(directory: str, text: str) -> None:
    with pytest.raises(ServiceError, match=text):
        parse(f"file:{directory}").check()


@pytest.mark.parametrize("place", ["", "committed", "drop", "drop/orders", "drop/orders/deeper"])
def test_a_directory_in_a_queue_space_is_refused(tmp_path: Path, place: str) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
    (tmp_path / "space" / "drop" / "orders" / "deeper").mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to(tmp_path / "space" / place)
    for directory in (tmp_path / "space" / place, tmp_path / "link"):
        with pytest.raises(ServiceError, match=r"inside the queue space .*: name another directory, or queue:NAME@"):
            parse(f"file:{directory}").check()
        with pytest.raises(ServiceError, match="inside the queue space"):
            parse(f"file:{directory}").open()


@pytest.mark.parametrize("commits", [0, 1])
def test_a_mirror_of_a_queue_space_is_refused(tmp_path: Path, commits: int) -> None:
    """A mirror removes files that its space does not have."""
    mirror = tmp_path / "mirror"
    with spool.create(tmp_path / "space", mirror=str(mirror)) as space:
        space.create_queue("orders")
        for _ in range(commits):
            space.put("orders", "one")
        before = names(mirror)
        for use in (parse(f"file:{mirror}").check, parse(f"file:{mirror}").open):
            with pytest.raises(ServiceError, match="is the mirror of a queue space"):
                use()
    assert names(mirror) == before


def check_refusal(caller: Caller, directory: Path, reason: str) -> None:
    before = names(directory)
    assert_not_reached(caller(request(b"later")), reason)
    assert names(directory) == before


def test_q12_nothing_is_written_into_a_mirror_that_was_begun_since(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    caller = parse(f"file:{mirror}").open()
    spool.create(tmp_path / "space", mirror=str(mirror)).close()
    check_refusal(caller, mirror, "is the mirror of a queue space")


@pytest.mark.parametrize("how", ["a space is made there", "a link leads there"])
def test_q12_nothing_is_written_into_a_space_that_was_made_since(tmp_path: Path, how: str) -> None:
    place, away = tmp_path / "place", tmp_path / "away"
    away.mkdir()
    place.symlink_to(away)
    caller = parse(f"file:{place}").open()
    assert isinstance(caller(request()), Replied)
    if how == "a space is made there":
        spool.create(away).close()
    else:
        spool.create(tmp_path / "space").close()
        place.unlink()
        place.symlink_to(tmp_path / "space" / "drop")
    check_refusal(caller, place, "inside the queue space")
