"""The options of queues and spaces: names, defaults, meanings and checks, and configurations that passed the checks.

The fields of ``QueueConfig`` and ``SpaceConfig`` are the only list of these options. The options of commands, the help
of ``spool.QueueOptions``, and the rules of ``space.toml`` are made from this list.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from spool.errors import Argument, InvalidArgument
from spool.model import layout
from spool.model.checks import (
    DELAY,
    FLAG,
    TIME_LIMIT,
    Option,
    ValueCheck,
    check_options,
    given,
    number,
    one_of,
    require,
    text,
)
from spool.model.text import shown

FIFO, LIFO, PRIORITY, TIME = "fifo", "lifo", "priority", "time"
TOP, BEFORE = "top", "before"
AS_BYTES = "bytes"  # a type of dropped files
WORK, ERROR, STATE = "work", "error", "state"  # the roles of a queue

_SUFFIX = re.compile(r"(\.[A-Za-z0-9_+-]{1,32}){1,3}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,100}/[A-Za-z0-9.+-]{1,100}( *; *[\w.-]{1,50}=[\w.-]{1,50})*", re.ASCII)
_LONGEST_TYPES = 1000  # in characters, because one line of space.toml has all types or patterns
_LONGEST_PATTERN = 255  # in characters, as of the longest file name
_LARGEST = 2**62


# -- the checks -------------------------------------------------------------------------------------------------------

_LEAST_DROPPED_LIMIT = 16 << 20  # bytes


def _words(value: Any) -> tuple[str, ...]:
    """Return a tuple of words, from a list or from a text with commas."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    require(isinstance(words, list | tuple) and all(isinstance(word, str) for word in words))
    return tuple(words)


def _order(value: Any) -> tuple[str, ...]:
    words = _words(value)
    require(bool(words))
    if words[-1] not in (FIFO, LIFO):
        words += (FIFO,)
    require(set(words[:-1]) <= {PRIORITY, TIME} and len(set(words)) == len(words))
    return words


def _out_of_order(value: Any) -> tuple[str, ...]:
    words = () if value == "" else _words(value)
    require(set(words) <= {TOP, BEFORE})
    return tuple(word for word in (TOP, BEFORE) if word in words)


def _mark(value: Any) -> str:
    parse_mark(value)
    return str(value)


def _absolute(value: Any) -> str:
    require(text(value).startswith("/"))
    return text(value)


def _queue_name(value: Any) -> str:
    require(isinstance(value, str) and layout.is_queue_name(value) is not None)
    return str(value)


def _drop_types(value: Any) -> dict[str, str]:
    """Return the types by suffix. Suffixes become lower case, because a dropped file's suffix may have any case."""
    require(isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair))
    found = {suffix.lower(): kind for suffix, kind in value.items()}
    require(len(found) == len(value) and sum(map(len, [*found, *found.values()])) <= _LONGEST_TYPES)
    for suffix, kind in found.items():
        require(_SUFFIX.fullmatch(suffix) is not None and suffix not in layout.UNFINISHED_SUFFIXES)
        require(kind == AS_BYTES or _MEDIA_TYPE.fullmatch(kind) is not None)
    return found


def _patterns(value: Any) -> tuple[str, ...]:
    found = _words(value)
    require(len(set(found)) == len(found) and sum(map(len, found)) <= _LONGEST_TYPES)
    for pattern in found:
        require("/" not in text(pattern, _LONGEST_PATTERN))
    return found


def _marker(value: Any) -> str:
    require(_SUFFIX.fullmatch(text(value)) is not None and value.lower() not in layout.UNFINISHED_SUFFIXES)
    return text(value)


NAME_RULE = "1 to 127 letters, digits, '.', '_' or '-', and does not start with a dot"
QUEUE_NAME = ValueCheck(f"the name of a queue, which has {NAME_RULE}", _queue_name, "QUEUE")
_QUEUE = QUEUE_NAME._replace(optional=True)
_MARK_CHECK = ValueCheck("""a mark like "80%", "5000 messages" or "1 GiB\"""", _mark, "MARK", optional=True)
_COUNT = number(_LARGEST, optional=True)
_SIZE = number(_LARGEST, metavar="SIZE", optional=True)
_ORDER = ValueCheck(
    "priority and time, in this or the other order, each or none, then fifo or lifo: e.g. fifo or priority,fifo",
    _order, "CRITERIA",
)  # fmt: skip
_TYPES = ValueCheck(
    'suffixes with a content type or "bytes" for each, e.g. {".csv": "text/csv", ".txt": "bytes"}',
    _drop_types, "SUFFIX=TYPE",
)  # fmt: skip


