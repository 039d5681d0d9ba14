"""Encode Python values as bytes, and decode them. Nothing is pickled.

Bytes are stored unchanged. Any other value is stored with the name of its codec.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgpack

from spool.errors import CorruptedFile, InvalidArgument, UnknownCodec
from spool.model.checks import SHORT_TEXT, check
from spool.model.text import class_name, shown, storable

TEXT_TYPE = "text/plain; charset=utf-8"
JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"
BYTES_TYPE = "application/octet-stream"


class _NotPlain(TypeError):
    """No codec of the library can encode the value. The error's text suggests another value."""


# The names of types that neither msgpack nor JSON has. For each type: an expression for a value that a caller can put
# instead. The types need not be imported.
_INSTEAD = {
    "Enum": "value.value", "date": "value.isoformat()", "time": "value.isoformat()", "set": "list(value)",
    "frozenset": "list(value)", "Decimal": "str(value)", "UUID": "str(value)", "PurePath": "str(value)",
    "Fraction": "str(value)", "timedelta": "value.total_seconds()", "BaseModel": "value.model_dump()",
    "generic": "value.item()", "ndarray": "value.tolist()", "DataFrame": 'value.to_dict("records")',
    "Series": "value.tolist()", "Message": "value.body",
}  # fmt: skip


def _refused(value: object) -> _NotPlain:
    """Return the error for a value that neither msgpack nor JSON has."""
    kind = type(value)
    if isinstance(value, datetime):
        return _NotPlain("a datetime without a time zone: put value.astimezone(), or value.isoformat()")
    if isinstance(value, int):
        return _NotPlain(f"the integer {shown(value)}, which needs more than 64 bits: put str(value)")
    if hasattr(kind, "__dataclass_fields__"):
        return _NotPlain(f"the dataclass {kind.__name__}: put dataclasses.asdict(value)")
    instead = next((_INSTEAD[base.__name__] for base in kind.__mro__ if base.__name__ in _INSTEAD), "a plain value")
    return _NotPlain(f"a value of type {kind.__name__}: put {instead}")


