"""``spool-admin message``: put, take and look at messages."""

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from xaspool_scripts.common import complete_queue, json_option, note, opened, space_option
from xaspool_scripts.output import (
    NOTHING,
    aligned,
    message_object,
    moment,
    pairs,
    printable,
    raw_body,
    show,
    write_bytes,
    write_json,
)  # fmt: skip

if TYPE_CHECKING:
    from spool.space import Space

_QUEUE = click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)

_COLUMNS = ("id", "priority", "tries", "bytes", "enqueued", "due", "correlation id")
_WIDTHS = (32, 8, 5, 10, 25, 25, 0)
_RIGHT = (False, True, True, True, False, False, False)


def _moment(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds since the epoch, or an ISO date and time (local, unless it names its zone)."""
    if value is None:
        return None
    for read in (float, lambda text: datetime.fromisoformat(text).timestamp()):
        try:
            return read(value)
        except (ValueError, OverflowError, OSError):
            continue
    raise click.BadParameter(f"{value!r} is neither seconds since the epoch nor a time like 2030-01-31T08:00")


def _timeout(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """Seconds, or ``forever``: None."""
    if value == "forever":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of seconds nor 'forever'") from None


@click.group()
@space_option
def message() -> None:
    """Put, take and look at messages."""


@message.command()
@_QUEUE
@click.option("--body", metavar="TEXT", help="The body.")
@click.option("--file", "file", type=click.File("rb"), metavar="F", help="The body is this file's content.")
@click.option("--priority", type=int, metavar="N", help="1 to 100, higher first; 50 if not given.")
@click.option("--delay", type=float, metavar="SECONDS", help="Invisible for so long.")
@click.option("--not-before", callback=_moment, metavar="TIME", help="Invisible until then, e.g. 2030-01-31T08:00.")
@click.option("--correlation-id", metavar="TEXT")
@click.option("--reply-queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--failure-queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--user-code", type=int, metavar="N")
@click.option("--client-id", metavar="TEXT")
@click.option("--application-key", metavar="TEXT")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be given several times.")
@click.option("--content-type", metavar="TYPE", help="E.g. application/json.")
@json_option
@space_option
def put(
    queue: str, body: str | None, file: BinaryIO | None, headers: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Put a message: TEXT, a file, or what comes from standard input. Prints its id.

    \b
    Examples:
      spool-admin message put orders --body hello --priority 80
      spool-admin message put orders --file order.xml --header tenant=acme --content-type application/xml
      make-order | spool-admin message put orders
    """
    if body is not None and file is not None:
        raise click.UsageError("--body and --file exclude each other: give one of them")
    chosen = {name: value for name, value in options.items() if value is not None}
    if headers:
        chosen["headers"] = _headers(headers)
    with opened() as space:
        put_body = _text(body) if body is not None else _read(space, file)
        message_id = space.put(queue, put_body, **chosen)
    if as_json:
        write_json({"id": message_id})
    else:
        click.echo(message_id)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--header")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--header")
        found[name] = value
    return found


def _text(argument: str) -> str | bytes:
    """An argument is bytes: what is not UTF-8 stays as it was typed."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(argument)
    return argument


def _read(space: "Space", file: BinaryIO | None) -> bytes:
    """All of a file or of standard input; one byte more than is allowed is enough to be refused."""
    if file is None:
        if sys.stdin is None:
            raise click.UsageError("there is no standard input: give --body or --file")
        if sys.stdin.isatty():
            note("reading the body from the terminal; end it with Ctrl-D")
        file = sys.stdin.buffer
    return file.read(space._store.config.max_body_bytes + 1)


@message.command()
@_QUEUE
@click.option("--timeout", callback=_timeout, default="0", metavar="SECONDS", help="Wait so long, or 'forever'.")
@click.option("--id", "message_id", metavar="ID", help="Take this message.")
@click.option("--correlation-id", metavar="TEXT", help="Take the first with this correlation id.")
@json_option
@space_option
def get(queue: str, timeout: float | None, message_id: str | None, correlation_id: str | None, as_json: bool) -> None:
    """Take the queue's next message and write its body, byte for byte. Exit code 3: there is none.

    The message leaves the queue once its body is written: if that fails, it stays.

    \b
    Examples:
      spool-admin message get orders > order.xml
      spool-admin message get orders --timeout 60 --json
    """
    with opened() as space:
        transaction = space.transaction(timeout=None)
        try:
            found = transaction.get(queue, timeout=timeout, message_id=message_id, correlation_id=correlation_id)
            if as_json:
                write_json(message_object(found))
            else:
                write_bytes(raw_body(found))
            transaction.commit()
        finally:
            transaction.abandon()  # unless it was committed: nobody got the message, so no try is counted


@message.command("list")
@_QUEUE
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@click.option("--correlation-id", metavar="TEXT", help="Only those with this correlation id.")
@json_option
@space_option
def list_(queue: str, limit: int | None, correlation_id: str | None, as_json: bool) -> None:
    """List a queue's messages in the order of delivery, delayed ones last. Takes none.

    \b
    Example:
      spool-admin message list orders --limit 20
    """
    with opened() as space:
        shown = 0
        for found in space.browse(queue, correlation_id=correlation_id):
            if as_json:
                write_json(message_object(found))
            else:
                if not shown:
                    click.echo(aligned(_COLUMNS, _WIDTHS, _RIGHT))
                cells = (
                    found.id, found.priority, found.attempts, len(raw_body(found)), moment(found.enqueued_at),
                    moment(found.not_before), found.correlation_id,
                )  # fmt: skip
                click.echo(aligned([*map(show, cells)], _WIDTHS, _RIGHT))
            shown += 1
            if shown == limit:
                break
        if not shown:
            note(f"queue {queue} has no such messages" if correlation_id else f"queue {queue} is empty")


@message.command("show")
@click.argument("message_id", metavar="ID")
@json_option
@space_option
def show_(message_id: str, as_json: bool) -> None:
    """Show a message, in whatever queue it is, without taking it.

    \b
    Example:
      spool-admin message show 5f0c7a1e9b3d48c2a6e1d07f00000000
    """
    with opened() as space:
        found = space.show(message_id)
    if as_json:
        write_json(message_object(found))
        return
    fields = found.as_dict()
    del fields["body"]
    for name in ("enqueued_at", "not_before"):
        fields[name] = moment(fields[name])
    raw = raw_body(found)
    fields["body"] = f"{len(raw)} bytes"
    pairs({name.replace("_", " "): value for name, value in fields.items() if show(value) != NOTHING})
    try:
        text = printable(raw.decode("utf-8"), keep="\n\t")
    except UnicodeDecodeError:
        text = "(not text: --json has it in base64, and message get writes it as it is)"
    click.echo(f"\n{text}")
