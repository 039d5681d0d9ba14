"""Output on a terminal: drawn tables, and NO_COLOR."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import spool
from spool.watch.units import age, span
from tests.scripts.conftest import Run, start


def _on_a_terminal(*args: object, typed: str = "", code: int = 0, **environment: str) -> str:
    """Return the output of spool-admin on a terminal. ``typed``: the input. ``code``: the expected exit code."""
    ours, theirs = pty.openpty()
    source = "from xaspool_scripts.admin import main; main()"
    shell = {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    command = [sys.executable, "-c", source, *map(str, args)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **shell}) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # the other end was closed
    os.close(ours)
    assert process.returncode == code, shown
    return shown.decode()


@pytest.mark.slow
def test_a_table_is_drawn_and_keeps_every_character(path: Path) -> None:
    name = "q" * 127
    with spool.open(path) as space:
        space.create_queue(name)
    shown = _on_a_terminal("-s", path, "queue", "list")
    assert "─" in shown or "━" in shown
    assert "orders" in shown
    assert shown.count("q") == 127


def test_no_color_is_honoured(path: Path) -> None:
    colours = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|4[0-7])[0-9;]*m")
    for words in (["queue", "show", "orders"], ["message", "list", "orders"]):
        assert not colours.search(_on_a_terminal("-s", path, *words, NO_COLOR="1"))
    assert "\x1b" not in _on_a_terminal("-s", path, "queue", "list", TERM="dumb")


@pytest.mark.slow
def test_a_body_ends_with_a_line_end_on_a_terminal_only(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"no line end", b"one\n", b"as it is"])
    assert _on_a_terminal("-s", path, "message", "get", "orders") == "no line end\r\n"
    assert _on_a_terminal("-s", path, "message", "get", "orders") == "one\r\n"
    assert run("message", "get", "orders").out == b"as it is"


@pytest.mark.parametrize(
    ("seconds", "spans", "ages"),
    [(0, "0 s", "0 s"), (0.25, "0.25 s", "0 s"), (59.9, "59.9 s", "1 min"), (90, "1 min 30 s", "1 min"),
     (1882.157, "31 min 22 s", "31 min"), (86_400, "1 d", "1 d"), (100_000, "1 d 3 h 46 min 40 s", "1 d")],
)  # fmt: skip
def test_times_for_people_have_units(seconds: float, spans: str, ages: str) -> None:
    assert (span(seconds), age(seconds)) == (spans, ages)


@pytest.mark.slow
def test_times_are_for_people_on_a_terminal_and_numbers_of_seconds_elsewhere(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", retry_delay=90.0)
        space.put("orders", b"x")
    assert re.search(r"retry delay +1 min 30 s", _on_a_terminal("-s", path, "queue", "show", "orders"))
    assert re.search(r"retry delay +90 s", run("queue", "show", "orders").text)
    assert re.search(r"│ +\d+ s +│", _on_a_terminal("-s", path, "queue", "list"))
    header, *_, orders = run("queue", "list").text.splitlines()
    assert header.endswith("oldest (s)")
    assert float(orders.split()[-1]) >= 0


def test_a_list_that_is_watched_is_told_again_until_ctrl_c(path: Path) -> None:
    with start("spool-admin", "-s", path, "queue", "list", "--watch", "0.1", "--json") as watched:
        seen = [json.loads(watched.stdout.readline())["name"] for _ in range(4)]
        watched.send_signal(signal.SIGINT)
        watched.communicate(timeout=60)
    assert seen == ["errors", "orders"] * 2
    assert watched.returncode == 130


def test_a_purge_asks_on_a_terminal_and_says_how_many_and_which(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"1", b"2"])
        purge = ("-s", path, "queue", "purge", "orders", "--older-than", "0.001")
        shown = _on_a_terminal(*purge, typed="n\n", code=1)
        assert "delete 2 messages of queue orders older than 0.001 s? [y/N]" in shown
        assert "nothing was deleted" in shown
        assert space.stats("orders").ready == 2
        assert "deleted 2 messages" in _on_a_terminal(*purge, typed="y\n")
        ids = space.put_many("orders", [b"1", b"2"])
        assert "delete 2 messages? [y/N]" in _on_a_terminal("-s", path, "message", "delete", *ids, typed="n\n", code=1)
        assert "?" not in _on_a_terminal("-s", path, "message", "delete", *ids, "--yes")
        assert space.stats("orders").ready == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("columns", ["80", "150"])
def test_a_list_of_messages_is_a_table_that_fits_the_terminal(path: Path, columns: str) -> None:
    with spool.open(path) as space:
        space.create_queue("failed")
        space.change_queue("orders", retries=0, error_queue="failed")
        failed = space.put("orders", b"x" * 200)
        assert space.work("orders", lambda message: 1 / 0, once=True).dead_lettered == 1
        of_failed = _on_a_terminal("-s", path, "message", "list", "failed", COLUMNS=columns, NO_COLOR="1")
        ids = [space.put("orders", {"tea": 2, "to": "x" * 200}), space.put("orders", b"later", delay=7200)]
        shown = _on_a_terminal("-s", path, "message", "list", "orders", COLUMNS=columns, NO_COLOR="1")
    lines = (shown + of_failed).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, lines)) <= int(columns)
    in_row, in_counts = (line for line in lines if "ZeroDivisionError" in line)
    assert failed in in_row
    assert "by reason" in in_counts
    assert all(message_id in shown for message_id in ids)
    assert "delayed" in shown
    assert '{"tea": 2' in shown
    assert ("(due in " in shown) == (columns != "150")


@pytest.mark.slow
def test_a_body_is_shown_in_colours_on_a_terminal(path: Path) -> None:
    with spool.open(path) as space:
        message_id = space.put("orders", {"tea": 2})
    show = ("-s", path, "message", "show", message_id)
    assert "\x1b[" in _on_a_terminal(*show).rpartition("body")[2]
    assert '"tea": 2' in _on_a_terminal(*show, NO_COLOR="1", TERM="dumb")
