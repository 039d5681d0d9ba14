"""A command as a service. Its input is the message's body, its exit status is the outcome, and its output is the reply.

No shell reads the command, except in ``exec:sh -c '…'``. The command runs in a separate process group. The service ends
the whole group when the command has ended, or at the time limit.
"""

import errno
import fcntl
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from forwarder.services.service import MAX_REPLY, Caller, Request, Service, ServiceError
from forwarder.time_limits import GRACE_SECONDS
from spool.model.message import Message
from spool.model.text import one_line
from spool.workers.outcome import Outcome, Rejected, Replied, Retried, describe, too_large, took_too_long

REFUSALS = frozenset({os.EX_DATAERR, os.EX_NOINPUT, os.EX_NOUSER, os.EX_NOHOST, os.EX_PROTOCOL, os.EX_NOPERM})
"""Exit statuses for a wrong message: every further attempt would end with the same status (sysexits.h)."""

NOT_REACHED = frozenset({os.EX_UNAVAILABLE, os.EX_CONFIG})
"""Exit statuses that do not depend on the message: something that the command needs is missing."""

_OF_A_MESSAGE = ("SPOOL_HEADER_", "SPOOL_CORRELATION_ID")  # a message may lack these fields
_LAST_WORDS = 4096  # the bytes to keep from the end of the standard error
_CHUNK_BYTES = 65536


@dataclass(frozen=True)
class ExecService(Caller, Service):
    """The service `exec:command argument…`, with quotes as in a shell. The object is service and caller in one.

    timeout: the time limit of a command in seconds; infinity for none.
    threads: the number of commands that one task runs at a time.
    """

    command: str
    timeout: float = 30.0
    threads: int = 1

    @property
    def shown_name(self) -> str:
        return f"exec:{self.command.strip().partition(' ')[0]}"  # (the arguments may have passwords)

    def open(self) -> "ExecService":
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ServiceError(f"'exec:{self.command}' cannot be split into words ({error}): correct it") from None
        if not words:
            raise ServiceError("'exec:' names no command: write exec:command, with its arguments")
        if shutil.which(words[0]) is None:
            raise ServiceError(f"there is no command {words[0]!r} that can be run: correct its name, or install it")
        return self

    def __call__(self, request: Request) -> Outcome:
        try:
            with _started(shlex.split(self.command), variables(request.message)) as process:
                return _outcome(process, request.raw, self.timeout)
        except OSError as error:  # e.g. the command does not exist, or memory or processes have run out
            return Retried(describe(error), counted=error.errno == errno.E2BIG)  # (headers make large variables)


def judge(status: int, output: bytes, errors: bytes) -> Outcome:
    """Return the outcome of a command.

    Args:
        status: the exit status; a negative number is the signal that ended the command.
        output: the standard output of the command.
        errors: the end of the command's standard error; the last line is the reason of a failure.
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
    """Start a command in a new session. At the end of the block, end all processes of the command's group."""
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


def _outcome(process: "subprocess.Popen[bytes]", body: bytes, timeout: float) -> Outcome:
    """Write the input of a command and read its output, within the limits of time and output."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    left, output, errors, late = memoryview(body), bytearray(), bytearray(), ""
    until, has_ended = time.monotonic() + timeout, False
    with selectors.DefaultSelector() as selector, open(os.pidfd_open(process.pid), "rb", 0) as end:
        for pipe in (stdin, stdout, stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_WRITE if pipe is stdin else selectors.EVENT_READ)
        selector.register(end, selectors.EVENT_READ)
        while not has_ended:
            ready = [key.fileobj for key, _ in selector.select(min(max(0.0, until - time.monotonic()), 3600.0))]
            if stdin in ready and not (left := _write(stdin, left)):
                selector.unregister(stdin)
                stdin.close()
            if has_ended := end in ready:
                _signal(process, signal.SIGKILL)  # end processes that the command has left running
            for pipe, kept in ((stdout, output), (stderr, errors)):
                waiting = _bytes_in(pipe)
                if pipe in ready and not waiting:
                    selector.unregister(pipe)  # the end of the pipe
                while waiting > 0 and len(output) <= MAX_REPLY and (chunk := _read(pipe)):
                    waiting -= len(chunk)
                    kept += chunk
                    del errors[:-_LAST_WORDS]
            if len(output) > MAX_REPLY:
                return too_large(MAX_REPLY)
            if not has_ended and time.monotonic() >= until:
                if late:
                    break  # the command goes on after SIGTERM
                late = took_too_long(timeout)
                _signal(process, signal.SIGTERM)
                until += GRACE_SECONDS
    return Retried(late) if late else judge(process.wait(), bytes(output), bytes(errors))


def _write(pipe: IO[bytes], left: memoryview) -> memoryview:
    """Write more of the body, and return the rest. If the command reads no more, return an empty rest."""
    try:
        return left[os.write(pipe.fileno(), left[:_CHUNK_BYTES]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


def _bytes_in(pipe: IO[bytes]) -> int:
    """Return the number of bytes that a pipe has now.

    If the command has ended, these bytes are the rest of its output. A process that left the command's group may write
    more bytes later, and may never close the pipe.
    """
    return int.from_bytes(fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def _read(pipe: IO[bytes]) -> bytes:
    """Read from a pipe that has bytes. Return b"" if another process has read the bytes."""
    try:
        return os.read(pipe.fileno(), _CHUNK_BYTES)
    except BlockingIOError:
        return b""
