"""``spool-admin top``: a live view of a space in a terminal."""

import os
import select
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from xaspool_scripts.terminal.output import write_bytes, write_json
from xaspool_scripts.terminal.program import SpaceCommand, describe, json_option
from xaspool_scripts.terminal.shared_options import short_duration
from xaspool_scripts.watch.top.keys import ESCAPE_SECONDS, Decoder
from xaspool_scripts.watch.watched_space import Watched, published_option, watched_space

if TYPE_CHECKING:
    import logging

    from spool import SpaceMetrics
    from xaspool_scripts.watch.top.model import Model
    from xaspool_scripts.watch.top.queue_rows import Sample

# The names in ``queue_rows.SORTABLE``. ``queue_rows`` is not imported here, because it imports rich, and help and
# completion do not need rich.
SORTS = (
    "trouble", "queue", "ready", "age", "in/s", "out/s", "fail/s", "claimed", "doubt", "delayed", "bytes", "rate",
)  # fmt: skip
_DEFAULT_SECONDS = 2.0
_MOST_SHARE, _LONGEST_PACE = 0.007, 10.0  # without --interval: a share of a processor, and a number of seconds
_MOST_READ = 4_096
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.25  # the time between two checks of the signals and of the terminal's size
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # use the other screen, hide the cursor, do not wrap long lines
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
    from xaspool_scripts.watch.top.model import Model

    with watched_space(published=published) as watched:
        if as_json:
            write_json(_as_object(watched.metrics()))
            return
        state = Model(interval=interval or _DEFAULT_SECONDS, is_published=published, sort=sort)
        if once or not _is_interactive():
            _print_once(watched, state)
        else:
            with _warnings() as warnings, Screen() as screen:
                _Live(watched, state, screen, warnings, interval is None).run()


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


def _print_once(watched: Watched, state: "Model") -> None:
    from xaspool_scripts.watch.top.model import sampled
    from xaspool_scripts.watch.top.view import plain_picture

    shown = sampled(replace(state, width=1_000, height=1_000), _sample(watched), time.time())
    encoding = sys.stdout.encoding if sys.stdout is not None else None
    write_bytes(plain_picture(shown).encode(encoding or "utf-8", "replace"))


def _sample(watched: Watched) -> "Sample":
    from xaspool_scripts.watch.top.queue_rows import Sample

    metrics = watched.metrics()
    return Sample(metrics, metrics.at if watched.space is None else time.monotonic())


# -- the live view -----------------------------------------------------------------------------------------------------


class _Gone(Exception):
    """The terminal is closed, or a signal ends the program."""


class Screen:
    """The terminal. It shows the other screen while pictures are drawn, and its former state afterwards.

    A signal interrupts only a wait for keys and a write, because a terminal that takes no output could delay the end
    forever. A second Ctrl-C also interrupts a read of the space.
    """

    def __init__(self) -> None:
        """Raises termios.error if the input is no terminal."""
        assert sys.stdin is not None
        assert sys.stdout is not None
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._mode = termios.tcgetattr(self._input)
        self._handlers: dict[int, Any] = {}
        self._arrived: set[int] = set()  # the signals that have arrived
        self._is_drawn = self._is_interruptible = False

    def __enter__(self) -> "Screen":
        for number in (*_ENDING, signal.SIGTSTP, signal.SIGCONT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """End quietly after _Gone, and with KeyboardInterrupt after Ctrl-C."""
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if signal.SIGINT in self._arrived:
            raise KeyboardInterrupt
        return isinstance(error, _Gone)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_second = number == signal.SIGINT and number in self._arrived
        self._arrived.add(number)
        if number in _ENDING and (self._is_interruptible or (is_second and self._is_drawn)):
            raise _Gone

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self._is_interruptible = True
        try:
            if self._arrived & _ENDING:
                raise _Gone
            yield
        except OSError as error:
            raise _Gone from error
        finally:
            self._is_interruptible = False

    def enter(self) -> None:
        """Raises _Gone."""
        mode = termios.tcgetattr(self._input)
        mode[0] &= ~termios.IXON  # (Ctrl-S would stop the output, and the program could not end)
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        self._is_drawn = True
        try:
            termios.tcsetattr(self._input, termios.TCSADRAIN, mode)
            self.write(_ENTER)
        except BaseException as error:
            self._leave()
            raise _Gone if isinstance(error, termios.error) else error from error

    def _leave(self) -> None:
        """Restore the terminal. If the terminal takes no output within a second, restore only its mode."""
        self._is_drawn = self._is_interruptible = False
        with suppress(OSError, termios.error):  # (the terminal may be closed)
            termios.tcflush(self._input, termios.TCIOFLUSH)
            if select.select([], [self._output], [], _PATIENCE_SECONDS)[1]:
                os.write(self._output, _LEAVE)
        with suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSANOW, self._mode)

    def resume(self) -> bool:
        """Stop this process after Ctrl-Z. Return whether the process was stopped, so that the screen is now empty."""
        if signal.SIGTSTP in self._arrived:
            self._leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._note)
        elif signal.SIGCONT not in self._arrived:
            return False
        self._arrived -= {signal.SIGTSTP, signal.SIGCONT}
        self.enter()
        return True

    def size(self) -> tuple[int, int]:
        columns, lines = 0, 0
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._output)
        return columns or 80, lines or 24  # (some serial lines have no size)

    def write(self, data: bytes) -> None:
        """Write all bytes. Raises _Gone."""
        with self._interruptible():
            while data:
                select.select([], [self._output], [])  # (an earlier program may have left the terminal non-blocking)
                with suppress(BlockingIOError):
                    data = data[os.write(self._output, data) :]

    def read(self, seconds: float) -> bytes:
        """Return the bytes that the user typed, or b"" if the user typed nothing in this time. Raises _Gone."""
        with self._interruptible():
            if not select.select([self._input], [], [], seconds)[0]:
                return b""
            if data := os.read(self._input, _MOST_READ):
                return data
            raise _Gone


