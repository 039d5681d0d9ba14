"""Parse and write ``space.toml``, the settings file, which people can edit. Comments are kept.

Errors for unknown keys and wrong types name the file, the key and the allowed values. ``store.edits`` decides when, and
by which process, the file is written.
"""

import tomllib
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from spool.errors import InvalidArgument, NewerFormat
from spool.model.settings import (
    OPTIONAL,
    QUEUE_OPTIONS,
    SPACE_OPTIONS,
    QueueConfig,
    SpaceConfig,
    queue_config,
    space_config,
)

FORMAT = 1
MAX_SETTINGS_BYTES = 4 << 20
MAX_LINE = 2000
# TOML has no null. So an empty text means None for an optional option of a queue, and the value in [defaults] does not
# apply.
_LEFT_OUT = ""


def parse(text: str, name: str) -> SpaceConfig:
    """Return the settings in the text of a ``space.toml``. Raises InvalidArgument or NewerFormat.

    ``name``: the name of the file, with which the error's text begins.
    """
    where = f"{name}: "
    if any(len(line) > MAX_LINE and not line.startswith("#") for line in text.splitlines()):
        # the parser's time and memory for a key grow with the square of the number of its parts
        raise InvalidArgument(f"{where}a line is longer than {MAX_LINE} characters: shorten it")
    try:
        found = tomllib.loads(text)
    # the text is no TOML, or has a number with too many digits, or too deeply nested brackets
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}{error}: fix the file, or take it from a backup") from None
    version = found.pop("format", None)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 2**31:
        told = f"format is a whole number from 1, not {version!r}"
        raise InvalidArgument(f"{where}{told}: fix the file, or take it from a backup")
    if version > FORMAT:
        raise NewerFormat(f"{where}format {version} is newer than this program, which reads {FORMAT}: use a later one")
    queues = found.pop("queues", {})
    if not isinstance(queues, dict) or not all(isinstance(options, dict) for options in queues.values()):
        raise InvalidArgument(f"{where}queues are tables: [queues.NAME]")
    if not isinstance(found.get("defaults", {}), dict):
        raise InvalidArgument(f"{where}defaults are a table: [defaults]")
    return space_config(found, {queue: values_of(options) for queue, options in queues.items()}, where)


def values_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a queue from the form of the file to the form for ``queue_config``."""
    return {name: None if value == _LEFT_OUT and name in OPTIONAL else value for name, value in options.items()}


def render_new(config: SpaceConfig) -> str:
    """Return the text of a new space's file."""
    import tomlkit  # imported here, because only processes that write settings need the package

    document = tomlkit.document()
    document.add(tomlkit.comment("A queue space of xaspool. Edit it, or use spool-admin; programs see it in seconds."))
    document.add("format", FORMAT)
    for name, (_, _, default) in SPACE_OPTIONS.items():
        if (value := getattr(config, name)) != default:
            document.add(name, value)
    if config.defaults:
        table = tomlkit.table()
        for option, value in config.defaults.items():
            if value is not None:
                table.add(option, _rendered(value))
        document.add("defaults", table)
    document.add("queues", tomlkit.table())
    return tomlkit.dumps(document)


def edited(text: str, known: SpaceConfig, changed: Mapping[str, QueueConfig], removed: Collection[str] = ()) -> str:
    """Return the text of the settings with some queues added, changed or removed. Comments are kept.

    Args:
        known: the settings in the text. Options that have the defaults of these settings are left out.
    """
    import tomlkit

    document = tomlkit.parse(text)
    queues = document.setdefault("queues", tomlkit.table())
    for name, config in changed.items():
        set_options(queues.setdefault(name, tomlkit.table()), config, known.defaults)
    for name in removed:
        queues.pop(name)
    return tomlkit.dumps(document)


def set_options(table: MutableMapping[str, Any], config: QueueConfig, defaults: Mapping[str, Any]) -> None:
    """Set the options of a queue in its table. Options that are equal to ``defaults`` are removed."""
    inherited = queue_config(config.name, {}, defaults=defaults)
    for option in QUEUE_OPTIONS:
        value = getattr(config, option)
        if value == getattr(inherited, option):
            if option in table:
                del table[option]
        elif table.get(option) != (rendered := _rendered(value)):
            table[option] = rendered


def with_mirror(text: str, path: str | None) -> str:
    """Return the text of the settings with the mirror ``path``, or without a mirror if ``path`` is None.

    Comments are kept.
    """
    import tomlkit

    document = tomlkit.parse(text)
    if path is None:
        document.pop("mirror", None)
    else:
        document["mirror"] = path
    return tomlkit.dumps(document)


def _rendered(value: object) -> object:
    if value is None:
        return _LEFT_OUT
    if isinstance(value, Mapping):
        import tomlkit

        table = tomlkit.inline_table()
        table.update(value)
        return table
    return list(value) if isinstance(value, tuple) else value
