"""Dropped files as messages. A ``.msgpack`` file is a stream of maps, whose keys are argument names of ``put``. Any
other file is one message.

The suffix of a file determines the type of the body: a JSON value, a text, or bytes. A queue's ``drop_types`` changes
the types.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

from spool.disk.quarantine import FileCause
from spool.errors import InvalidArgument, SpoolError
from spool.model import codecs
from spool.model.message import PUT_OPTIONS, attributes_of, check_content_type
from spool.model.settings import AS_BYTES
from spool.policies.dropped_states import Action, Verdict

STREAM_SUFFIX = ".msgpack"
TYPES: Mapping[str, str] = {".json": codecs.JSON_TYPE, ".txt": "text/plain"}  # for every queue; other files are bytes
STREAM = "stream"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_STREAM_MESSAGES = 1_000_000
_ARGUMENTS = ("body", *PUT_OPTIONS)


class NotTaken(InvalidArgument):
    """A captured file is not taken, by this decision."""

    def __init__(self, why: str, cause: FileCause = FileCause.REFUSED, step: Action = Action.QUARANTINE) -> None:
        super().__init__(why)
        self.decision = Verdict(step, why, cause)


class PutArguments(NamedTuple):
    """The arguments of one ``put``. ``bytes``: the size of the encoded body."""

    body: Any
    options: dict[str, Any]
    bytes: int = 0


def type_of(name: str, types: Mapping[str, str]) -> str:
    """Return the type that belongs to a file's longest known suffix, in upper or lower case. Without a known suffix,
    the type is "bytes".

    ``types``: the queue's own types, which override ``TYPES``.
    """
    return _suffix_and_type(name, types)[1]


def _suffix_and_type(name: str, types: Mapping[str, str]) -> tuple[str, str]:
    known = {STREAM_SUFFIX: STREAM, **TYPES, **types}
    suffixes = [suffix for suffix in known if name.lower().endswith(suffix)]
    longest = max(suffixes, key=len, default="")
    return longest, known[longest] if suffixes else AS_BYTES


def body_of(data: bytes, kind: str) -> tuple[Any, str | None]:
    """Return a file's content as a body, and the content type of the body. Raise InvalidArgument if the content does
    not have the type ``kind``.

    A text that is not UTF-8 remains bytes. The byte order mark that some editors write before UTF-8 is removed from
    texts and JSON.
    """
    codec = codecs.codec_of(kind)
    if kind in (AS_BYTES, STREAM):
        return data, None
    if codec is not None:
        raw = data.removeprefix(_BYTE_ORDER_MARK) if codec == "json" else data
        try:
            codecs.check_encoded(raw, codec)
        except ValueError as error:
            raise InvalidArgument(f"it is not {codec}: {error}") from None
        return codecs.Encoded(raw, codec, proven=True), kind
    if re.match(r"text/(?!.*charset=(?!utf-8\b))", kind, re.IGNORECASE):
        try:
            text = data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
            return text, None if kind == TYPES[".txt"] else kind
        except UnicodeDecodeError:
            pass
    return data, kind


def least_body_bytes(size: int, kind: str) -> int:
    """Return the least possible size of all bodies in a file of this size and type, without reading the file."""
    if kind == STREAM:
        return 0
    return size if kind == AS_BYTES else max(0, size - len(_BYTE_ORDER_MARK))


def puts_of(
    name: str,
    data: bytes,
    body_limit: int,
    check: Callable[..., object] = attributes_of,
    types: Mapping[str, str] = TYPES,
    queue: str = "QUEUE",
) -> list[PutArguments]:
    """Return the puts for a file.

    Args:
        queue: the queue's name, for the text of an error.
        types: the queue's ``drop_types``.
        check: a function that is called with the options of each put of a stream, and raises an error if the queue
            refuses the options.

    Raises:
        InvalidArgument: a part of the file is not acceptable, so no message of the file is put.
    """
    suffix, kind = _suffix_and_type(name, types)
    if kind == STREAM:
        puts = [_checked(put, f"message {count}", check) for count, put in enumerate(_stream(data), 1)]
    else:
        puts = [_one(name, data, kind, f"{queue} --drop-type {suffix}=bytes")]
    for n, put in enumerate(puts, 1):
        if put.bytes > body_limit:
            raise NotTaken(f"message {n} has {put.bytes} bytes; max_body_bytes is {body_limit}", FileCause.TOO_LARGE)
    return puts


def _checked(put: PutArguments, what: str, check: Callable[..., object]) -> PutArguments:
    try:
        check(**{key: value for key, value in put.options.items() if key != "content_type"})
        check_content_type(put.options.get("content_type"))
        return put._replace(bytes=len(codecs.encode(put.body, put.options.get("content_type"))[0]))
    except (SpoolError, TypeError) as error:
        raise InvalidArgument(f"{what}: {error}") from None


def _one(name: str, data: bytes, kind: str, as_bytes: str) -> PutArguments:
    """Return the put for a file. ``as_bytes``: the arguments of the command after which the queue takes such files as
    bytes."""
    try:
        body, content_type = body_of(data, kind)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{error}; correct the file, or let the queue take such files as they are: "
            f"spool-admin queue change {as_bytes}"
        ) from None
    printable = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    options: dict[str, Any] = {"headers": {"filename": printable}}
    size = len(data if type(body) is bytes else data.removeprefix(_BYTE_ORDER_MARK))
    return PutArguments(body, options if content_type is None else {**options, "content_type": content_type}, size)


def _stream(data: bytes) -> list[PutArguments]:
    # The size of the buffer also limits the lengths that the data may declare.
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) or 1, strict_map_key=False, timestamp=3)
    unpacker.feed(data)
    puts: list[PutArguments] = []
    end = 0
    try:
        for found in unpacker:
            end = unpacker.tell()  # (after a truncated message, ``tell`` would return the end of the data)
            puts.append(_put(found, len(puts) + 1))
            if len(puts) > _MAX_STREAM_MESSAGES:
                raise InvalidArgument(f"it holds more than {_MAX_STREAM_MESSAGES} messages: split it")
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        if isinstance(error, SpoolError):
            raise
        raise InvalidArgument(f"it is not msgpack: {str(error) or type(error).__name__}") from None
    if end != len(data):
        raise InvalidArgument(f"it ends within a message: {len(data) - end} bytes at its end are no whole map")
    if not puts:
        raise InvalidArgument("it is named .msgpack and holds no message")
    return puts


def _put(fields: Any, count: int) -> PutArguments:
    if not isinstance(fields, dict):
        raise InvalidArgument(f"message {count} is not a map, but {type(fields).__name__}")
    unknown = sorted(str(key) for key in fields if key not in _ARGUMENTS)
    if unknown:
        known, names = ", ".join(_ARGUMENTS), ", ".join(unknown)
        raise InvalidArgument(f"message {count} has unknown keys {names}; there are {known}")
    if "body" not in fields:
        raise InvalidArgument(f"message {count} has no body")
    return PutArguments(fields["body"], {key: value for key, value in fields.items() if key != "body"})
