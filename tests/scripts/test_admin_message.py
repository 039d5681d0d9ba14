"""spool-admin message."""

import base64
import os
import signal
import time
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run, execute, one_line, start

AWKWARD = b"\x00\xff\xfe line\r\n\x1b[31m\x80 no newline at the end"
LONE = os.fsdecode(b"caf\xe9")


def test_a_body_from_standard_input_comes_back_byte_for_byte(path: Path) -> None:
    assert execute("spool-admin", "-s", path, "message", "put", "orders", stdin=AWKWARD).code == 0
    got = execute("spool-admin", "-s", path, "message", "get", "orders")
    assert (got.code, got.out, got.err) == (0, AWKWARD, "")


@pytest.mark.parametrize("body", [b"", bytes(range(256)) * 5000])
def test_a_body_from_a_file_comes_back_byte_for_byte(run: Run, tmp_path: Path, body: bytes) -> None:
    (tmp_path / "body").write_bytes(body)
    assert run("message", "put", "orders", "--file", tmp_path / "body").code == 0
    assert run("message", "get", "orders").out == body


def test_a_text_body_is_a_text_for_consumers(run: Run, path: Path) -> None:
    run("message", "put", "orders", "--body", "grün")
    with spool.open(path) as space:
        assert space.get("orders").body == "grün"


def test_an_argument_that_is_not_utf8_stays_as_it_was_typed(path: Path) -> None:
    put = execute("spool-admin", "-s", path, "message", "put", "orders", "--body", os.fsdecode(b"gr\xfcn"))
    assert put.code == 0
    with spool.open(path) as space:
        assert space.get("orders").body == b"gr\xfcn"


def test_put_prints_the_id_alone(run: Run) -> None:
    done = run("message", "put", "orders", "--body", "x")
    assert (len(done.text), done.text[-1], done.err) == (33, "\n", "")
    assert run("message", "show", done.text.strip()).code == 0
    (described,) = run("message", "put", "orders", "--body", "x", "--json").objects
    assert run("message", "show", described["id"]).code == 0


def test_every_option_of_put_arrives(run: Run, path: Path) -> None:
    due = time.time() + 7200
    run(
        *("message", "put", "orders", "--body", "{}", "--priority", 80, "--not-before", due, "--correlation-id", "c"),
        *("--reply-queue", "errors", "--failure-queue", "orders", "--user-code", -3, "--client-id", "me"),
        *("--application-key", "k", "--header", "a=b=c", "--header", "empty=", "--content-type", "application/json"),
    )
    with spool.open(path) as space:
        (found,) = space.browse("orders")
    assert (found.priority, found.correlation_id, found.user_code) == (80, "c", -3)
    assert (found.reply_queue, found.failure_queue, found.client_id) == ("errors", "orders", "me")
    assert (found.application_key, found.content_type) == ("k", "application/json")
    assert found.headers == {"a": "b=c", "empty": ""}
    assert found.not_before == pytest.approx(due, abs=1e-3)


def test_an_empty_queue_is_exit_code_3_and_no_output(run: Run) -> None:
    for options in (
        [],
        ["--json"],
        ["--timeout", "0.05"],
        ["--id", "0" * 32],
        ["--correlation-id", "none"],
        ["--correlation-id", "none", "--timeout", "0.05"],
    ):
        done = run("message", "get", "orders", *options)
        assert (done.code, done.out) == (3, b""), options
        one_line(done, "orders")


def test_get_takes_by_id_and_by_correlation_id(run: Run) -> None:
    run("message", "put", "orders", "--body", "1")
    second = run("message", "put", "orders", "--body", "2").text.strip()
    run("message", "put", "orders", "--body", "3", "--correlation-id", "c")
    assert run("message", "get", "orders", "--correlation-id", "c").out == b"3"
    assert run("message", "get", "orders", "--id", second).out == b"2"
    assert run("message", "get", "orders").out == b"1"


def test_get_waits_for_a_message_as_long_as_it_was_told_to(path: Path) -> None:
    with start("spool-admin", "-s", path, "message", "get", "orders", "--timeout", "forever") as waiting:
        time.sleep(0.5)
        assert waiting.poll() is None
        execute("spool-admin", "-s", path, "message", "put", "orders", stdin=b"at last")
        assert waiting.communicate(timeout=30)[0] == b"at last"


