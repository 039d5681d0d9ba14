"""A message in the form for callers: frozen, with the body and the control fields.

Control fields come from the file's table of contents, which has only the fields that differ from the default. The
properties of a message read their values from this table. So a call that takes a thousand messages does not create
twenty thousand fields.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, Self

from spool.errors import Argument, BadMessageId, InvalidArgument
from spool.model.checks import (
    FLAG,
    SHORT_TEXT,
    Option,
    ValueCheck,
    check,
    moment,
    number,
    plain,
    require,
    seconds,
    unwritable,
)
from spool.model.codecs import BYTES_TYPE
from spool.model.position import Position
from spool.model.settings import QUEUE_NAME, QueueConfig
from spool.model.text import shown
from spool.model.xid import BRANCH_ID_BYTES

DEFAULT_PRIORITY = 50
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


FIELDS = (
    "id", "queue", "body", "content_type", "priority", "enqueued_at", "not_before", "expires_at", "correlation_id",
    "reply_queue", "failure_queue", "user_code", "client_id", "application_key", "headers", "attempts", "deaths",
    "position", "origin_queue", "failure_reason", "group", "origin_attempts", "failed_at",
)  # fmt: skip


class MessageId(str):
    """The id that a put with a ``deduplication_key`` returns, a str.

    duplicate: True if an earlier message has the key. If so, the put added no message, and the id is that of the
        earlier message.
    """

    __slots__ = ("duplicate",)

    duplicate: bool

    def __new__(cls, id: str, duplicate: bool = False) -> Self:
        made = super().__new__(cls, id)
        made.duplicate = duplicate
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageId, (str(self), self.duplicate)


class Origin(NamedTuple):
    """The properties that neighbouring messages share: the branch, the queue, the commit and the control fields.

    branch: the id of the branch, in hexadecimal digits.
    first: the ordinal of the branch's first message in the commit.
    """

    branch: str
    first: int
    queue: str
    number: int
    committed_at: float
    attributes: Mapping[str, Any]


def _field(name: str, default: Any, doc: str) -> Any:
    """Return a property that reads a control field."""
    return property(lambda message: message._origin.attributes.get(name, default), doc=doc)


class Message:
    """A message. Times are in seconds since the epoch. ``attempts`` is the number of failed attempts."""

    __slots__ = {
        "_ordinal": None,
        "_origin": None,
        "body": "The body: bytes as bytes, str as str, any other value as its codec decodes it.",
    }

    body: Any
    _origin: Origin
    _ordinal: int

    def __init__(
        self, id: str, queue: str, body: Any, enqueued_at: float, position: Position, attributes: Mapping[str, Any]
    ) -> None:
        first = position.ordinal - int(id[-8:], 16)
        set_origin(self, Origin(id[:-8], first, queue, position.number, enqueued_at, attributes))
        set_ordinal(self, position.ordinal)
        set_body(self, body)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a message is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a message is frozen: {name} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self.id, self.queue, self.body, self.enqueued_at, self.position, dict(self._origin.attributes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, queue={self.queue!r}, body={shown(self.body)})"

    def as_dict(self) -> dict[str, Any]:
        """Return the names and plain values of all fields. ``json.dumps`` accepts the dict if it accepts the body."""
        return {**{name: getattr(self, name) for name in FIELDS}, "headers": dict(self.headers)}

    @property
    def id(self) -> str:
        """The id of the message: 32 hexadecimal digits. No other message has the same id."""
        return f"{self._origin.branch}{self._ordinal - self._origin.first:08x}"

    @property
    def queue(self) -> str:
        """The name of the queue that has the message, or from which the message was taken."""
        return self._origin.queue

    @property
    def position(self) -> Position:
        """The permanent place of the message in the space: the number of its commit, and its ordinal in that commit."""
        return Position(self._origin.number, self._ordinal)

    @property
    def enqueued_at(self) -> float:
        """The time at which the put of the message was committed, in seconds since the epoch."""
        return self._origin.committed_at

    @property
    def not_before(self) -> float | None:
        """The time from which the message may be taken, in seconds since the epoch; None if it may be taken at once."""
        return due_time(self._origin.attributes, self.enqueued_at)

    @property
    def expires_at(self) -> float | None:
        """The time of its end, in seconds since the epoch: then it is no longer delivered. None if it never expires."""
        return expiry_time(self._origin.attributes, self.enqueued_at)

    @property
    def headers(self) -> Mapping[str, str]:
        """A read-only map of names to texts. The map is empty if the put gave no headers."""
        found = self._origin.attributes.get("headers")
        return _NO_HEADERS if found is None else MappingProxyType(found)

    content_type: Final[str] = _field(
        "content_type", BYTES_TYPE, "The media type of the body: that of the put, or else that of the body's codec."
    )
    codec: Final[str | None] = _field(
        "codec", None, "The codec that wrote the body: text, json, msgpack or a registered one; None: bytes."
    )
    priority: Final[int] = _field("priority", DEFAULT_PRIORITY, "1 to 100; a queue by priority delivers 100 first.")
    correlation_id: Final[str | None] = _field(
        "correlation_id", None, "The text by which the message and its reply can be found; None if the put gave none."
    )
    reply_queue: Final[str | None] = _field(
        "reply_queue", None, "The queue for the reply of a service: of the put, or else of the queue; None: no reply."
    )
    failure_queue: Final[str | None] = _field(
        "failure_queue", None, "The queue for the reply of a service that rejects it: of the put, or else of the queue."
    )
    user_code: Final[int] = _field("user_code", 0, "A whole number for the application's use; 0 if the put gave none.")
    client_id: Final[str | None] = _field("client_id", None, "The name of the sender; None if the put gave none.")
    application_key: Final[str | None] = _field("application_key", None, "A text for the application's use, or None.")
    group: Final[str | None] = _field("group", None, "The group whose messages are handled one by one, or None.")
    attempts: Final[int] = _field("attempts", 0, "The number of failed attempts in this queue.")
    deaths: Final[int] = _field(
        "deaths", 0, "How many of these attempts ended with the death of a process, if the queue limits deaths."
    )
    origin_queue: Final[str | None] = _field(
        "origin_queue", None, "The queue that it came from when it moved to an error queue; None: it did not."
    )
    origin_attempts: Final[int] = _field("origin_attempts", 0, "The failed attempts before it moved to an error queue.")
    failure_reason: Final[str | None] = _field("failure_reason", None, "Why its last attempt failed, or None.")

    @property
    def failed_at(self) -> float | None:
        """The time of the message's last failed attempt, in seconds since the epoch; None if no attempt has failed."""
        return failure_time(self._origin.attributes, self.enqueued_at)


