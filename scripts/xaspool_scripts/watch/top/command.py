"""``spool-admin top``: a live view of a space in a terminal."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.options import short_duration
from xaspool_scripts.terminal.output import write_bytes, write_json
from xaspool_scripts.terminal.program import SpaceCommand, describe, json_option
from xaspool_scripts.watch.space import Watched, published_option, watched_space

if TYPE_CHECKING:
    import logging

    from spool import SpaceMetrics
    from xaspool_scripts.watch.top.figures import Sample
    from xaspool_scripts.watch.top.model import State

# Names of ``figures.SORTABLE``, which is not imported here, because help and completion do not need rich.
SORTS = (
    "trouble", "queue", "ready", "age", "in/s", "out/s", "fail/s", "claimed", "doubt", "delayed", "bytes", "rate",
)  # fmt: skip
_DEFAULT_SECONDS = 2.0
_MOST_SHARE, _LONGEST_PACE = 0.007, 10.0  # of a processor, and in seconds: for a program without --interval
_MOST_READ = 4_096
_PATIENCE_SECONDS = 1.0
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # another screen, no cursor, no wrapping of long lines
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


@click.command(cls=SpaceCommand)
@click.option(
    "--interval", type=short_duration, metavar="TIME",
    help="The time between two pictures, in seconds or e.g. 1m; 2s if not given, and longer if the space has very many "
    "queues.",
)  # fmt: skip
@published_option
@click.option("--once", is_flag=True, help="Print one picture as plain text, and end.")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], help="The column by which the queues are sorted.")
@json_option
def top(interval: float | None, published: bool, once: bool, sort: str, as_json: bool) -> None:
    """Show the queues and the troubles of a space, again and again, until q or Ctrl-C.

    The keys are those of top and htop; h lists them. Without a terminal, and with --once or --json, the command prints
    one picture and ends.

    \b
    Examples:
      spool-admin top
      spool-admin top --interval 5 --sort age
      spool-admin top --once --json
    """
    from xaspool_scripts.watch.top.model import State

    with watched_space(published=published) as watched:
        if as_json:
            write_json(_as_object(watched.metrics()))
            return
        state = State(interval=interval or _DEFAULT_SECONDS, is_published=published, sort=sort)
        if once or not _is_interactive():
            _print_once(watched, state)
        else:
            _run(watched, state, is_automatic=interval is None)


def _is_interactive() -> bool:
    """Return whether the program can draw pictures and read keys."""
    streams = (sys.stdin, sys.stdout)
    is_terminal = all(stream is not None and stream.isatty() for stream in streams)
    return is_terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _as_object(metrics: "SpaceMetrics") -> dict[str, Any]:
    """Return the metrics as an object of JSON. The meters become lists, because their keys are lists of words."""
    meters = {
        name: [{"key": list(key), "value": value} for key, value in sorted(getattr(metrics, name).items())]
        for name in ("counts", "states")
    }
    return {**asdict(metrics), **meters}


def _print_once(watched: Watched, state: "State") -> None:
    from xaspool_scripts.watch.top.model import sampled
    from xaspool_scripts.watch.top.view import plain_picture

    shown = sampled(replace(state, width=1_000, height=1_000), _sample(watched), time.time())
    encoding = sys.stdout.encoding if sys.stdout is not None else None
    write_bytes(plain_picture(shown).encode(encoding or "utf-8", "replace"))


def _sample(watched: Watched) -> "Sample":
    from xaspool_scripts.watch.top.figures import Sample

    metrics = watched.metrics()
    return Sample(metrics, metrics.at if watched.space is None else time.monotonic())


# -- the live view -----------------------------------------------------------------------------------------------------


class _Gone(Exception):
    """The terminal is closed, or a signal arrived while the program wrote to the terminal."""


class Signals:
    """The signals of the process, as flags. A signal wakes up ``wait``.

    A signal never interrupts a reading of the space; only a second Ctrl-C does. It interrupts a write, because a
    terminal that takes no output could delay the end for ever.
    """

    _CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

    def __init__(self) -> None:
        self.is_ended = self.is_interrupted = self.is_writing = False
        self.is_resized = self.is_suspended = self.is_continued = False
        self.is_restoring = False  # while the terminal gets back its former state, no signal interrupts that
        self.waker, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        self._woken = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for number in self._CAUGHT:
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGWINCH:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken)
        os.close(self.waker)
        os.close(self._wakes)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGWINCH:
            self.is_resized = True
        elif number == signal.SIGTSTP:
            self.is_suspended = True
        elif number == signal.SIGCONT:
            self.is_continued = True
        else:
            is_second = number == signal.SIGINT and self.is_interrupted
            self.is_interrupted |= number == signal.SIGINT
            self.is_ended = True
            if self.is_writing and not self.is_restoring:
                self.is_writing = False
                raise _Gone
            if is_second and not self.is_restoring:
                raise KeyboardInterrupt

    def suspend(self) -> None:
        """Stop this process as Ctrl-Z does, until SIGCONT."""
        self.is_suspended = False
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)


class Screen:
    """The terminal: its other screen while pictures are drawn, and its former state afterwards."""

    def __init__(self, signals: Signals) -> None:
        from xaspool_scripts.watch.top.keys import KeyMode

        assert sys.stdin is not None
        assert sys.stdout is not None
        self.input, self.output = sys.stdin.fileno(), sys.stdout.fileno()
        self._signals = signals
        self._mode = KeyMode(self.input)
        self._is_stuck = False  # the terminal took no output

    def __enter__(self) -> "Screen":
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Raises _Gone if the terminal is closed."""
        import termios

        self._signals.is_restoring = False
        try:
            self._mode.enter()
            self.write(_ENTER)
        except termios.error as error:
            raise _Gone from error
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give the terminal back. If it takes no output within a second, only its mode is restored."""
        import termios

        self._signals.is_restoring = True
        if self._is_stuck:
            with suppress(termios.error):
                termios.tcflush(self.output, termios.TCOFLUSH)
        with suppress(OSError):
            if select.select([], [self.output], [], _PATIENCE_SECONDS)[1]:
                os.write(self.output, _LEAVE)
        self._mode.leave()

    def size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self.output)
        except OSError:
            columns = lines = 0
        return columns or 80, lines or 24  # (some serial lines have no size)

    def write(self, data: bytes) -> None:
        """Write all bytes. Raises _Gone."""
        self._is_stuck = self._signals.is_writing = True
        try:
            if self._signals.is_ended:
                raise _Gone
            while data:
                select.select([], [self.output], [])  # (an earlier program may have left the terminal non-blocking)
                with suppress(BlockingIOError):
                    data = data[os.write(self.output, data) :]
        except OSError as error:
            raise _Gone from error
        finally:
            self._signals.is_writing = False
        self._is_stuck = False

    def read(self) -> bytes:
        """Return the bytes that the user typed. Raises _Gone."""
        try:
            data = os.read(self.input, _MOST_READ)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise _Gone from error
        if not data:
            raise _Gone
        return data


@contextmanager
def _warnings() -> "Iterator[list[str]]":
    """Collect the warnings of the engine, which would be written into the picture. Print the last ones afterwards."""
    import logging

    class Kept(logging.Handler):
        def emit(self, record: "logging.LogRecord") -> None:
            found.append(" ".join(record.getMessage().split()))
            del found[:-20]

    found: list[str] = []
    log, handler = logging.getLogger("spool"), Kept(logging.WARNING)
    before, log.handlers = log.handlers, [handler]
    try:
        yield found
    finally:
        log.handlers = before
        for text in found:
            log.warning("%s", text)


def _run(watched: Watched, state: "State", *, is_automatic: bool) -> None:
    """Draw pictures and follow keys until the user or a signal ends the program."""
    with _warnings() as warnings, Signals() as signals:
        try:
            with Screen(signals) as screen:
                _Live(watched, state, signals, screen, warnings, is_automatic).run()
        except _Gone:
            pass
        if signals.is_interrupted:
            raise KeyboardInterrupt


class _Live:
    """The loop: read the space when the interval has passed, follow keys and signals, draw the picture."""

    def __init__(
        self, watched: Watched, state: "State", signals: Signals, screen: Screen, warnings: list[str], automatic: bool
    ) -> None:
        from xaspool_scripts.watch.top.keys import Decoder
        from xaspool_scripts.watch.top.view import Painter

        self._watched, self._state, self._signals, self._screen = watched, state, signals, screen
        self._warnings, self._is_automatic = warnings, automatic
        self._decoder, self._painter = Decoder(), Painter(sys.stdout.encoding or "utf-8")
        self._due = 0.0  # the time of the next reading, by time.monotonic
        self._chosen = state.interval

    def run(self) -> None:
        self._resize()
        self._draw()  # at once, because the first reading may take long
        while not (self._state.is_ended or self._signals.is_ended):
            began = time.thread_time()
            is_read = not self._state.is_paused and time.monotonic() >= self._due
            if is_read:
                self._read_space()
            self._draw()
            if is_read:
                self._pace(time.thread_time() - began)
            self._wait()

    def _read_space(self) -> None:
        import spool
        from xaspool_scripts.watch.top.model import failed, sampled

        try:
            sample = _sample(self._watched)
        except (spool.SpoolError, OSError) as error:
            self._state = failed(self._state, describe(error), time.time())
        else:
            self._state = sampled(self._state, sample, time.time())
        self._state = replace(self._state, warning=self._warnings[-1] if self._warnings else "")

    def _pace(self, cost: float) -> None:
        """Choose the time of the next reading. Without --interval, an expensive picture is made less often."""
        if self._state.interval != self._chosen:
            self._chosen, self._is_automatic = self._state.interval, False  # the user has chosen it
        if self._is_automatic and self._state.rates:  # (the first rates come early)
            self._chosen = max(_DEFAULT_SECONDS, min(_LONGEST_PACE, float(round(cost / _MOST_SHARE))))
            self._state = replace(self._state, interval=self._chosen)
        self._due = time.monotonic() + self._state.interval

    def _draw(self) -> None:
        data = self._painter.paint(self._state)
        if data:
            self._screen.write(data)

    def _resize(self) -> None:
        from xaspool_scripts.watch.top.model import resized

        self._signals.is_resized = False
        self._state = resized(self._state, *self._screen.size())

    def _wait(self) -> None:
        """Wait for a key, a signal, or the next reading."""
        from xaspool_scripts.watch.top.keys import ESCAPE_SECONDS

        left = None if self._state.is_paused else max(0.0, self._due - time.monotonic())
        if self._decoder.is_waiting:
            left = ESCAPE_SECONDS if left is None else min(left, ESCAPE_SECONDS)
        ready, _, _ = select.select([self._screen.input, self._signals.waker], [], [], left)
        if self._signals.waker in ready:
            os.read(self._signals.waker, _MOST_READ)
        self._follow_signals()
        if self._screen.input in ready and not self._signals.is_ended:
            self._follow_keys(self._decoder.feed(self._screen.read()))
        elif self._decoder.is_waiting and not ready:
            self._follow_keys(self._decoder.finish())

    def _follow_signals(self) -> None:
        if self._signals.is_ended:  # (SIGCONT follows the SIGHUP of a closed terminal)
            return
        if self._signals.is_suspended:
            self._screen.leave()
            self._signals.suspend()
            self._signals.is_continued = True
        if self._signals.is_continued:
            self._signals.is_continued = False
            self._screen.enter()
            self._follow_keys(["redraw"])
            self._resize()
        if self._signals.is_resized:
            self._resize()

    def _follow_keys(self, keys: list[str]) -> None:
        from xaspool_scripts.watch.top.model import pressed

        was_paused, interval = self._state.is_paused, self._state.interval
        for key in keys:
            if self._state.is_ended:
                return
            self._state = pressed(self._state, key)
        if (was_paused and not self._state.is_paused) or self._state.interval != interval:
            self._due = 0.0  # read the space at once