def test_json_has_the_attribute_names_and_says_how_the_body_is_written(run: Run, path: Path) -> None:
    run("message", "put", "orders", stdin=AWKWARD)
    run("message", "put", "orders", "--body", "grün\n\x00", "--header", "a=b")
    first, second = run("message", "list", "orders", "--json").objects
    assert (base64.b64decode(first["body"]), first["body_encoding"]) == (AWKWARD, "base64")
    assert (second["body"], second["body_encoding"]) == ("grün\n\x00", "utf-8")
    with spool.open(path) as space:
        expected = next(space.browse("orders")).as_dict()
    assert first.keys() == expected.keys() | {"body_encoding", "body_bytes", "body_cut", "state", "holder", "task"}
    assert second["headers"] == {"a": "b"}
    assert run("message", "show", first["id"], "--json").objects == [first]
    assert (first.pop("state"), first.pop("holder"), first.pop("task")) == ("ready", None, None)
    assert run("message", "get", "orders", "--json").objects == [first]


def test_list_takes_nothing_and_shows_no_more_than_it_was_asked_for(run: Run) -> None:
    put = "message", "put", "orders", "--body", "x", "--correlation-id"
    ids = [run(*put, f"c{i % 2}").text.strip() for i in range(5)]
    assert [line.split()[0] for line in run("message", "list", "orders").text.splitlines()[1:]] == ids
    assert [each["id"] for each in run("message", "list", "orders", "--json", "--limit", 2).objects] == ids[:2]
    found = run("message", "list", "orders", "--json", "--correlation-id", "c1").objects
    assert [each["id"] for each in found] == ids[1::2]


def test_listing_an_empty_queue_is_fine(run: Run) -> None:
    one_line(run("message", "list", "orders"), "empty", code=0)


def test_a_message_cannot_steer_the_terminal(run: Run) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\x9b1m"
    message_id = run("message", "put", "orders", "--body", evil, "--correlation-id", evil).text.strip()
    for shown in (run("message", "list", "orders").text, run("message", "show", message_id).text):
        assert not any((0 < ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in shown)
        assert "owned" in shown


def test_a_message_whose_body_could_not_be_written_stays_and_no_attempt_is_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spool.open(path) as space:
        space.put("orders", b"x" * 300_000)
    with open("/dev/full", "wb") as full:
        done = execute("spool-admin", "-s", path, "message", "get", "orders", stdout=full)
    one_line(done, "No space left on device", code=1)
    reader, writer = os.pipe()
    os.close(reader)
    done = execute("spool-admin", "-s", path, "message", "get", "orders", stdout=writer)
    os.close(writer)
    assert (done.code, done.err) == (1, "")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with start("spool-admin", "-s", path, "message", "get", "orders") as getting:
        assert getting.stdout is not None
        assert getting.stdout.read(1) == b"x"
        getting.stdout.close()
        assert getting.wait(60) == 1
    with spool.open(path) as space:
        assert [len(found.body) for found in space.browse("orders")] == [300_000]
        assert space.get("orders").attempts == 0


def test_an_interrupted_get_is_exit_code_130_without_a_traceback_and_takes_nothing(path: Path) -> None:
    with start("spool-admin", "-s", path, "message", "get", "orders", "--timeout", "forever") as waiting:
        time.sleep(1)
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (130, b"")
    assert err.strip() == b"spool-admin: interrupted"
    with spool.open(path) as space:
        space.put("orders", b"x")
        assert space.get("orders").body == b"x"


def test_a_list_that_is_cut_off_by_its_reader_ends_quietly(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"x" * 100] * 5000)
    with start("spool-admin", "-s", path, "message", "list", "orders") as listing:
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == 1


def test_a_put_with_a_key_that_was_put_before_says_so(run: Run) -> None:
    put = ("message", "put", "orders", "--body", "x", "--deduplication-key", "k")
    first, second, third = run(*put), run(*put), run(*put, "--json")
    assert (first.code, second.code, first.out, first.err) == (0, 0, second.out, "")
    one_line(second, f"message {first.text.strip()}", "nothing was put")
    assert third.objects == [{"id": first.text.strip(), "duplicate": True}]
    assert run("message", "put", "orders", "--body", "x", "--json").objects[0].keys() == {"id"}