_PATTERNS = ValueCheck(
    'patterns of file names, with *, ? and [...], 255 characters each and 1,000 together, e.g. ("*.filepart", "~$*")',
    _patterns, "PATTERN",
)  # fmt: skip
_MARKER = ValueCheck("""a suffix like ".ok\"""", _marker, "SUFFIX", optional=True)
# The names of unfinished files of WinSCP, browsers, FTP servers and editors, and the files that desktops add.
_IGNORED = (
    "*.filepart", "*.crdownload", "*.partial", "*.uploading", "*.temp", "*.swp", "*.lock", "*~", "~$*", "Thumbs.db",
    "desktop.ini",
)  # fmt: skip


def _option(default: Any, check: ValueCheck, help: str) -> Any:
    """Return a dataclass field for an option."""
    metadata = {"option": Option(check, help, default)}
    if isinstance(default, dict):
        return field(default_factory=dict, hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue with its checked options. ``help(spool.QueueOptions)`` describes the options."""

    name: str
    role: str = _option(
        WORK, one_of(WORK, ERROR, STATE, metavar="ROLE"),
        "The purpose of the queue: work; error, for failed messages that wait for a person; or state, for values that "
        "remain in the queue, e.g. results, and are never late.",
    )  # fmt: skip
    order: tuple[str, ...] = _option(
        (FIFO,), _ORDER, "The order of delivery: priority and time, each or none, then fifo or lifo."
    )
    out_of_order: tuple[str, ...] = _option(
        (), ValueCheck("top, before, both or none", _out_of_order, "WAYS"),
        "The ways in which a put may bypass the order: top, before, or top,before.",
    )  # fmt: skip
    retries: int | None = _option(
        None, number(2**31, optional=True),
        "How many attempts may follow the first failed attempt of a message; without this option, there is no limit.",
    )  # fmt: skip
    deaths: int | None = _option(
        None, number(2**31, optional=True),
        "How many deaths of processes that were handling it a message survives; these deaths then do not count for "
        "{retries}. Without this option, a death counts as any failed attempt.",
    )  # fmt: skip
    retry_delay: float = _option(1.0, DELAY, "How long a message is hidden after a failed attempt.")
    retry_delay_max: float | None = _option(
        300.0, DELAY._replace(optional=True),
        "The longest time that a message is hidden after a failed attempt, or {retry_delay} if that is longer: the "
        "delay doubles with each attempt up to this time. With none, the delay does not grow.",
    )  # fmt: skip
    first_delay: float = _option(
        0.0, DELAY, "How long a new message is hidden before its first attempt, unless its put sets a time."
    )
    time_to_live: float | None = _option(
        None, TIME_LIMIT._replace(optional=True),
        "How long a new message can be delivered, from the commit of its put on, unless its put sets a time.",
    )  # fmt: skip
    error_queue: str | None = _option(
        None, _QUEUE, "The queue that a message moves to after its last failed attempt; without it, the message is "
        "deleted.",
    )  # fmt: skip
    reply_queue: str | None = _option(None, _QUEUE, "The reply queue of messages that are put without one.")
    failure_queue: str | None = _option(None, _QUEUE, "The failure queue of messages that are put without one.")
    on_expiry: str = _option(
        "error", one_of("error", "drop", metavar="WHERE"),
        "Where a message goes when its time to live is over: error (to the error queue) or drop (it is deleted).",
    )  # fmt: skip
    ordered: bool = _option(
        False, FLAG,
        "Whether only one transaction at a time may hold messages of the queue, so that they are handled in order.",
    )  # fmt: skip
    max_messages: int | None = _option(
        None, _COUNT, "The largest number of messages in the queue; a put that would exceed it is refused."
    )
    max_bytes: int | None = _option(
        None, _SIZE, "The largest size of all bodies in the queue; a put that would exceed it is refused."
    )
    deduplication_window: float = _option(300.0, DELAY, "How long the queue remembers the deduplication key of a put.")
    capacity_high: str | None = _option(
        None, _MARK_CHECK, "The fill level that starts the capacity command, e.g. 80%, '5000 messages' or '1 GiB'."
    )
    capacity_low: str | None = _option(
        None, _MARK_CHECK, "The fill level that the queue must fall to before the capacity command can start again."
    )
    capacity_command: str | None = _option(
        None, ValueCheck("a command of the shell", text, "COMMAND", optional=True),
        "The shell command that runs when the queue reaches {capacity_high}; $SPOOL_QUEUE is the queue's name.",
    )  # fmt: skip
    capacity_timeout: float = _option(60.0, DELAY, "How long the capacity command may run before it is ended.")
    durability: str = _option(
        "flush", one_of("flush", "none", metavar="HOW"),
        "When a put or a get returns: flush, once its commit is on the disk; none, at once, and a power cut may lose "
        "the commit.",
    )  # fmt: skip
    drop_types: Mapping[str, str] = _option(
        {}, _TYPES, "The type of dropped files by their suffix: a content type or bytes, e.g. .csv=text/csv."
    )
    drop_ignore: tuple[str, ...] = _option(
        _IGNORED, _PATTERNS,
        "The patterns of the names, in upper or lower case, of dropped files that are not taken. Names that begin with "
        "a dot or end in .tmp or .part are never taken.",
    )  # fmt: skip
    drop_settle: float | None = _option(
        None, DELAY._replace(optional=True),
        "How long each dropped file must stay unchanged before spool-intake takes it. Without this option, only files "
        "that may still have a writer must stay unchanged, for the space's time.",
    )  # fmt: skip
    drop_marker: str | None = _option(
        None, _MARKER,
        "The suffix of marker files, e.g. .ok: spool-intake takes the file NAME once the file NAME.ok exists, and "
        "removes both.",
    )  # fmt: skip


@dataclass(frozen=True)
class SpaceConfig:
    """A space: its queues by name, and its checked options. ``help(spool.SpaceOptions)`` describes the options.

    defaults: options of queues. A default applies to all queues that do not set the option.
    """

    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_messages: int | None = _option(
        None, _COUNT, "The largest number of messages in all queues together; a put that would exceed it is refused."
    )
    max_bytes: int | None = _option(
        None, _SIZE, "The largest size of all bodies in all queues together; a put that would exceed it is refused."
    )
    max_body_bytes: int = _option(256 << 20, number(2**32 - 1, 1, "SIZE"), "The largest body that a message may have.")
    max_headers: int = _option(64, number(4_096), "The largest number of headers of a message.")
    max_headers_bytes: int = _option(
        8 << 10, number(1 << 20, metavar="SIZE"),
        "The largest size of all names and values of a message's headers together.",
    )  # fmt: skip
    drop_settle: float = _option(
        60.0, DELAY,
        "How long a file that another user writes in place in drop/ must stay unchanged before spool-intake takes it.",
    )  # fmt: skip
    sync_method: str = _option(
        "auto", one_of("auto", "ordered", "strict", metavar="METHOD"),
        "How a commit reaches the disk: strict is safe on every file system and flushes twice; ordered flushes once "
        "and is safe where renames keep their order (ext4, xfs, btrfs); auto asks the file system.",
    )  # fmt: skip
    network_file_system: str | None = _option(
        None, ValueCheck('the name of a network file system, e.g. "nfs"', text, "KIND", optional=True),
        "The kind of network file system that the space lies on, e.g. nfs; without this option, a network file system "
        "is refused.",
    )  # fmt: skip
    mirror: str | None = _option(
        None, ValueCheck("the absolute path of a directory", _absolute, "DIRECTORY", optional=True),
        "The directory, best on another disk, of a mirror: each commit is durable there, too, before it returns.",
    )  # fmt: skip
    monitor_group: str | None = _option(
        None, ValueCheck("the name of a group of users", text, "GROUP", optional=True),
        "The group of users who may read the space's metrics, but no message, without the right to open the space.",
    )  # fmt: skip

    @cached_property
    def may_lose(self) -> frozenset[str]:
        """The queues whose messages a power cut may remove."""
        return frozenset(name for name, queue in self.queues.items() if _may_lose(queue))

    @cached_property
    def marked(self) -> frozenset[str]:
        """The queues that have a mark."""
        return frozenset(name for name, queue in self.queues.items() if _is_marked(queue))

    @cached_property
    def limited(self) -> frozenset[str]:
        """The queues that have a limit on their messages or bytes."""
        return frozenset(name for name, queue in self.queues.items() if _is_limited(queue))

    @cached_property
    def has_marks(self) -> bool:
        """True if any queue has a mark."""
        return bool(self.marked)

    @property
    def max_dropped_bytes(self) -> int:
        """The largest dropped file. (A stream of many small messages may be larger than one message.)"""
        return max(self.max_body_bytes, _LEAST_DROPPED_LIMIT)

    @cached_property
    def has_limits(self) -> bool:
        """True if the space or any queue has a limit on its messages or bytes."""
        return bool(self.limited) or self.max_messages is not None or self.max_bytes is not None


def roles(queues: Mapping[str, QueueConfig]) -> dict[str, str]:
    """Return the role of each queue. A queue has its own ``role``, but the error queue of another queue has the role
    "error" instead of "work"."""
    errors = {queue.error_queue for queue in queues.values()}
    return {name: ERROR if queue.role == WORK and name in errors else queue.role for name, queue in queues.items()}


def named(queue: QueueConfig, name: str) -> QueueConfig:
    """Return a queue of another name with the same options. Both queues share the values of the options."""
    return replace(queue, name=name)


def with_queues(config: SpaceConfig, changed: Mapping[str, QueueConfig], removed: Collection[str] = ()) -> SpaceConfig:
    """Return settings with some queues added, changed or removed. The other queues cost only the copy of a dict."""
    queues = {**config.queues, **changed}
    for name in removed:
        del queues[name]
    found, touched = replace(config, queues=queues), frozenset((*changed, *removed))
    for kind, has in (("may_lose", _may_lose), ("marked", _is_marked), ("limited", _is_limited)):
        names: frozenset[str] = getattr(config, kind)
        new = frozenset(name for name, queue in changed.items() if has(queue))
        found.__dict__[kind] = (names - touched) | new if names or new else names
    return found


def _may_lose(queue: QueueConfig) -> bool:
    return queue.durability == "none"


def _is_marked(queue: QueueConfig) -> bool:
    return queue.capacity_high is not None


def _is_limited(queue: QueueConfig) -> bool:
    return queue.max_messages is not None or queue.max_bytes is not None


def _options_of(config: type[QueueConfig | SpaceConfig]) -> dict[str, Option]:
    return {each.name: each.metadata["option"] for each in fields(config) if "option" in each.metadata}


QUEUE_OPTIONS: Mapping[str, Option] = _options_of(QueueConfig)
SPACE_OPTIONS: Mapping[str, Option] = _options_of(SpaceConfig)  # without ``defaults``
OPTIONAL = frozenset(name for name, option in QUEUE_OPTIONS.items() if option.check.optional)
_QUEUE_CHECKS = {name: option.check for name, option in QUEUE_OPTIONS.items()}
_SPACE_CHECKS = {name: option.check for name, option in SPACE_OPTIONS.items()}


# -- marks of how full a queue is --------------------------------------------------------------------------------------

PERCENT, MESSAGES, BYTES = "%", "messages", "bytes"
_MARK = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z%]+)")
_UNITS = {
    "%": (PERCENT, 1), "message": (MESSAGES, 1), "messages": (MESSAGES, 1), "byte": (BYTES, 1), "bytes": (BYTES, 1),
    "B": (BYTES, 1), "kB": (BYTES, 10**3), "MB": (BYTES, 10**6), "GB": (BYTES, 10**9), "TB": (BYTES, 10**12),
    "KiB": (BYTES, 2**10), "MiB": (BYTES, 2**20), "GiB": (BYTES, 2**30), "TiB": (BYTES, 2**40),
}  # fmt: skip


class Mark(NamedTuple):
    """A fill level: a percentage of a queue's limit, a number of messages, or a number of bytes of bodies."""

    amount: float
    unit: str


def parse_mark(value: object) -> Mark:
    """Parse a mark, e.g. ``80%``. Raises ValueError if the text is not a mark."""
    found = _MARK.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or found[2] not in _UNITS:
        raise ValueError(value)
    unit, factor = _UNITS[found[2]]
    amount = float(found[1]) * factor
    if unit == PERCENT and not 0 <= amount <= 100:
        raise ValueError(value)
    return Mark(amount, unit)


def fullness(unit: str, messages: int, size: int, max_messages: int | None, max_bytes: int | None) -> float:
    """Return how full a queue is, in the unit of a mark. A percentage refers to the limit that is closer to being
    reached."""
    if unit == MESSAGES:
        return messages
    if unit == BYTES:
        return size
    shares = [
        100.0 * there / limit if limit else 100.0
        for there, limit in ((messages, max_messages), (size, max_bytes))
        if limit is not None
    ]
    return max(shares, default=0.0)


# -- checking ---------------------------------------------------------------------------------------------------------


def check_queue_name(name: object, where: str = "") -> str:
    """Return the name. If no queue can have this name, raise InvalidArgument; its text has the rule for names."""
    if not isinstance(name, str) or not layout.is_queue_name(name):
        raise InvalidArgument(f"{where}{shown(name)} cannot be a queue's name: it takes {NAME_RULE}")
    return name


def check_queue_options(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Check the options of a queue, and return the options in stored form."""
    return check_options(options, _QUEUE_CHECKS, where)


def queue_config(
    name: str, options: Mapping[str, Any], where: str = "", defaults: Mapping[str, Any] | None = None
) -> QueueConfig:
    """Check the options of a queue, and return the queue. Raises InvalidArgument; its text names the allowed values.

    ``where``: the beginning of an error's text, e.g. the name of a file. ``defaults``: checked options, which apply if
    ``options`` does not set them.
    """
    check_queue_name(name, where)
    where = f"{where}queue {name}: "
    own = check_queue_options(options, where)
    config = replace(QueueConfig(name), **{**(defaults or {}), **own})
    if own.get("error_queue") == name:
        raise InvalidArgument(
            f"{where}a queue cannot be its own ", Argument("error_queue"), ": name another, or leave it out"
        )
    if config.error_queue == name:  # the error queue named in [defaults] has no error queue itself
        config = replace(config, error_queue=None)
    _check_marks(config, where)
    if config.retry_delay_max is not None and config.retry_delay_max < config.retry_delay:
        if "retry_delay_max" in own:
            raise InvalidArgument(
                where, Argument("retry_delay_max"), " is at least ", Argument("retry_delay"),
                f", {config.retry_delay:g}, not {config.retry_delay_max:g}",
            )  # fmt: skip
        config = replace(config, retry_delay_max=config.retry_delay)
    return config


def differences(present: object, wanted: object, options: Iterable[str]) -> list[str]:
    """Compare ``options`` of two configurations, and return the parts of a text about the differences.

    An example of such a text is ``retries is 3, not 5``.
    """
    parts: list[str] = []
    for option in options:
        here, there = getattr(present, option), getattr(wanted, option)
        if here != there:
            parts += [", "] * bool(parts) + [Argument(option), f" is {given(here)}, not {given(there)}"]
    return parts


def _check_marks(config: QueueConfig, where: str) -> None:
    high_name = Argument("capacity_high")
    if config.capacity_high is None:
        for option in ("capacity_low", "capacity_command"):
            if getattr(config, option) is not None:
                raise InvalidArgument(where, Argument(option), " needs a ", high_name)
        return
    high, low = parse_mark(config.capacity_high), parse_mark(config.capacity_low or config.capacity_high)
    if not high.amount:
        raise InvalidArgument(where, high_name, f" is above 0, not {config.capacity_high}")
    if high.unit != low.unit or low.amount > high.amount:
        raise InvalidArgument(
            where, Argument("capacity_low"), " is at most ", high_name,
            f", {config.capacity_high}, in the same unit, not {config.capacity_low}",
        )  # fmt: skip
    if high.unit == PERCENT and config.max_messages is None and config.max_bytes is None:
        limits = Argument("max_messages"), " or ", Argument("max_bytes")
        raise InvalidArgument(where, high_name, " in percent needs ", *limits, ": set one of them")


def space_config(options: Mapping[str, Any], queues: Mapping[str, Mapping[str, Any]], where: str = "") -> SpaceConfig:
    """Check the options of a space and its queues, and return the space. Raises InvalidArgument."""
    options = dict(options)
    defaults = options.pop("defaults", {})
    if not isinstance(defaults, Mapping):
        raise InvalidArgument(f"{where}defaults are options of queues, not {shown(defaults)}")
    defaults = check_queue_options(defaults, f"{where}defaults: ")
    config = SpaceConfig(defaults=defaults, **check_options(options, _SPACE_CHECKS, where, ("defaults", "queues")))
    return replace(config, queues={name: queue_config(name, queues[name], where, defaults) for name in queues})
