"""``spool-admin message``: put, take, look at and rearrange messages."""

import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from xaspool_scripts.common import Failure, complete_queue, json_option, note, opened, space_option
from xaspool_scripts.options import (
    dry_run_option,
    duration,
    duration_or_forever,
    filter_options,
    filters,
    given,
    moment,
    or_nothing,
    progress,
)  # fmt: skip
from xaspool_scripts.options import headers as parse_headers
from xaspool_scripts.options import message_id as typed_id
from xaspool_scripts.output import (
    NOTHING,
    aligned,
    message_object,
    messages,
    pairs,
    printable,
    show,
    write_bytes,
    write_json,
)  # fmt: skip
from xaspool_scripts.output import moment as shown_moment

if TYPE_CHECKING:
    from spool.message import Message
    from spool.space import Space

_ID = click.argument("message_id", type=typed_id, metavar="ID")
_QUEUE = click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)

_TIMEOUT_HELP = "How long to wait for a message: seconds, a time like 5m, or forever; 0 (the default) does not wait."

_COLUMNS = ("id", "priority", "tries", "bytes", "enqueued", "due", "correlation id")
_WIDTHS = (32, 8, 5, 10, 25, 25, 0)
_RIGHT = (False, True, True, True, False, False, False)


@click.group()
@space_option
def message() -> None:
    """Put, take, look at and rearrange messages."""


@message.command()
@_QUEUE
@click.option("--body", metavar="TEXT", help="The body.")
@click.option("--file", "file", type=click.File("rb"), metavar="F", help="The body is this file's content.")
@click.option("--priority", type=int, metavar="N", help="1 to 100, higher first; 50 if not given.")
@click.option("--delay", type=duration, metavar="TIME", help="Invisible for so long, e.g. 90s.")
@click.option("--not-before", type=moment, metavar="TIME", help="Invisible until then, e.g. 2030-01-31T08:00.")
@click.option("--time-to-live", type=duration, metavar="TIME", help="Never delivered after so long, e.g. 15m.")
@click.option("--expires-at", type=moment, metavar="TIME", help="Never delivered from then on.")
@click.option("--top", is_flag=True, default=None, help="At the top, where the queue allows it.")
@click.option("--before", type=typed_id, metavar="ID", help="Before that message, where the queue allows it.")
@click.option("--group", metavar="TEXT", help="In order, and one at a time, with others of this group.")
@click.option("--deduplication-key", metavar="TEXT", help="Put with the same key again, it is the same message.")
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
    chosen = given(options)
    if headers:
        chosen["headers"] = parse_headers(headers)
    with opened() as space:
        put_body = _text(body) if body is not None else _read(space, file)
        message_id = space.put(queue, put_body, **chosen)
    if as_json:
        write_json({"id": message_id})
    else:
        click.echo(message_id)


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
@click.option("--timeout", type=duration_or_forever, default="0", metavar="TIME", help=_TIMEOUT_HELP)
@click.option("--id", "message_id", type=typed_id, metavar="ID", help="Take this message.")
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
                write_bytes(found.body)
            transaction.commit()
        finally:
            transaction.abandon()  # unless it was committed: nobody got the message, so no try is counted


@message.command("list")
@_QUEUE
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@filter_options
@json_option
@space_option
def list_(queue: str, limit: int | None, as_json: bool, **options: Any) -> None:
    """List a queue's messages in the order of delivery, delayed ones last. Takes none.

    \b
    Examples:
      spool-admin message list orders --limit 20
      spool-admin message list orders --header tenant=acme --older-than 2h
    """
    chosen = filters(options)
    with opened() as space:
        shown = 0
        for found in space.browse(queue, **chosen):
            if as_json:
                write_json(message_object(found))
            else:
                if not shown:
                    click.echo(aligned(_COLUMNS, _WIDTHS, _RIGHT))
                cells = (
                    found.id, found.priority, found.attempts, len(found.body), shown_moment(found.enqueued_at),
                    shown_moment(found.not_before), found.correlation_id,
                )  # fmt: skip
                click.echo(aligned([*map(show, cells)], _WIDTHS, _RIGHT))
            shown += 1
            if shown == limit:
                break
        if not shown:
            note(f"queue {queue} has no such messages" if chosen else f"queue {queue} is empty")