@contextmanager
def _warnings() -> "Iterator[deque[logging.LogRecord]]":
    """During the block, keep the engine's last warnings, which would damage the picture. Print them afterwards."""
    import logging

    class Kept(logging.Handler):
        def emit(self, record: "logging.LogRecord") -> None:
            kept.append(record)

    kept: deque[logging.LogRecord] = deque(maxlen=20)
    log = logging.getLogger("spool")
    before, log.handlers = log.handlers, [Kept(logging.WARNING)]
    try:
        yield kept
    finally:
        log.handlers = before
        for record in kept:
            log.handle(record)


class _Live:
    """The loop: read the space at each interval, follow keys and signals, draw the picture."""

    def __init__(
        self, watched: Watched, state: "Model", screen: Screen, warnings: "deque[logging.LogRecord]", automatic: bool
    ) -> None:
        from xaspool_scripts.watch.top.view import Painter

        self._watched, self._state, self._screen = watched, state, screen
        self._warnings, self._is_automatic = warnings, automatic
        self._decoder, self._painter = Decoder(), Painter(sys.stdout.encoding or "utf-8")
        self._drawn: Model | None = None
        self._due = 0.0  # the time of the next read, by time.monotonic
        self._chosen = state.interval

    def run(self) -> None:
        self._screen.enter()
        self._draw()  # at once, because the first read may take long
        while not self._state.is_ended:
            began = time.thread_time()
            is_read = not self._state.is_paused and time.monotonic() >= self._due
            if is_read:
                self._read_space()
            self._draw()
            if is_read:
                self._pace(time.thread_time() - began)
            self._follow_keys()

    def _read_space(self) -> None:
        import spool
        from xaspool_scripts.watch.top.model import failed, sampled

        try:
            sample = _sample(self._watched)
        except (spool.SpoolError, OSError) as error:
            self._state = failed(self._state, describe(error), time.time())
        else:
            self._state = sampled(self._state, sample, time.time())
        warning = " ".join(self._warnings[-1].getMessage().split()) if self._warnings else ""
        self._state = replace(self._state, warning=warning)

    def _pace(self, cost: float) -> None:
        """Choose the time of the next read. Without --interval, an expensive picture is drawn less often."""
        if self._state.interval != self._chosen:
            self._chosen, self._is_automatic = self._state.interval, False  # the user has chosen an interval
        if self._is_automatic and self._state.rates:  # (before the first rates, the pace is fast)
            self._chosen = max(_DEFAULT_SECONDS, min(_LONGEST_PACE, float(round(cost / _MOST_SHARE))))
            self._state = replace(self._state, interval=self._chosen)
        self._due = time.monotonic() + self._state.interval

    def _draw(self) -> None:
        """Draw the picture if the state, the terminal's size or the terminal's contents have changed."""
        from xaspool_scripts.watch.top.model import resized

        if self._screen.resume():
            self._state = replace(self._state, redraws=self._state.redraws + 1)
        if (size := self._screen.size()) != (self._state.width, self._state.height):
            self._state = resized(self._state, *size)
        if self._state is not self._drawn:
            self._screen.write(self._painter.paint(self._state))
            self._drawn = self._state

    def _follow_keys(self) -> None:
        """Wait for keys, but no longer than until the next read, or the next check of signals and of the terminal's
        size."""
        from xaspool_scripts.watch.top.model import pressed

        left = _LOOK_SECONDS if self._state.is_paused else min(_LOOK_SECONDS, self._due - time.monotonic())
        before = self._state
        data = self._screen.read(ESCAPE_SECONDS if self._decoder.is_waiting else max(0.0, left))
        for key in self._decoder.feed(data) if data else self._decoder.finish():
            if not self._state.is_ended:
                self._state = pressed(self._state, key)
        is_resumed = before.is_paused and not self._state.is_paused
        if is_resumed or self._state.interval != before.interval:
            self._due = 0.0  # read the space at once
