"""``spool-admin message put``: put a message, or one for each line of the input."""

import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from spool.model.message import PUT_OPTIONS
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE
from xaspool_scripts.terminal.output import answering, write_bytes, write_json
from xaspool_scripts.terminal.program import Failure, SpaceCommand, complete_queue, json_option, note, opened
from xaspool_scripts.terminal.shared_options import given, lifetime, options_of
from xaspool_scripts.terminal.wording import plural, printable

if TYPE_CHECKING:
    from spool import Space

_LINES_AT_ONCE = 1_000


@click.command(cls=SpaceCommand)
@click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)
@click.option("--body", metavar="TEXT", help="The body of the message as text; a consumer in Python gets a str.")
@click.option(
    "--file", "file", type=click.File("rb"), metavar="FILE",
    help="The file whose content is the body. As in drop/, its suffix decides the type: .json is a JSON value, .txt a "
    "text, others are bytes, unless --content-type or a --drop-type of the queue says otherwise.",
)  # fmt: skip
@click.option("--each-line", is_flag=True, help="Put each line of the input as one message, all of them in one commit.")
@options_of(PUT_OPTIONS, types={"time_to_live": lifetime})
@json_option
def put(queue: str, body: str | None, file: BinaryIO | None, each_line: bool, as_json: bool, **options: Any) -> None:
    """Put a message, whose body is TEXT, a file or standard input, and print its id.

    \b
    Examples:
      spool-admin message put orders --body hello --delay 5m
      spool-admin message put orders --file order.json
      spool-admin message put orders --file order.xml --header tenant=acme --content-type application/xml
      spool-admin message put orders --body '{"tea": 2}' --content-type application/json
      make-order | spool-admin message put orders
      spool-admin message put orders --each-line < orders.txt
    """
    if body is not None and (file is not None or each_line):
        raise click.UsageError("--body excludes --file and --each-line: give one of them")
    chosen = given(options)
    if each_line and "deduplication_key" in chosen:
        raise click.UsageError("--deduplication-key is for one message: leave it or --each-line out")
    with opened() as space:
        if each_line:
            ids = _put_lines(space, queue, file or _standard_input(), chosen)
        else:
            ids = [space.put(queue, body_of_command(space, queue, body, file, chosen), **chosen)]
    if not ids:
        note("the input has no lines: nothing was put")
        return
    done = f"message {ids[0]} is" if len(ids) == 1 else f"{plural(len(ids), 'message')} are"
    with answering(f"{done} in queue {queue}"):
        for message_id in ids:
            write_id(message_id, as_json)
    if _object(ids[0]).get("duplicate"):
        note(f"message {ids[0]} was put with this deduplication key before: nothing was put")


def write_id(message_id: str, as_json: bool) -> None:
    """Write the id of a new message to stdout."""
    if as_json:
        write_json(_object(message_id))
    else:
        write_bytes(f"{message_id}\n".encode())


def _object(message_id: str) -> dict[str, Any]:
    """Return an id for JSON. After a put with a deduplication key, also say whether an earlier message has this id."""
    from spool import MessageId

    return {"id": message_id, **({"duplicate": message_id.duplicate} if isinstance(message_id, MessageId) else {})}


def _text(argument: str) -> str | bytes:
    """Return an argument as text, or as bytes if the typed bytes are not UTF-8."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(argument)
    return argument


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input: give --body or --file")
    if sys.stdin.isatty():
        note("reading from the terminal; end it with Ctrl-D")
    return sys.stdin.buffer


def _all_of(space: "Space", file: BinaryIO) -> bytes:
    """Read the file, but at most one byte more than a body may have. The put then refuses the body."""
    return file.read(space.engine.config().max_body_bytes + 1)


def body_of_command(space: "Space", queue: str, body: str | None, file: BinaryIO | None, chosen: dict[str, Any]) -> Any:
    """Return the body of a message: a text, the content of a file, or standard input.

    Unless ``chosen`` has a content type, the suffix of the file decides the content type (see ``type_of`` in
    ``spool.intake``), which is added to ``chosen``.
    """
    if file is None or "content_type" in chosen:
        return _with_codec(_text(body) if body is not None else _all_of(space, file or _standard_input()), chosen)
    from spool.errors import InvalidArgument
    from spool.intake import body_of, type_of

    config = space.queues().get(queue)
    name = os.fspath(file.name)
    kind = type_of(name, config.drop_types if config else {})
    try:
        content, chosen["content_type"] = body_of(_all_of(space, file), kind)
    except InvalidArgument as error:
        text = f"{printable(name)}: {error}; correct it, or name another --content-type"
        raise Failure(text, WRONG_USAGE) from None
    return content


def _with_codec(body: str | bytes, chosen: dict[str, Any]) -> Any:
    """Mark the body as already encoded by the codec of its content type. The bytes are not changed."""
    from spool.model import codecs

    codec = codecs.codec_of(chosen.get("content_type"))
    if codec is None:
        return body
    return codecs.Encoded(body.encode() if isinstance(body, str) else body, codec)


def _put_lines(space: "Space", queue: str, file: BinaryIO, chosen: dict[str, Any]) -> list[str]:
    """Put one message for each line, without the line end. All messages are put in one commit."""
    limit = space.engine.config().max_body_bytes + 2
    lines = iter(lambda: file.readline(limit), b"")
    ids: list[str] = []
    with space.transaction(timeout=None) as transaction:
        while batch := [_with_codec(line.removesuffix(b"\n"), chosen) for line in islice(lines, _LINES_AT_ONCE)]:
            ids += transaction.put_many(queue, batch, **chosen)
    return ids
