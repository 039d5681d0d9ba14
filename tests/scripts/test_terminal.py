"""On a terminal: tables that are drawn, and NO_COLOR."""

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
from tests.scripts.conftest import Run, start
from xaspool_scripts.wording import age, span


def _on_a_terminal(*args: object, **environment: str) -> str:
    """What spool-admin shows on a terminal."""
    ours, theirs = pty.openpty()
    code = "from xaspool_scripts.admin import main; main()"
    shell = {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **shell}) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # the other end was closed
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


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
    for words in (["queue", "list"], ["queue", "show", "orders"], ["message", "list", "orders"], ["check"]):
        assert not colours.search(_on_a_terminal("-s", path, *words, NO_COLOR="1"))
    assert "\x1b" not in _on_a_terminal("-s", path, "queue", "list", TERM="dumb")


def test_a_body_is_written_as_it_is_on_a_terminal_too(path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"no newline")
    assert _on_a_terminal("-s", path, "message", "get", "orders") == "no newline"


@pytest.mark.parametrize(
    ("seconds", "spans", "ages"),
    [(0, "0 s", "0 s"), (0.25, "0.25 s", "0 s"), (59.9, "59.9 s", "1 min"), (90, "1 min 30 s", "1 min"),
     (1882.157, "31 min 22 s", "31 min"), (86_400, "1 d", "1 d"), (100_000, "1 d 3 h 46 min 40 s", "1 d")],
)  # fmt: skip
def test_times_for_people_have_units(seconds: float, spans: str, ages: str) -> None:
    assert (span(seconds), age(seconds)) == (spans, ages)


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
    with start("spool-admin", "-s", path, "queue", "list", "--watch", "0.01", "--json") as watched:
        assert watched.stdout is not None
        seen = [json.loads(watched.stdout.readline())["name"] for _ in range(4)]
        watched.send_signal(signal.SIGINT)
        watched.communicate(timeout=60)
    assert seen == ["errors", "orders"] * 2
    assert watched.returncode == 130