@message.command("show")
@_ID
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
    for name in ("enqueued_at", "not_before", "expires_at"):
        fields[name] = shown_moment(fields[name])
    raw = found.body
    fields["body"] = f"{len(raw)} bytes"
    pairs({name.replace("_", " "): value for name, value in fields.items() if show(value) != NOTHING})
    try:
        text = printable(raw.decode("utf-8"), keep="\n\t")
    except UnicodeDecodeError:
        text = "(not text: --json has it in base64, and message get writes it as it is)"
    click.echo(f"\n{text}")


@message.command()
@click.argument("message_ids", type=typed_id, metavar="ID...", nargs=-1, required=True)
@space_option
def delete(message_ids: tuple[str, ...]) -> None:
    """Delete messages that nobody holds.

    \b
    Example:
      spool-admin message delete 5f0c7a1e9b3d48c2a6e1d07f00000000
    """
    from spool.errors import BadMessageId, MessageInUse

    failed = []
    with opened() as space:
        for message_id in dict.fromkeys(message_ids):
            try:
                space.delete(message_id)
            except (BadMessageId, MessageInUse) as error:
                failed.append(str(error))
    if len(message_ids) > len(failed):
        note(f"deleted {messages(len(message_ids) - len(failed))}")
    for text in failed[:-1]:
        note(text)
    if failed:
        raise Failure(failed[-1])


@message.command()
@_ID
@_QUEUE
@json_option
@space_option
def move(message_id: str, queue: str, as_json: bool) -> None:
    """Move a message that nobody holds to another queue, where it stands by its own age and priority.

    \b
    Example:
      spool-admin message move 5f0c7a1e9b3d48c2a6e1d07f00000000 orders
    """
    with opened() as space:
        _tell(space.move(message_id, queue), f"moved to queue {queue}", as_json)


@message.command()
@_ID
@click.option("--priority", type=int, metavar="N", help="1 to 100, higher first.")
@click.option("--not-before", type=or_nothing(moment), metavar="TIME", help="Invisible until then; none: at once.")
@click.option("--expires-at", type=or_nothing(moment), metavar="TIME", help="Not delivered from then on; none: never.")
@json_option
@space_option
def change(message_id: str, as_json: bool, **options: Any) -> None:
    """Change the priority or a time of a message that nobody holds.

    \b
    Examples:
      spool-admin message change 5f0c7a1e9b3d48c2a6e1d07f00000000 --priority 90
      spool-admin message change 5f0c7a1e9b3d48c2a6e1d07f00000000 --not-before none
    """
    chosen = given(options)
    if not chosen:
        raise click.UsageError("name what to change: --priority, --not-before or --expires-at")
    with opened() as space:
        _tell(space.change(message_id, **chosen), "changed", as_json)


def _tell(found: "Message", what: str, as_json: bool) -> None:
    if as_json:
        write_json(message_object(found))
    else:
        note(f"message {found.id}: {what}")


@message.command()
@_QUEUE
@click.option("--to", metavar="QUEUE", shell_complete=complete_queue, help="Else each goes back where it came from.")
@filter_options
@dry_run_option
@json_option
@space_option
def redrive(queue: str, to: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Put what failed back: from an error queue, each message to where it came from. Prints how many.

    \b
    Examples:
      spool-admin message redrive errors --dry-run
      spool-admin message redrive errors --to orders --older-than 1h
    """
    with opened() as space, progress("redriving", space.stats(queue).ready) as told:
        chosen = filters(options)
        there = space.purge(queue, dry_run=True, **chosen)
        count = space.redrive(queue, to, dry_run=dry_run, progress=told, **chosen)
    if as_json:
        write_json({"count": count})
    else:
        click.echo(count)
    note(f"{'would move' if dry_run else 'moved'} {messages(count)} of queue {queue}")
    if there > count and to is None:
        left = there - count
        stay = f"{messages(left)} {'stays' if left == 1 else 'stay'}"
        note(f"{stay}: held by a program, or from no queue that is there; for those name one, with --to QUEUE")
