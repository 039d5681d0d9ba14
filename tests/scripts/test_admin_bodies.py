"""spool-admin message: the display of bodies, states and holders; many messages at once; output that fails."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import spool
from spool.format.writer import writer_name
from tests.admin.test_listing import held_by_another
from tests.scripts.conftest import Run, execute, flip, newest, one_line

# -- 2.6, 2.7: held and damaged messages -------------------------------------------------------------------------------


def test_a_dry_run_of_a_purge_counts_messages_and_names_held_ones(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        held, *_ = space.put_many("orders", [b"1", b"2", b"3"])
    with held_by_another(str(path)) as pid:
        dry = run("queue", "purge", "orders", "--dry-run")
        assert dry.out == b"2\n"
        assert "1 message of queue orders is held and remains" in dry.err
        listed = run("message", "list", "orders")
        line = next(line for line in listed.text.splitlines() if line.startswith(held))
        assert " claimed " in line
        assert f"process {pid} ({writer_name()['program']})" in line
        shown = run("message", "show", held).text
        assert f"process {pid} ({writer_name()['program']})" in shown
        assert "claimed since" in shown
        (described,) = run("message", "show", held, "--json").objects
        assert (described["state"], described["holder"]["pid"]) == ("claimed", pid)
        assert run("queue", "purge", "orders").out == b"2\n"
    assert run("message", "list", "orders", "--json").objects[0]["state"] == "ready"


def test_a_list_names_damaged_messages_and_ends_with_exit_code_4(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"1")
        damaged = space.put("orders", b"2")
    flip(newest(path), -1)
    for options in ([], ["--json"], ["--limit", 2]):
        done = run("message", "list", "orders", *options)
        one_line(done, f"message {damaged} of queue orders (position 2/0) is damaged", "spool-admin check --repair")
        assert (done.code, done.out.count(b"\n")) == (4, 1 if "--json" in options else 2)
    one_line(run("message", "show", damaged), damaged, "damaged", code=4)
    run("message", "get", "orders")
    taken = run("message", "get", "orders")
    assert taken.code == 3
    assert f"message {damaged} of queue orders was not delivered" in taken.err
    checked = run("check")
    assert (checked.code, checked.out.count(b"quarantine/")) == (4, 1)
    one_line(checked, "damage is left in quarantine/: 1 file", "spool-admin quarantine list")


# -- 2.13: output that fails -------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("options", [["--body", "x"], ["--body", "x", "--json"], ["--each-line"]])
def test_a_put_whose_output_cannot_be_written_says_that_the_message_is_in_the_queue(path: Path, options: list[str]):
    with open("/dev/full", "wb") as full:
        done = execute("spool-admin", "-s", path, "message", "put", "orders", *options, stdin=b"x\ny\n", stdout=full)
    assert done.code == 1
    with spool.open(path) as space:
        ids = [message.id for message in space.browse("orders")]
    what = f"message {ids[0]} is" if len(ids) == 1 else "2 messages are"
    one_line(done, f"{what} in queue orders", "could not be written", "No space left on device")


# -- bodies that the product wrote can be read with the product --------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "lines", "value"),
    [
        ({"tea": [2, None]}, None, ['  "tea": [', "    2,"], True),
        ({"tea": 2}, "application/json", ['  "tea": 2'], True),
        (b'{"tea":2}', "application/json", ['  "tea": 2'], True),
        ("two teas", None, ["two teas"], False),
        (b"two teas", None, ["two teas"], False),
        (b"\x00\xfftea", None, ["00 ff 74 65 61", "..tea"], False),
        ({1: b"x", "at": datetime(2030, 1, 1, tzinfo=UTC)}, None, ['"1": "b\'x\'"', "2030-01-01T00:00"], False),
        (b'{"tea":', "application/json", ['{"tea":'], False),
        ({"evil": "\x1b[2J"}, None, ["\\u001b[2J"], True),
    ],
)
def test_a_body_is_shown_decoded(
    run: Run, path: Path, body: object, content_type: str | None, lines: list[str], value: bool
) -> None:
    with spool.open(path) as space:
        message_id = space.put("orders", body, content_type=content_type)
    shown = run("message", "show", message_id).text
    assert all(line in shown for line in lines), shown
    assert "\x1b" not in shown
    (found,) = run("message", "show", message_id, "--json").objects
    assert ("value" in found) == value
    assert run("message", "show", message_id, "--raw").out == run("message", "get", "orders").out


def test_a_long_body_is_shown_as_it_begins_with_a_word_about_the_rest(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        ids = [space.put("orders", "ü" * 100_000), space.put("orders", b"\xff" * 3_000_000)]
    for message_id, part in zip(ids, ("65,536 characters of the body", "4.0 kB of 3.0 MB"), strict=True):
        done = run("message", "show", message_id)
        assert len(done.out) < 400_000
        one_line(done, f"this is the first {part}; --raw writes all of it")


def test_a_list_shows_a_piece_of_each_body(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", {"tea": 2})
        space.put("orders", "a text\nof two lines")
        space.put("orders", b"\x00\xff")
        space.put("orders", b"x" * 500)
    _, *lines = run("message", "list", "orders").text.splitlines()
    for line, piece in zip(lines, ['{"tea": 2}', "a text of two lines", "bytes 00 ff", "x" * 45 + "…"], strict=True):
        assert line.endswith(f"  {piece}")
    assert max(map(len, lines)) == 120


def test_json_cuts_a_large_body_and_whole_prints_all_of_it(run: Run, path: Path) -> None:
    large, text = b"1" * 70_000, "€" * 30_000  # (the cut divides a character)
    with spool.open(path) as space:
        ids = [space.put("orders", large, content_type="text/plain"), space.put("orders", text)]
        ids.append(space.put("orders", int(large[:10])))
    listed = run("message", "list", "orders", "--json")
    one_line(listed, "2 bodies are cut after 65,536 bytes; --whole prints whole bodies")
    first, second, third = listed.objects
    assert (first["body"], first["body_bytes"], first["body_cut"]) == ("1" * 65_536, 70_000, True)
    assert (second["body"], second["body_bytes"], second["body_cut"]) == ("€" * 21_845, 90_000, True)
    assert (third["body_bytes"], third["body_cut"], third["value"]) == (5, False, int(large[:10]))
    assert not {"value"} & (first.keys() | second.keys())  # the value of a part is not the value of the body
    shown = run("message", "show", ids[0], "--json")
    assert shown.objects == [first]
    one_line(shown, "1 body is cut after 65,536 bytes; --whole prints whole bodies")
    whole = run("message", "list", "orders", "--json", "--whole")
    assert (whole.err, [each["body_cut"] for each in whole.objects]) == ("", [False] * 3)
    assert whole.objects[0]["body"].encode() == large == run("message", "show", ids[0], "--raw").out
    assert run("message", "show", ids[1], "--json", "--whole").objects == [whole.objects[1]]
    assert run("message", "move", ids[0], "errors", "--json").objects[0]["body_cut"]
    one_line(run("message", "list", "orders", "--whole"), "--whole is for --json")
    assert run("message", "get", "orders", "--json").objects[0]["body"] == text


def test_lists_and_show_read_only_the_beginning_of_a_large_body(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        message_id = space.put("orders", "first words " + "x" * (8 << 20))
        space.put_many("orders", ["y" * (4 << 20)] * 2)
    for words in (["list", "orders", "--json"], ["show", message_id]):
        code = "import sys; from spool.disk.disk import Disk; from xaspool_scripts.admin import main\n"
        code += "read, count = Disk.read_at, []\n"
        code += "def counted(*a): count.append(len(found := read(*a))); return found\n"
        code += "Disk.read_at = counted\n"
        code += "try: main()\nfinally: print(sum(count), file=sys.stderr)"
        command = [sys.executable, "-c", code, "-s", str(path), "message", *words]
        done = subprocess.run(command, capture_output=True, check=True)
        assert b"first words" in done.stdout
        assert int(done.stderr.split()[-1]) < 2 << 20, words


# -- JSON from the shell -----------------------------------------------------------------------------------------------


def test_json_from_the_shell_is_json_in_python_and_keeps_its_bytes(run: Run, path: Path, tmp_path: Path) -> None:
    text = b'{"a":   1.50}\n'
    (tmp_path / "a.json").write_bytes(text)
    kind = ("--content-type", "application/json; charset=utf-8")
    run("message", "put", "orders", "--body", text.decode(), *kind)
    run("message", "put", "orders", "--file", tmp_path / "a.json", *kind)
    run("message", "put", "orders", *kind, stdin=text)
    assert run("message", "get", "orders").out == text
    with spool.open(path) as space:
        for message in space.get_many("orders", 2):
            assert (message.body, message.codec, message.content_type) == ({"a": 1.5}, "json", kind[1])


def test_msgpack_from_the_shell_is_a_value_in_python(run: Run, path: Path) -> None:
    run("message", "put", "orders", "--content-type", "application/msgpack", stdin=b"\x81\xa1a\x01")
    with spool.open(path) as space:
        assert space.get("orders").body == {"a": 1}


def test_lines_of_which_one_is_not_json_put_nothing(run: Run) -> None:
    kind = ("--content-type", "application/json")
    assert run("message", "put", "orders", "--each-line", *kind, stdin=b"1\n{\n").code == 2
    assert run("message", "get", "orders").code == 3


# -- several at once ---------------------------------------------------------------------------------------------------


def test_each_line_of_the_input_is_a_message_and_all_are_one_commit(run: Run, path: Path) -> None:
    before = len(list((path / "committed").iterdir()))
    done = run("message", "put", "orders", "--each-line", "--priority", 7, stdin=b"one\n\ntwo\r\nthree")
    assert len(list((path / "committed").iterdir())) == before + 1
    with spool.open(path) as space:
        found = list(space.browse("orders"))
    assert [message.body for message in found] == [b"one", b"", b"two\r", b"three"]
    assert done.text.split() == [message.id for message in found]
    assert {message.priority for message in found} == {7}
    one_line(run("message", "put", "orders", "--each-line"), "nothing was put", code=0)


def test_many_messages_are_taken_in_one_commit(run: Run, path: Path, tmp_path: Path) -> None:
    with spool.open(path) as space:
        ids = space.put_many("orders", [b"%d" % n for n in range(250)])
    before = {file.name for file in (path / "committed").iterdir()}
    found = run("message", "get", "orders", "--count", 120, "--json").objects
    assert [each["id"] for each in found] == ids[:120]
    assert len({file.name for file in (path / "committed").iterdir()} - before) == 1
    (tmp_path / "inbox").mkdir()
    done = run("message", "get", "orders", "--all", "--directory", tmp_path / "inbox")
    assert done.text.split() == [str(tmp_path / "inbox" / each) for each in ids[120:]]
    assert (tmp_path / "inbox" / ids[249]).read_bytes() == b"249"
    assert run("message", "get", "orders", "--all", "--json").code == 3


def test_a_list_of_a_hundred_thousand_begins_at_once_and_reads_no_more_than_is_asked_for(path: Path) -> None:
    with spool.open(path) as space:
        for _ in range(10):
            space.put_many("orders", [b"x"] * 10_000)
    code = "from xaspool_scripts.admin import main; import spool.admin.listing as c, sys\n"
    code += "read = c.peek; count = []\nc.peek = lambda *a: (count.append(1), read(*a))[1]\n"
    code += "try: main()\nfinally: print(len(count), file=sys.stderr)"
    command = [sys.executable, "-c", code, "-s", str(path), "message", "list", "orders", "--limit", "10", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 10
    assert int(done.stderr) <= 11
