"""docs/reference-settings.md: the options of queues and spaces."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from spool.model.checks import Option
from spool.model.options import QueueOptions, SpaceOptions
from spool.model.settings import QUEUE_OPTIONS, SPACE_OPTIONS, QueueConfig, SpaceConfig
from tests.reference_pages import source
from tests.reference_pages.commands import command, option_text
from tests.reference_pages.markdown import BACK, GENERATED, code, inline, joined, wrapped

UNITS = {"TIME": "seconds", "SIZE": "bytes"}
COMMANDS = {"queue": ("spool-admin queue create", "spool-admin queue change"), "space": ("spool-admin init",)}


def page() -> str:
    return joined([
        "# Reference: settings",
        wrapped("Every option of a space and of a queue: default, allowed values, and names in Python, in commands and "
                f"in `space.toml`. The [guide](guide.md#all-options) is the overview. {BACK} {GENERATED}"),
        wrapped("Times are in seconds, and sizes are in bytes. Commands also take [values](commands.md#values) such as "
                "`5m` and `1 GiB`."),
        "## Options of a queue",
        wrapped("The table `[queues.NAME]` of `space.toml` has the options of a queue, and the table `[defaults]` has "
                "the defaults of all queues. In these tables an empty text means that the option has no value."),
        *_entries("queue", QUEUE_OPTIONS, QueueOptions, QueueConfig),
        "## Options of a space",
        "The options of a space are keys at the top of `space.toml`.",
        joined(["### Space option defaults", wrapped("The options that each queue has unless it sets them itself."),
                "\n".join([
                    "- Default: none",
                    f"- Python: `defaults: QueueOptions` of [`spool.SpaceOptions`]({_place(SpaceOptions)})",
                    "- `space.toml`: the table `[defaults]`",
                ])]),
        *_entries("space", SPACE_OPTIONS, SpaceOptions, SpaceConfig),
    ]) + "\n"  # fmt: skip


def heading(kind: str, name: str) -> str:
    return f"{kind.capitalize()} option {name}"


def _entries(kind: str, options: Mapping[str, Option], typed: type, config: type) -> Iterator[str]:
    types = {each.name: each.type for each in (*source.attributes(config), *source.attributes(typed))}
    for name, (check, meaning, default) in options.items():
        allowed = f"{inline(check.expected)}{', or none' if check.optional else ''}"
        unit = UNITS.get(check.metavar)
        text = re.sub(r"\{(\w+)\}", r"`\1`", meaning)
        lines = [
            f"- Default: {_shown(default)}{f' {unit}' if unit and default is not None else ''}",
            f"- Allowed: {allowed}",
            f"- Python: {code(f'{name}: {types[name]}')} of [`spool.{typed.__name__}`]({_place(typed)})",
            *_of_commands(kind, name),
            f"- `space.toml`: the key `{name}`{' of the table of the queue' if kind == 'queue' else ''}",
        ]
        yield joined([f"### {heading(kind, name)}", wrapped(inline(text)), "\n".join(map(wrapped, lines))])


def _place(typed: type) -> str:
    return f"reference-python.md#spool{typed.__name__.lower()}"


def _of_commands(kind: str, name: str) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for path in COMMANDS[kind]:
        for parameter in command(path).params:
            if isinstance(parameter, click.Option) and parameter.name == name:
                target = f"[{path}](reference-commands.md#{path.replace(' ', '-')})"
                found.setdefault(option_text(parameter), []).append(target)
    for text, targets in found.items():
        yield f"- Command: {text} of {' and '.join(targets)}"


def _shown(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, float):
        return code(f"{default:.10g}")
    if isinstance(default, tuple) and len(default) > 3:  # (a list of many values, over several lines)
        return ", ".join(code(json.dumps(value)) for value in default)
    return code(json.dumps(list(default) if isinstance(default, tuple) else default))
