"""spool-admin top: the program, with a terminal and without one.

The terminal is a pseudo-terminal whose screen the tests keep: a program that writes any sequence besides its own few
fails the test.
"""

import fcntl
import grp
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import spool
import xa
from spool.watch.published import publish
from tests import door
from tests.branches import voting
from tests.scripts.conftest import Run, one_line
from tests.scripts.top_samples import seen
from tests.watch.samples import metrics, queue_stats
from xaspool_scripts.watch.top.view import plain_picture

# -- one picture -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--once"], []])
def test_without_a_terminal_one_picture_is_printed(run: Run, path: Path, words: list[str]) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors")
        space.put("errors", b"x")
        done = run("top", *words)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.text
    assert "! Error queue errors has 1 failed message." in done.text
    assert "every" not in done.text
    assert re.search(r"^! errors +errors +1 ", done.text, re.MULTILINE)
    assert re.search(r"^  orders +0 ", done.text, re.MULTILINE)


def test_one_picture_has_all_queues_with_whole_names_in_the_chosen_order(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        for number in range(60):
            space.create_queue(f"{'q' * 100}{number:02}")
        done = run("top", "--once", "--sort", "queue")
    names = re.findall(r"^  (\w+) +0 ", done.text, re.MULTILINE)
    assert len(names) == 62
    assert names == sorted(names)


def test_one_picture_has_all_troubles() -> None:
    names = [f"errors-{n}" for n in range(9)]
    given = {name: queue_stats(ready=1) for name in names}
    state = seen(metrics(queues=given, roles=dict.fromkeys(names, "error")))
    assert plain_picture(state).count("! Error queue") == 9
    assert "more: see" not in plain_picture(state)


@pytest.mark.every(4)
@pytest.mark.parametrize("words", ["export -", "metrics", "top --once", "top", "console"])
def test_a_closed_standard_output_is_one_line(path: Path, words: str) -> None:
    code = "from xaspool_scripts.start import admin; admin()"
    command = [sys.executable, "-c", code, "-s", str(path), *words.split()]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "spool-admin: standard output is closed\n")


@pytest.mark.parametrize("words", [["--once"], []])
def test_json_is_one_object_with_the_figures(run: Run, path: Path, words: list[str]) -> None:
    with spool.open(path) as space:
        space.put("orders", b"x")
        (found,) = run("top", *words, "--json").objects
    assert found["queues"]["orders"]["ready"] == 1
    assert (found["roles"]["orders"], found["references"]["orders"]["error_queue"]) == ("work", None)
    assert all(isinstance(each["key"], list) and isinstance(each["value"], int) for each in found["counts"])
    assert found["space"] == str(path)


def test_published_metrics_are_shown_and_an_error_without_them(run: Run, path: Path) -> None:
    one_line(run("top", "--published", "--once"), "publishes no metrics", code=1)


# -- on a terminal -----------------------------------------------------------------------------------------------------

DEADLINE_SECONDS = 20.0
_SEQUENCE = re.compile(r"\x1b\[(\?|)([\d;]*)([a-zA-Z])|([^\x1b]+)|(\x1b)")


class Screen:
    """The screen of a terminal, from the few sequences that the program writes. Another sequence is an error.

    columns: the width. After a full line, the cursor remains on the last column, and K clears that column.
    """

    def __init__(self) -> None:
        self.columns = 80
        self.lines: dict[int, str] = {}
        self.modes: set[str] = set()
        self.row = 1
        self.colours = False

    def feed(self, data: str) -> None:
        for is_mode, numbers, letter, text, other in _SEQUENCE.findall(data):
            assert not other, data
            if text:
                self.lines[self.row] = self.lines.get(self.row, "") + text
            elif is_mode:
                {"h": self.modes.add, "l": self.modes.discard}[letter](numbers)
            elif letter == "H":
                self.row = int(numbers.split(";")[0])
                self.lines[self.row] = ""
            elif letter == "J":
                self.lines = {}
            elif letter == "K":
                line = self.lines.get(self.row, "")
                self.lines[self.row] = line[:-1] if cell_len(line) >= self.columns else line
            else:
                assert letter == "m", data
                self.colours |= any(30 <= int(each) <= 49 for each in re.findall(r"\d+", numbers))

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for _, line in sorted(self.lines.items()))


