"""On a terminal: tables that are drawn, and NO_COLOR."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import spool


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