# The class refuses assignments, so these setters of the slots fill a new message. The setters run no Python code;
# object.__setattr__ would take three times as long.
new_message = partial(Message.__new__, Message)
set_origin, set_ordinal, set_body = (Message.__dict__[name].__set__ for name in ("_origin", "_ordinal", "body"))


def due_time(attributes: Mapping[str, Any], committed_at: float) -> float | None:
    """Return the time from which the message may be taken, or None if it may be taken at once.

    A relative time counts from the commit.
    """
    if "delay" in attributes:
        return committed_at + float(attributes["delay"])
    return attributes.get("not_before")


def expiry_time(attributes: Mapping[str, Any], committed_at: float) -> float | None:
    """Return the time from which the message is not delivered any more, or None if it never expires."""
    if "time_to_live" in attributes:
        return committed_at + float(attributes["time_to_live"])
    return attributes.get("expires_at")


def failure_time(attributes: Mapping[str, Any], committed_at: float) -> float | None:
    """Return the time of the last failed attempt; None if no attempt has failed.

    A program, e.g. a pipeline, can also put a message with a ``failure_reason``. The failure time of a message that was
    put as failed is the time of its put.
    """
    return attributes.get("failed_at", committed_at) if "failure_reason" in attributes else None


def stored_fields(message: Message) -> Mapping[str, Any]:
    """Return the control fields of a message that differ from their defaults.

    The returned fields include a reply queue and a failure queue from the queue's options.
    """
    return message._origin.attributes


def message_id(branch_id: bytes, ordinal: int) -> str:
    """Return the message's id, 32 hexadecimal digits: the branch's 96-bit id and the 32-bit ordinal in the branch."""
    return f"{branch_id.hex()}{ordinal:08x}"


def parse_message_id(text: object) -> tuple[bytes, int]:
    """Return (branch id, ordinal in the branch). Raises BadMessageId if the text is not a message's id."""
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) and len(text) == 32 else b""
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise BadMessageId(f"{shown(text)} is not a message id, which is 32 hexadecimal digits")
    return raw[:BRANCH_ID_BYTES], int.from_bytes(raw[BRANCH_ID_BYTES:], "big")


def _headers(headers: Any) -> dict[str, str] | None:
    """Copy a caller's headers, and check the copy. So a later change of the caller's mapping has no effect."""
    require(isinstance(headers, Mapping))
    try:
        copy = dict(headers)
    except Exception as error:  # a mapping of the application may raise any exception
        raise InvalidArgument(
            Argument("headers"), f" is {_A_MAP}, and this one fails ({shown(error)}): give a dict"
        ) from error
    found = {}
    for name, value in copy.items():
        name, words = plain(name), plain(value)
        require(bool(name))
        try:
            f"{name}{words}".encode()
        except UnicodeEncodeError:
            raise unwritable("a header", f"{name}={words}") from None
        found[name] = words
    return found or None


def _before(id: Any) -> str:
    parse_message_id(id)
    return str(id)