class Terminal:
    """``spool-admin top`` as the session of a pseudo-terminal."""

    def __init__(self, path: Path, *words: str, size: tuple[int, int] = (24, 80), **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.theirs = os.dup(theirs)
        self.screen, self.raw, self._kept = Screen(), b"", ""
        self.resize(*size)
        self.before = termios.tcgetattr(self.theirs)
        code = "from xaspool_scripts.start import admin; admin()"
        command = [sys.executable, "-c", code, "-s", str(path), "top", "--interval", "0.1", *words]
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**known, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        )  # fmt: skip
        os.close(theirs)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.columns = columns

    def send(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def read(self, seconds: float) -> None:
        """Read the output that arrives within this time."""
        if select.select([self.ours], [], [], seconds)[0]:
            try:
                data = os.read(self.ours, 65_536)
            except OSError:
                return  # the program has ended
            self.raw += data
            self._kept += data.decode("utf-8", "ignore")
            whole = self._kept.rfind("\x1b") if re.search(r"\x1b\[?[?\d;]*$", self._kept) else len(self._kept)
            self.screen.feed(self._kept[:whole])
            self._kept = self._kept[whole:]

    def until(self, is_so: Callable[[str], object]) -> str:
        """Read until the screen is as wanted; return its text."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not is_so(self.screen.text):
            assert time.monotonic() < end, self.screen.text
            assert self.process.poll() is None, self.screen.text
            self.read(0.1)
        return self.screen.text

    def shows(self, *words: str) -> str:
        return self.until(lambda text: all(word in text for word in words))

    def end(self) -> int:
        """Read until the program has ended; return its exit code."""
        end = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, self.screen.text
            self.read(0.05)
        while select.select([self.ours], [], [], 0)[0]:
            self.read(0)
        return self.process.returncode

    def quit(self, key: bytes = b"q") -> None:
        """Type a key that ends the program: it ends well, and the terminal is as before."""
        self.send(key)
        assert self.end() == 0
        self.check_restored()

    def check_restored(self) -> None:
        """The terminal is as before: its attributes, its screen, its cursor, and the wrapping of lines."""
        assert termios.tcgetattr(self.theirs) == self.before
        assert self.screen.modes == {"25", "7"}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for handle in (self.ours, self.theirs):
            try:
                os.close(handle)
            except OSError:
                pass  # the test has closed it


@contextmanager
def terminal(path: Path, *words: str, **given: Any) -> Iterator[Terminal]:
    shown = Terminal(path, *words, **given)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def busy(path: Path) -> Iterator[spool.Space]:
    """The space with a stuck error queue, a transaction that holds a message, and one in doubt."""
    with spool.open(path) as space:
        space.change_queue("orders", error_queue="errors")
        space.create_queue("replies")
        space.put_many("orders", [b"1", b"2", b"3"])
        space.put("errors", b"x")
        manager = xa.ResourceManager(space)
        xid = xa.Xid(7, b"gone", b"1")
        with voting(manager, xid):
            space.put("replies", b"x")
        held = space.transaction(timeout=None)
        held.get("orders")
        yield space
        held.rollback()


def test_a_view_of_a_space_and_its_keys(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(40, 100)) as shown:
        text = shown.shows("Error queue errors has 1 failed message", "1 transaction is in doubt", "orders")
        assert "1049" in shown.screen.modes
        assert text.index("! replies") < text.index("! errors") < text.index("  orders")
        assert re.search(r"^  orders +2 ", text, re.MULTILINE)
        assert len(text.splitlines()) == 40
        busy.put_many("orders", [b"x"] * 5)
        shown.until(lambda text: re.search(r"^  orders +7 ", text, re.MULTILINE))

        shown.send(b"/ord")
        shown.until(lambda text: "filter: ord" in text and "! errors" not in text)
        shown.send(b"\x1b")
        shown.shows("! errors")
        shown.send(b"N")
        shown.until(lambda text: "ready↓" in text and text.index("  orders") < text.index("! errors"))
        shown.send(b"\x1b[B\r")
        shown.shows("Queue errors", "is error queue of    orders")
        shown.send(b"\x1b")
        shown.shows("ready↓")
        shown.send(b"\x1b[F\r")
        shown.shows("Queue replies", "Holders", f"{os.getpid()} ")
        shown.send(b"\x1b")
        shown.shows("ready↓")
        shown.send(b"\x1bOP")
        shown.shows("change the interval")
        shown.quit()


@pytest.mark.slow
def test_the_last_column_is_whole(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(24, 80)) as shown:
        text = shown.shows("! replies", "orders")
        (heading,) = (line for line in text.splitlines() if line.startswith("  queue"))
        (row,) = (line for line in text.splitlines() if line.startswith("! replies"))
        assert heading.endswith(" doubt")
        assert row.endswith(" 1")
        assert len(heading) == len(row) == 80


@pytest.mark.slow
def test_a_deleted_space_is_unreadable_and_the_last_figures_have_their_age(path: Path) -> None:
    with terminal(path, size=(24, 100)) as shown:
        shown.shows("orders", "running")
        shutil.rmtree(path)
        text = shown.until(lambda text: re.search("UNREADABLE  figures of [1-9] s ago", text))
        assert "cannot be read" in text
        assert "  orders" in text
        shown.quit()


@pytest.mark.slow
def test_a_pause_keeps_the_picture(path: Path, busy: spool.Space) -> None:
    with terminal(path, size=(40, 100)) as shown:
        shown.shows("orders")
        shown.send(b"p")
        shown.shows("PAUSED")
        busy.put("errors", b"y")
        shown.send(b"h")
        assert "has 1 failed message" in shown.shows("change the interval")
        shown.send(b"hp")
        shown.shows("errors has 2 failed messages")


@pytest.mark.slow
def test_a_new_size_is_a_new_picture(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders", "doubt")
        shown.resize(10, 130)
        text = shown.shows("orders", "doubt", "delayed", "bytes")
        assert len(text.splitlines()) == 10
        shown.resize(5, 20)
        shown.until(lambda text: len(text.splitlines()) == 5 and max(map(len, text.splitlines())) <= 20)
        shown.quit(b"\x1b[21~")


@pytest.mark.every(3, first=2)
@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (b"\x03", 130)], ids=["TERM", "HUP", "Ctrl-C"]
)
def test_a_signal_restores_the_terminal(path: Path, end: signal.Signals | bytes, code: int) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        assert termios.tcgetattr(shown.theirs) != shown.before
        if isinstance(end, bytes):
            shown.send(end)
        else:
            shown.process.send_signal(end)
        assert shown.end() == code
        shown.check_restored()


def test_a_closed_terminal_ends_the_program(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        os.close(shown.ours)
        os.close(shown.theirs)
        assert shown.process.wait(DEADLINE_SECONDS) in (0, -signal.SIGHUP)


def test_a_terminal_that_takes_no_output_does_not_keep_the_program(path: Path) -> None:
    with spool.open(path) as space:
        for number in range(200):
            space.create_queue(f"more-{number}")
    with terminal(path, size=(200, 500)) as shown:
        shown.until(lambda text: len(text.splitlines()) == 200)
        shown.send(b"\x0c")  # a picture without a reader, which no buffer of a terminal holds
        assert select.select([shown.ours], [], [], DEADLINE_SECONDS)[0]
        shown.process.send_signal(signal.SIGTERM)
        assert shown.process.wait(DEADLINE_SECONDS) == 0
        assert termios.tcgetattr(shown.theirs) == shown.before


def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(path: Path) -> None:
    with terminal(path) as shown:
        shown.shows("orders")
        shown.process.send_signal(signal.SIGTSTP)
        end = time.monotonic() + DEADLINE_SECONDS
        # Without a shell, the process group is an orphan, and the kernel does not stop it: it goes on at once.
        while shown.raw.count(b"\x1b[?1049h") < 2:
            assert time.monotonic() < end
            shown.read(0.1)
        assert shown.raw.count(b"\x1b[?1049l") == 1
        shown.shows("orders")
        shown.quit()


def test_a_bug_restores_the_terminal_and_is_one_line(path: Path) -> None:
    with terminal(path) as shown:
        code = (
            "import xaspool_scripts.watch.top.model as model; from xaspool_scripts.start import admin\n"
            "def broken(*_): raise ZeroDivisionError('division by zero')\n"
            "model.pressed = broken\nadmin()"
        )
        shown.process.kill()
        shown.end()
        theirs = os.dup(shown.theirs)
        command = [sys.executable, "-c", code, "-s", str(path), "top"]
        shown.before = termios.tcgetattr(shown.theirs)
        shown.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        shown.screen.modes = {"25", "7"}
        termios.tcsetattr(shown.theirs, termios.TCSANOW, shown.before)
        shown.shows("orders")
        shown.send(b"j")
        assert shown.end() == 1
        assert termios.tcgetattr(shown.theirs) == shown.before
        assert "1049" not in shown.screen.modes
        assert b"please report" in shown.raw


@pytest.mark.every(2)
@pytest.mark.parametrize("colour", [True, False])
def test_no_color_is_honoured_and_troubles_have_signs(path: Path, busy: spool.Space, colour: bool) -> None:
    with terminal(path, **({} if colour else {"NO_COLOR": "1"})) as shown:
        shown.shows("! errors")
        assert shown.screen.colours is colour


def test_a_hostile_space_controls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[red]"
    path = tmp_path / f"space {evil}\n"
    monkeypatch.setattr(sys, "argv", [f"{evil}worker"])
    with spool.create(path) as space:
        space.create_queue("orders")
        space.put_many("orders", [b"1", b"2"])
        (path / "quarantine" / f"{evil}.json").touch()
        for state in ("route", "route_down"):
            space.engine.meters.change(state, "orders", f"http://{evil}", by=1)
        space.engine.meters.add("outcomes", evil, "orders", evil)
        with space.transaction() as held:
            held.get("orders")
            with terminal(path, size=(40, 120)) as shown:
                shown.shows("orders", "route down", "\\x1b[31m")
                shown.send(b"\r")
                shown.shows("DOWN", "claimed", "takes 1")
                shown.send(b"h")
                shown.shows("change the interval")
                shown.quit()
            for injected in (b"\x1b[31m\x1b]", b"\x1b]0;", b"\x07", b"\xc2\x9b", "\u202e".encode()):
                assert injected not in shown.raw
            assert b"[red]" in shown.raw


@pytest.mark.slow
def test_a_space_that_stops_is_said_and_the_view_goes_on(path: Path) -> None:
    with spool.open(path) as space, terminal(path, size=(24, 120)) as shown:
        shown.shows("orders", "running")
        door.store(space).shared.counters.stop()
        shown.until(lambda text: "STOPPED" in text or "cannot be read" in text)
        shown.send(b"h")
        shown.shows("change the interval")
        shown.quit()


@pytest.mark.slow
def test_published_metrics_are_shown_with_their_age(path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    with spool.open(path) as space:
        space.put_many("orders", [b"x"] * 3)
        publish(door.disk(space), replace(space.metrics(), at=time.time() - 60), group)
    with terminal(path, "--published", size=(24, 120)) as shown:
        text = shown.shows("published", "The published metrics are 1 min old")
        assert re.search(r"^  orders +3 ", text, re.MULTILINE)


@pytest.mark.slow
def test_a_dumb_terminal_gets_one_picture(path: Path) -> None:
    with terminal(path, TERM="dumb") as shown:
        assert shown.end() == 0
        assert b"\x1b" not in shown.raw
        assert b"orders" in shown.raw
