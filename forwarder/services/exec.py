"""A command as a service. Its input is the message's body, its exit status is the outcome, and its output is the reply.

No shell reads the command, except in ``exec:sh -c '…'``. The command runs in a separate process group. The service
ends the whole group when the command has ended, and at the time limit.
"""

import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from forwarder.services.service import MAX_REPLY, Request, ServiceError, Stateless
from forwarder.time_limits import GRACE_SECONDS
from spool.model.message import Message
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, describe, one_line, too_large, took_too_long

REFUSALS = frozenset({os.EX_DATAERR, os.EX_NOINPUT, os.EX_NOUSER, os.EX_NOHOST, os.EX_PROTOCOL, os.EX_NOPERM})
"""Exit statuses that concern the message: every further attempt would end with the same status (sysexits.h)."""

NOT_REACHED = frozenset({os.EX_UNAVAILABLE, os.EX_CONFIG})
"""Exit statuses that do not concern the message: the command lacks something that it needs."""

_OF_A_MESSAGE = ("SPOOL_HEADER_", "SPOOL_CORRELATION_ID")  # a message may lack these fields
_LAST_WORDS = 4096  # the bytes to keep from the end of the standard error
_PIPE_BYTES = 65536  # the capacity of a pipe


@dataclass(frozen=True)
class ExecService:
    """`exec:command argument…`, quoted as in a shell; `timeout` is in seconds, `max_reply` in bytes.

    threads: the number of commands that one task runs at a time.
    """

    command: str
    timeout: float = 30.0
    max_reply: int = MAX_REPLY
    threads: int = 1
    watched = None  # the time limit ends the command, so the worker need not be ended

    def check(self) -> None:
        """Raise `ServiceError` if the command does not exist."""
        self.open()

    def open(self) -> "ExecCaller":
        """Return the caller; raise `ServiceError` as `check` does."""
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ServiceError(f"'exec:{self.command}' cannot be split into words ({error}): correct it") from None
        if not words:
            raise ServiceError("'exec:' names no command: write exec:command, with its arguments")
        if shutil.which(words[0]) is None:
            raise ServiceError(f"there is no command {words[0]!r} that can be run: correct its name, or install it")
        return ExecCaller(words, self.timeout, self.max_reply)


@dataclass(frozen=True)
class ExecCaller(Stateless):
    """Runs the command."""

    words: list[str]
    timeout: float
    max_reply: int = MAX_REPLY

    def __call__(self, request: Request) -> Outcome:
        try:
            with _started(self.words, variables(request.message)) as process:
                run = _Run(process, request.raw, self.timeout, self.max_reply)
                if run.reason:
                    return too_large(self.max_reply) if run.is_too_large else Retried(run.reason)
                status = process.wait()
        except OSError as error:  # the command does not exist, memory lacks, or too many processes run
            return Retried(describe(error), counted=False)
        return judge(status, bytes(run.output), bytes(run.errors))


def judge(status: int, output: bytes, errors: bytes) -> Outcome:
    """Return the outcome of a command.

    Args:
        status: the exit status; a negative number is the signal that ended the command.
        output: the standard output of the command.
        errors: the end of its standard error; the last line is the reason of a failure.
    """
    if status == 0:
        return Replied(output)
    ended = f"signal {-status}" if status < 0 else f"exit status {status}"
    lines = errors.decode("utf-8", "replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    reason = one_line(f"{ended}: {said}" if said else ended)
    if status in REFUSALS:
        return Rejected(reason, Replied(output) if output else None)
    return Retried(reason, counted=status not in NOT_REACHED)


def variables(message: Message) -> dict[str, str]:
    """Return the message's fields as environment variables. Values that a variable cannot hold are left out."""
    fields = {
        "SPOOL_MESSAGE_ID": message.id,
        "SPOOL_QUEUE": message.queue,
        "SPOOL_CONTENT_TYPE": message.content_type,
        "SPOOL_ATTEMPTS": str(message.attempts),
        "SPOOL_CORRELATION_ID": message.correlation_id,
        "SPOOL_HEADERS": json.dumps(dict(message.headers)),
    }
    for name, value in message.headers.items():
        fields[f"SPOOL_HEADER_{re.sub('[^A-Z0-9]', '_', name.upper())}"] = value
    return {
        name: value.encode("utf-8", "replace").decode()
        for name, value in fields.items()
        if value is not None and "\0" not in value
    }


@contextmanager
def _started(words: list[str], fields: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a command in a new session; at the end of the block, end all processes of its group."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_MESSAGE)}
    process = subprocess.Popen(
        words, bufsize=0, env=inherited | fields, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:  # (until the wait, no other process can get the same process id)
                _signal(process, signal.SIGKILL)


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class _Run:
    """Runs a command: writes its input, reads its output, and limits its time and its output.

    reason: why the command was ended; "" if it ended by itself.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", body: bytes, timeout: float, max_reply: int) -> None:
        self.output, self.errors, self.reason = bytearray(), bytearray(), ""
        self._process, self._left, self._max_reply = process, memoryview(body), max_reply
        self._until = time.monotonic() + timeout
        self._end = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as self._selector:
                self._run(timeout)
        finally:
            os.close(self._end)

    @property
    def is_too_large(self) -> bool:
        return len(self.output) > self._max_reply

    def _run(self, timeout: float) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe, events, step in (
            (process.stdin, selectors.EVENT_WRITE, self._feed),
            (process.stdout, selectors.EVENT_READ, self._read_output),
            (process.stderr, selectors.EVENT_READ, self._read_errors),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, events, step)
        self._selector.register(self._end, selectors.EVENT_READ)
        while not self._has_ended():
            if self.is_too_large:
                self.reason = "its reply is too large"
                return
            if time.monotonic() >= self._until:
                if self.reason:
                    return  # the command goes on after SIGTERM
                self.reason = took_too_long(timeout)
                _signal(process, signal.SIGTERM)
                self._until += GRACE_SECONDS
        _signal(process, signal.SIGKILL)  # end processes that the command has left running
        self._read_output(process.stdout)  # one read gets all bytes that the pipe still has
        self._read_errors(process.stderr)

    def _has_ended(self) -> bool:
        """Wait for the next event and handle it; return whether the command has ended."""
        ended = False
        for key, _ in self._selector.select(max(0.0, self._until - time.monotonic())):
            if key.fd == self._end:
                ended = True
            elif not key.data(key.fileobj):
                self._selector.unregister(key.fileobj)
        return ended

    def _feed(self, pipe: IO[bytes]) -> bool:
        """Write more of the body; return False once the whole body is written or the command reads no more."""
        try:
            self._left = self._left[os.write(pipe.fileno(), self._left[:_PIPE_BYTES]) :] if self._left else self._left
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            pipe.close()
        return bool(self._left)

    def _read_output(self, pipe: IO[bytes]) -> bool:
        """Read some of the output; return False at its end."""
        read = _read(pipe)
        if read is not None and not self.is_too_large:
            self.output += read
        return read != b""

    def _read_errors(self, pipe: IO[bytes]) -> bool:
        read = _read(pipe)
        self.errors = (self.errors + (read or b""))[-_LAST_WORDS:]
        return read != b""


def _read(pipe: IO[bytes]) -> bytes | None:
    """Read from a pipe. Return b"" at the end of the pipe, or None if the pipe has no bytes now."""
    try:
        return os.read(pipe.fileno(), _PIPE_BYTES)
    except BlockingIOError:
        return None