_A_MAP = "a map of names to texts, e.g. {'tenant': 'acme'}"
_TEXT = SHORT_TEXT._replace(optional=True)
_QUEUE = QUEUE_NAME._replace(optional=True)
_SECONDS = ValueCheck("a number of seconds from 0", partial(seconds, most=1e12), "TIME", optional=True)
_MOMENT = ValueCheck(
    "a number of seconds since the epoch from 0, or a datetime with a time zone (value.astimezone() has one)",
    partial(moment, most=1e12), "MOMENT", optional=True,
)  # fmt: skip
PUT_OPTIONS: Mapping[str, Option] = {
    "content_type": Option(
        _TEXT,
        "The media type of the body. With application/json the body must be JSON, and a consumer in Python gets its "
        "value, e.g. a dict; with application/msgpack the same holds for msgpack.",
    ),
    "priority": Option(
        number(100, 1), "The priority, 1 to 100; a queue whose order names priority delivers the higher first.",
        DEFAULT_PRIORITY,
    ),
    "delay": Option(
        _SECONDS._replace(convert=lambda value: seconds(value, 1e12) or None),
        "How long the message is hidden, from the commit of its put on; {not_before} excludes it.",
    ),
    "not_before": Option(_MOMENT, "The time before which the message is not delivered; {delay} excludes it."),
    "time_to_live": Option(
        _SECONDS,
        "How long the message can be delivered, from the commit of its put on; {expires_at} excludes it.",
    ),
    "expires_at": Option(
        _MOMENT, "The time from which the message is not delivered any more; {time_to_live} excludes it."
    ),
    "top": Option(FLAG, "Put the message before all others; the queue's {out_of_order} must have top.", False),
    "before": Option(
        ValueCheck("the id of a message", _before, "ID", optional=True),
        "The message that this one is put before; the queue's {out_of_order} must have before; {top} excludes it.",
    ),
    "group": Option(_TEXT, "The group of the message; messages of a group are delivered in order, one at a time."),
    "deduplication_key": Option(
        _TEXT,
        "A key of the message. If a message was put with this key within the queue's {deduplication_window}, nothing "
        "is put, and the id is that of the earlier message.",
    ),
    "correlation_id": Option(_TEXT, "A text by which the message and its reply can be found."),
    "reply_queue": Option(_QUEUE, "The queue that a service puts its reply into."),
    "failure_queue": Option(_QUEUE, "The queue that a service puts its reply into when it rejects the message."),
    "user_code": Option(number(2**63 - 1, -(2**63), optional=True), "A whole number for the application's own use.", 0),
    "client_id": Option(_TEXT, "The name of the client that puts the message."),
    "application_key": Option(_TEXT, "A text for the application's own use, e.g. a tenant's key."),
    "headers": Option(
        ValueCheck(_A_MAP, _headers, "NAME=VALUE", optional=True), "Names and texts that travel with the message."
    ),
}  # fmt: skip
_EXCLUSIVE = (("delay", "not_before"), ("time_to_live", "expires_at"), ("top", "before"))


def attributes_of(**options: Any) -> dict[str, Any]:
    """Check the options of a put, and return the control fields that differ from their defaults.

    Raises InvalidArgument, with the allowed values. ``before`` is the id of a message; ``validation`` later replaces
    the id by a place in the queue. The deduplication key is left out.
    """
    for one, other in _EXCLUSIVE:
        if not (options.get(one) is None or options[one] is False or options.get(other) is None):
            raise exclusive(one, other)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if (option := PUT_OPTIONS.get(name)) is None:
            raise TypeError(f"put() got an unexpected keyword argument {name!r}")
        if value is option.default or value == option.default:
            continue
        kept = check(name, value, option.check)
        if kept is not None and name != "deduplication_key":
            found[name] = kept
    return found


def exclusive(one: str, other: str) -> InvalidArgument:
    """Return the error for two arguments that exclude each other."""
    return InvalidArgument(Argument(one), " and ", Argument(other), " exclude each other: give one of them")


def check_content_type(value: object) -> str | None:
    """Return the value if it is None or a content type that can be stored. Otherwise raise InvalidArgument."""
    return check("content_type", value, _TEXT)  # type: ignore[no-any-return]


def headers_bytes(headers: Mapping[str, str]) -> int:
    """Return the size of all names and values of headers together, in bytes."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def with_defaults(config: QueueConfig, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message's control fields. A missing reply queue or failure queue is taken from the queue's options."""
    defaults = {"reply_queue": config.reply_queue, "failure_queue": config.failure_queue}
    return {**{name: value for name, value in defaults.items() if value is not None}, **attributes}


# A new absolute time replaces the time that is relative to the commit.
_RELATIVE = {"not_before": "delay", "expires_at": "time_to_live"}


def updated(attributes: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's control fields after an update.

    The value None removes a time. ``queue`` and ``why`` describe the update, so they do not become fields of the
    message. A message that moves to another queue loses its place at the top or in front of another message.
    """
    fields = {**attributes, **changes}
    for name, relative in _RELATIVE.items():
        if name in changes:
            fields.pop(relative, None)
            if changes[name] is None:
                del fields[name]
    if fields.pop("queue", None) is not None:
        fields.pop("top", None)
        fields.pop("before", None)
    fields.pop("why", None)
    return fields
