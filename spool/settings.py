"""``space.toml``: the queues and options of a space, validated when read, edited with comments kept.

Unknown keys and wrong types are errors that name the file, the key and what is allowed. This module turns text into
values and back; who may write the file, and when, is the space's business.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from spool.errors import InvalidArgument, NewerFormat

FORMAT = 1
MAX_SETTINGS_BYTES = 4 << 20
BODY_LIMIT_BYTES = 256 << 20
HARD_BODY_LIMIT_BYTES = 2**32 - 1
HEADERS_LIMIT_BYTES = 8 << 10
HEADERS_LIMIT = 64

_MAX_LINE = 2000
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}")
_ORDERS = (("fifo",), ("priority", "fifo"))
FLUSH_MODES = ("auto", "ordered", "strict")


def check_queue_name(name: object, where: str = "") -> str:
    """The name, or InvalidArgument with the rule in the text (E14)."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{where}{name!r} cannot be a queue's name: it takes 1 to 127 letters, digits, '.', '_' or '-', "
            "and does not start with a dot"
        )
    return name


@dataclass(frozen=True)
class QueueConfig:
    """One queue. Delays in seconds.

    ``order``: ``("fifo",)``, or ``("priority", "fifo")`` with the higher priority first. ``retries``: how often a
    message may come back after a rollback before it moves to ``error_queue`` (or, without one, is dropped with a
    warning); None: for ever. ``reply_queue`` and ``failure_queue`` serve messages that name none of their own.
    """

    name: str
    order: tuple[str, ...] = ("fifo",)
    retries: int | None = None
    retry_delay: float = 0.0
    error_queue: str | None = None
    reply_queue: str | None = None
    failure_queue: str | None = None

    @property
    def by_priority(self) -> bool:
        return "priority" in self.order


QUEUE_OPTIONS = tuple(f.name for f in fields(QueueConfig) if f.name != "name")


@dataclass(frozen=True)
class SpaceConfig:
    """A whole space.

    ``flush``: "auto" looks at the file system, "ordered" and "strict" insist (DESIGN §3). ``network_file_system``:
    the kind that was asked for by name, where one is needed. ``max_body_bytes``: larger bodies are refused.
    ``mirror``: the path of a directory, best on another disk, in which every commit is durable, too.
    """

    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    max_body_bytes: int = BODY_LIMIT_BYTES
    flush: str = "auto"
    network_file_system: str | None = None
    mirror: str | None = None


SPACE_OPTIONS = tuple(f.name for f in fields(SpaceConfig) if f.name != "queues")


def queue_config(name: str, options: Mapping[str, Any], where: str = "") -> QueueConfig:
    """A checked queue; InvalidArgument names the option and what it takes. ``where`` opens the text: a file's name."""
    check_queue_name(name, where)
    where = f"{where}queue {name}: "
    _check_known(options, QUEUE_OPTIONS, where)
    config = replace(QueueConfig(name), **options)
    order = tuple(config.order) if isinstance(config.order, list | tuple) else (config.order,)
    if order not in _ORDERS:
        allowed = " or ".join(",".join(o) for o in _ORDERS)
        raise InvalidArgument(f"{where}order is {allowed}, not {','.join(map(str, order))}")
    if config.retries is not None and not _is_int(config.retries, 0, 2**31):
        raise InvalidArgument(
            f"{where}retries is a whole number from 0, or left out to try for ever, not {config.retries!r}"
        )
    delay = config.retry_delay
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e10:
        raise InvalidArgument(f"{where}retry_delay is a number of seconds from 0, not {delay!r}")
    for option in ("error_queue", "reply_queue", "failure_queue"):
        if getattr(config, option) is not None:
            check_queue_name(getattr(config, option), f"{where}{option}: ")
    if config.error_queue == name:
        raise InvalidArgument(f"{where}a queue cannot be its own error_queue: name another, or leave it out")
    return replace(config, order=order, retry_delay=float(delay))


def space_config(options: Mapping[str, Any], queues: Mapping[str, QueueConfig], where: str = "") -> SpaceConfig:
    """A checked space; InvalidArgument names the option and what it takes."""
    _check_known(options, SPACE_OPTIONS, where)
    config = SpaceConfig(queues=queues, **options)
    if not _is_int(config.max_body_bytes, 1, HARD_BODY_LIMIT_BYTES):
        raise InvalidArgument(f"{where}max_body_bytes is 1 to {HARD_BODY_LIMIT_BYTES}, not {config.max_body_bytes!r}")
    if config.flush not in FLUSH_MODES:
        raise InvalidArgument(f"{where}flush is one of {', '.join(FLUSH_MODES)}, not {config.flush!r}")
    if config.network_file_system is not None and not isinstance(config.network_file_system, str):
        raise InvalidArgument(f'{where}network_file_system is the name of one, e.g. "nfs"')
    if config.mirror is not None and not (isinstance(config.mirror, str) and config.mirror.startswith("/")):
        raise InvalidArgument(f"{where}mirror is the absolute path of a directory, not {config.mirror!r}")
    return config


def parse(text: str, name: str) -> SpaceConfig:
    """The settings in a ``space.toml``; InvalidArgument or NewerFormat, beginning with the file's name."""
    where = f"{name}: "
    if any(len(line) > _MAX_LINE and not line.startswith("#") for line in text.splitlines()):
        # a key of very many parts takes the parser the square of their number, in time and in memory
        raise InvalidArgument(f"{where}a line is longer than {_MAX_LINE} characters: mend the file")
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, a number of too many digits, brackets without end
        raise InvalidArgument(f"{where}{error}: mend the file, or take it from a backup") from None
    version = found.pop("format", None)
    if not _is_int(version, 1, 2**31):
        raise InvalidArgument(f"{where}format is a whole number from 1, not {version!r}")
    if version > FORMAT:
        raise NewerFormat(f"{where}format {version} is newer than this program, which reads {FORMAT}: use a later one")
    queues = found.pop("queues", {})
    if not isinstance(queues, dict) or not all(isinstance(options, dict) for options in queues.values()):
        raise InvalidArgument(f"{where}queues are tables: [queues.NAME]")
    checked = {queue: queue_config(queue, options, where) for queue, options in queues.items()}
    return space_config(found, checked, where)


def render_new(config: SpaceConfig) -> str:
    """The text of a new space's file."""
    import tomlkit  # only those who write settings pay for its import

    document = tomlkit.document()
    document.add(tomlkit.comment("A queue space of xaspool. Edit it while no program writes, or use spool-admin."))
    document.add("format", FORMAT)
    default = SpaceConfig()
    for option in SPACE_OPTIONS:
        if getattr(config, option) != getattr(default, option):
            document.add(option, getattr(config, option))
    document.add("queues", tomlkit.table())
    return tomlkit.dumps(document)


def with_queue(text: str, config: QueueConfig) -> str:
    """The text with that queue added or changed; comments stay."""
    import tomlkit

    document = tomlkit.parse(text)
    queues = document.setdefault("queues", tomlkit.table())
    table = queues.setdefault(config.name, tomlkit.table())
    default = QueueConfig(config.name)
    for option, value in asdict(config).items():
        if option == "name":
            continue
        if value == getattr(default, option):
            table.pop(option, None)
        else:
            table[option] = list(value) if isinstance(value, tuple) else value
    return tomlkit.dumps(document)


def _check_known(options: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for option in options:
        if option not in known:
            raise InvalidArgument(f"{where}there is no option {option!r}; there are {', '.join(known)}")


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
