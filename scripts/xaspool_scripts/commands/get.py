"""``spool-admin message get``: take one or many messages."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from spool.model.objects import message_object
from xaspool_scripts.terminal.output import flush_directory, write_bytes, write_json
from xaspool_scripts.terminal.program import SpaceCommand, complete_queue, json_option, opened
from xaspool_scripts.terminal.shared_options import duration_or_forever, message_id
from xaspool_scripts.terminal.wording import on_terminal

if TYPE_CHECKING:
    from spool import Space, Transaction
    from spool.model.message import Message

_TIMEOUT_HELP = "How long to wait for a message: seconds, a time like 5m, or forever; 0 (the default) does not wait."

_TAKEN_AT_ONCE = 100
_TAKEN_IN_ONE_COMMIT = 1_000


@click.command(cls=SpaceCommand)
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--timeout", type=duration_or_forever, default="0", metavar="TIME", help=_TIMEOUT_HELP)
@click.option("--id", "message_id", type=message_id, metavar="ID", help="Take the message with this id.")
@click.option("--correlation-id", metavar="TEXT", help="Take the first message with this correlation id.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N",
    help="Take up to N messages in one commit, as many as there are.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Take all messages, up to 1,000 in one commit.")
@click.option(
    "--directory", type=click.Path(exists=True, file_okay=False, writable=True), metavar="DIR",
    help="The directory for the bodies: each becomes a file with the message's id as its name, which is printed.",
)  # fmt: skip
@click.option("--exec", "command", metavar="COMMAND", help="Run this command with each message; see below.")
@click.option("--reply-to", metavar="QUEUE", shell_complete=complete_queue, help="The queue for the output of --exec.")
@json_option
def get(
    queue: str,
    timeout: float | None,
    count: int | None,
    everything: bool,
    directory: str | None,
    command: str | None,
    reply_to: str | None,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """Take the queue's next message and write its body, byte for byte. Exit code 3: no message can be taken.

    On a terminal, the command adds a line end to a body that has none.

    The message leaves the queue after its body is written; if the body cannot be written, the message remains in the
    queue.

    With --exec, the body is the standard input of the command, and the environment has the message's fields, e.g.
    SPOOL_MESSAGE_ID and SPOOL_ATTEMPTS. The command is split into words as in a shell, but without variables; for
    these, write sh -c '…'. One commit removes the message, and puts the output into the queue of --reply-to, or else
    into the reply queue of the message, if any. Exit status 65 rejects the message. After 75, and most others, the
    message is attempted again later (spool-admin docs service-kinds). The exit code is then 0 handled, 4 damaged,
    5 left for later, 6 failed for good: the message is in the error queue, or deleted.

    \b
    Examples:
      spool-admin message get orders > order.xml
      spool-admin message get orders --timeout 60 --json
      spool-admin message get answers --correlation-id order-1 --timeout 60
      spool-admin message get orders --all --directory inbox
      spool-admin message get orders --exec "sh -c 'wc -c'" --reply-to sizes --count 10
    """
    if (reply_to and not command) or (command and (directory is not None or any(wanted.values()))):
        raise click.UsageError("--exec takes no --id, --correlation-id and --directory; --reply-to is for its output")
    if count is not None and everything:
        raise click.UsageError("--count and --all exclude each other: give one of them")
    many = count is not None or everything
    if many and any(wanted.values()):
        raise click.UsageError("--id and --correlation-id take one message: leave --count and --all out")
    if many and not as_json and directory is None and command is None:
        raise click.UsageError("several bodies need --json (one object a line) or --directory (one file each)")
    with opened() as space:
        if command is not None:
            from xaspool_scripts.commands.execute import execute  # only this option needs the services

            most = math.inf if everything else count or 1
            click.get_current_context().exit(execute(space, queue, command, reply_to, timeout, most, as_json))
        if many:
            _take_many(space, queue, timeout, count, _BodyWriter(directory, as_json))
            return
        with _transaction(space) as transaction:
            writer = _BodyWriter(directory, as_json)
            writer.write(transaction.get(queue, timeout=timeout, **wanted))
            writer.flush()


@contextmanager
def _transaction(space: "Space") -> "Iterator[Transaction]":
    """Commit at the end. After an exception, release the transaction's messages without counting an attempt."""
    transaction = space.transaction(timeout=None)
    try:
        yield transaction
        transaction.commit()
    finally:
        transaction.abandon()


def _take_many(space: "Space", queue: str, timeout: float | None, count: int | None, writer: "_BodyWriter") -> None:
    """Take `count` messages in one commit. If `count` is None, take all messages, in several commits."""
    from spool.errors import Empty

    limit, taken, total = count or _TAKEN_IN_ONE_COMMIT, 0, 0
    while not total or (count is None and taken == limit):
        taken = 0
        with _transaction(space) as transaction:
            while taken < limit:
                try:
                    batch = transaction.get_many(
                        queue, min(_TAKEN_AT_ONCE, limit - taken), timeout=0 if total else timeout
                    )
                except Empty:
                    if not total:
                        raise
                    break
                for message in batch:
                    writer.write(message)
                taken += len(batch)
                total += len(batch)
            writer.flush()


class _BodyWriter:
    """Writes bodies to standard output, unchanged or as JSON, or writes each body into a separate file."""

    def __init__(self, directory: str | None, as_json: bool) -> None:
        self.directory = directory
        self.as_json = as_json

    def write(self, message: "Message") -> None:
        """Write and flush a body. A body in a separate file is durable when this call returns."""
        if self.directory is None:
            if self.as_json:
                write_json(message_object(message))
            else:
                write_bytes(message.body + (b"\n" if on_terminal() and not message.body.endswith(b"\n") else b""))
            return
        name = os.path.join(self.directory, message.id)
        with open(name, "wb") as file:  # (the file may exist already, if an earlier command failed)
            file.write(message.body)
            file.flush()
            os.fsync(file.fileno())
        if self.as_json:
            fields = {**message.as_dict(), "file": name}
            del fields["body"]
            write_json(fields)
        else:
            write_bytes(os.fsencode(name) + b"\n")

    def flush(self) -> None:
        """Make the names of the written files durable."""
        if self.directory is not None:
            flush_directory(self.directory)