def _replace_in_msgpack(value: object) -> datetime:
    """Return a time with a time zone, e.g. a pandas.Timestamp, as a plain datetime. msgpack accepts no derived classes.

    Raises _NotPlain for any other value.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    raise _refused(value)


def _refuse_in_json(value: object) -> None:
    if isinstance(value, datetime):
        raise _NotPlain("a datetime: put value.isoformat(), or value.timestamp()")
    if isinstance(value, bytes | bytearray | memoryview):
        raise _NotPlain("bytes: put them as base64, or put the body as msgpack")
    raise _refused(value)


def _pack(value: object) -> bytes:
    """Encode as msgpack. A time with a time zone becomes a timestamp; the decoded time is in UTC.

    Raises OverflowError or ValueError for a time that is not in the years 1 to 9999 in UTC: no datetime can be decoded.
    """
    raw: bytes = msgpack.packb(value, datetime=True, default=_replace_in_msgpack)
    if b"\xff" in raw:  # perhaps the type of a timestamp
        _unpack(raw)
    return raw


def _unpack(raw: bytes) -> Any:
    """Decode msgpack. An array that is a map key becomes a tuple again."""
    try:
        return msgpack.unpackb(raw, strict_map_key=False, timestamp=3)
    except TypeError:

        def with_tuples(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
            return {_hashable(key): value for key, value in pairs}

        return msgpack.unpackb(raw, strict_map_key=False, timestamp=3, object_pairs_hook=with_tuples)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


class Codec(NamedTuple):
    """``encode`` converts a value to bytes, and ``decode`` converts the bytes to the value. ``content_type`` is the
    default media type of a message with this codec."""

    content_type: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_in_json = partial(json.dumps, ensure_ascii=False, allow_nan=False, default=_refuse_in_json)
CODECS: dict[str, Codec] = {
    "text": Codec(TEXT_TYPE, lambda value: value.encode("utf-8"), lambda raw: raw.decode("utf-8")),
    "json": Codec(JSON_TYPE, lambda value: _in_json(value).encode(), json.loads),
    "msgpack": Codec(MSGPACK_TYPE, _pack, _unpack),
}
# The exceptions of each codec of the library for bytes that it cannot decode. Any other exception comes from elsewhere,
# e.g. from the handler of a time limit, and says nothing of the bytes.
_UNREADABLE = dict.fromkeys(CODECS, (ValueError, TypeError, OverflowError))


class Encoded(NamedTuple):
    """A body that the caller has already encoded with a codec, e.g. JSON from a file. The bytes are stored unchanged,
    and a consumer gets the decoded value. ``proven``: whether ``check_encoded`` has accepted the bytes."""

    raw: bytes
    codec: str
    proven: bool = False


_SPARE_FRAMES = 200


def check_encoded(raw: bytes, codec: str) -> None:
    """Raise ValueError unless ``codec`` can decode the bytes, and can encode the decoded value again.

    JSON has to be UTF-8. NaN, numbers beyond the largest float, and half of a surrogate pair are refused.

    The check leaves some stack frames unused while it decodes the bytes. So a consumer with a somewhat deeper stack can
    also decode the bytes.
    """

    def read(spare: int) -> None:
        if spare:
            read(spare - 1)
        elif codec == "json":
            _in_json(json.loads(raw.decode("utf-8"))).encode("utf-8")
        else:
            decode(raw, codec)

    try:
        read(_SPARE_FRAMES)
    except (ValueError, CorruptedFile) as error:
        raise ValueError(str(error).removeprefix(f"the body is not {codec}: ")) from None
    except RecursionError:
        raise ValueError("its lists and maps are nested too deeply") from None


def codec_of(content_type: str | None) -> str | None:
    """Return the codec of a content type, or None if the type has no codec. Parameters of the type are ignored."""
    return {JSON_TYPE: "json", MSGPACK_TYPE: "msgpack"}.get((content_type or "").split(";")[0].strip().lower())


_TYPES: dict[type, str] = {}


def register_codec(name: str, codec: Codec, *types: type) -> None:
    """From now on, use a codec in this process for values of its types and of derived types.

    ``name`` is stored with each message. A process that takes the message must also register the codec.

    Raises InvalidArgument if the name or one of the types already has another codec.
    """
    name = check("the name of a codec", name, SHORT_TEXT)
    if not isinstance(codec, Codec) or not (callable(codec.encode) and callable(codec.decode)):
        raise InvalidArgument(f"a codec is a spool.Codec(content_type, encode, decode), not {shown(codec)}")
    check("the content_type of a codec", codec.content_type, SHORT_TEXT)
    if not types or not all(isinstance(one, type) for one in types):
        raise InvalidArgument(f"a codec is for types, e.g. Decimal, not for {shown(types)}")
    if CODECS.get(name, codec) != codec:
        raise InvalidArgument(f"there is a codec {name!r} already: choose another name")
    for one in types:
        if issubclass(one, bytes | bytearray | memoryview | str) or _TYPES.get(one, name) != name:
            raise InvalidArgument(f"values of type {one.__name__} have a codec already")
    CODECS[name] = codec
    _TYPES.update(dict.fromkeys(types, name))


def _name_for(value: Any, content_type: str | None) -> str:
    if isinstance(value, str):
        return "text"
    for kind, name in reversed(_TYPES.items()):
        if isinstance(value, kind):
            return name
    return "json" if codec_of(content_type) == "json" else "msgpack"


def encode(value: Any, content_type: str | None = None) -> tuple[bytes, str | None, str | None]:
    """Encode a body. Returns (bytes, codec name or None for bytes, content type or None for plain bytes).

    Bytes and an ``Encoded`` body are not changed. A str becomes UTF-8. A registered codec encodes the values of its
    types. Any other value becomes JSON if the content type is JSON, and otherwise msgpack.

    Raises InvalidArgument if the codec cannot encode the value, or cannot decode the ``Encoded`` body.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None, content_type
    if isinstance(value, Encoded):
        try:
            if not value.proven:
                check_encoded(value.raw, value.codec)
        except ValueError as error:
            raise InvalidArgument(
                f"the body is not {value.codec}: {error}: fix the body, or give another content type"
            ) from None
        return value.raw, value.codec, content_type or CODECS[value.codec].content_type
    name = _name_for(value, content_type)
    codec = CODECS[name]
    try:
        raw = codec.encode(value)
        if not isinstance(raw, bytes):
            raise TypeError(f"its codec returned {type(raw).__name__}, not bytes")
        return raw, name, content_type or codec.content_type
    except MemoryError:
        raise
    except _NotPlain as error:
        raise InvalidArgument(
            f"a body cannot be written as {name}, for it is or holds {error}; or register a codec for the type of the "
            "whole body, with spool.register_codec"
        ) from None
    except Exception as error:  # a registered codec is code of the application, and may raise any exception
        said = storable(error) or class_name(error)
        raise InvalidArgument(
            f"a body of type {type(value).__name__} cannot be written as {name} ({said}): put bytes, str, or "
            "what msgpack or JSON can express; spool.register_codec adds types for whole bodies, so make a "
            "value inside a list or a map a plain one first, e.g. by str()"
        ) from None


def _decoded_alone(codec: Codec, raw: bytes) -> Any:
    """Decode in a thread, whose stack is empty. Raises ValueError if the value is nested too deeply for this, too."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(codec.decode, raw)
    if isinstance(error := found.exception(), RecursionError):
        raise ValueError(str(error))
    return found.result()


def decode(raw: bytes, name: str | None) -> Any:
    """Return the value that was put.

    Raises CorruptedFile if a codec of the library cannot decode the bytes. Raises UnknownCodec if this process has not
    registered the codec, or if a registered codec fails. If decoding fails, the message remains in its queue.
    """
    if name is None:
        return raw
    if (codec := CODECS.get(name)) is None:
        raise UnknownCodec(f"its body was written by the codec {name!r}, which this process lacks: register it")
    try:
        try:
            return codec.decode(raw)
        except RecursionError:  # the caller's stack may be deep: only an empty stack shows whether the body is to blame
            return _decoded_alone(codec, raw)
    except Exception as error:
        if isinstance(error, MemoryError) or not isinstance(error, _UNREADABLE.get(name, Exception)):
            raise
        if name in _UNREADABLE:
            raise CorruptedFile(f"the body is not {name}: {error}") from None
        raise UnknownCodec(f"the codec {name!r}, as registered here, cannot read its body: {shown(error)}") from error
