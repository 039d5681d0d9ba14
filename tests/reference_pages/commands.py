"""docs/reference-commands.md: every program and command, as click knows them."""

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tests.reference_pages.markdown import BACK, GENERATED, code, help_text, inline, joined, slug, wrapped

ROOT = Path(__file__).parents[2]
_COMMON = "--help"  # every command has it


@cache
def programs() -> tuple[str, ...]:
    return tuple(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"])


def command(path: str) -> click.Command:
    """Return a command by its words, e.g. ``spool-admin queue create``."""
    program, *words = path.split()
    found: click.Command = import_module(f"xaspool_scripts.{program.removeprefix('spool-')}").main
    for word in words:
        found = parts(found)[word]
    return found


def parts(found: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group in alphabetical order, without the hidden ones; nothing for another command."""
    if not isinstance(found, click.Group):
        return {}
    return {name: part for name, part in sorted(found.commands.items()) if not part.hidden}


def paths() -> list[str]:
    """Return the words of all programs, groups and commands."""
    return [path for program in programs() for path in _below(program)]


def _below(path: str) -> Iterator[str]:
    yield path
    for name in parts(command(path)):
        yield from _below(f"{path} {name}")


def page() -> str:
    return joined([
        "# Reference: commands",
        wrapped("Every program and command with its arguments and options, as `--help` shows them. [The commands]"
                "(commands.md) explain exit codes, the form of values and the keys of `--json`. "
                f"{BACK} {GENERATED}"),
        "Every program and command also has the option `--help`.",
        "\n".join(f"- [{path}](#{slug(path)})" for path in paths() if path.count(" ") < 2),
        *(joined(list(_entry(path))) for path in paths()),
    ]) + "\n"  # fmt: skip


def _entry(path: str) -> Iterator[str]:
    found, context = command(path), _context(path)
    yield f"{'#' * (2 + path.count(' '))} {path}"
    yield code(" ".join([path, *found.collect_usage_pieces(context)]))
    yield help_text(found.help or "")
    if parts(found):
        yield "**Commands**:"
        yield "\n".join(_part(path, name) for name in parts(found))
    arguments = [one for one in found.params if isinstance(one, click.Argument)]
    if arguments:
        yield f"**Arguments**: {', '.join(_argument(one, context) for one in arguments)}"
    options = [one for one in found.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    shown = [_option(one, context) for one in options if _COMMON not in one.opts]
    if shown:
        yield "**Options**:"
        yield "\n".join(shown)


def _part(path: str, name: str) -> str:
    text = command(f"{path} {name}").get_short_help_str(10_000)
    return wrapped(f"- [{code(name)}](#{slug(f'{path} {name}')}): {inline(text)}")


def _context(path: str) -> click.Context:
    context: click.Context | None = None
    words = path.split()
    for place, word in enumerate(words):
        context = click.Context(command(" ".join(words[: place + 1])), parent=context, info_name=word)
    assert context is not None
    return context


def _metavar(parameter: click.Parameter, context: click.Context) -> str:
    try:
        return str(parameter.make_metavar(context))
    except TypeError:  # click before 8.2
        return str(parameter.make_metavar())  # type: ignore[call-arg]


def _argument(argument: click.Argument, context: click.Context) -> str:
    default = _default(argument)
    kind = "required" if argument.required else "optional"
    return f"{code(_metavar(argument, context))} ({kind}{f', default {default}' if default else ''})"


def option_text(option: click.Option, context: click.Context | None = None) -> str:
    """Return the names of an option with the placeholder of its value, in backticks."""
    takes_value = not (option.is_flag or option.count)
    metavar = _metavar(option, context or click.Context(click.Command("none"))) if takes_value else ""
    *short, longest = sorted(option.opts, key=len)
    names = [code(one) for one in short] + [code(f"{longest} {metavar}".strip())]
    return ", ".join([*names, *map(code, option.secondary_opts)])


def _option(option: click.Option, context: click.Context) -> str:
    text = (option.help or "").strip()
    notes = ["Required."] if option.required else []
    if default := _default(option):
        notes += [] if "Default:" in text else [f"Default: {default}."]
    if isinstance(option.type, click.IntRange | click.FloatRange):
        notes.append(f"From {option.type.min} to {option.type.max}." if option.type.max is not None
                     else f"At least {option.type.min}.")  # fmt: skip
    if option.multiple and "several times" not in text:
        notes.append("May be given several times.")
    return wrapped(" ".join([f"- {option_text(option, context)}:", inline(text), *notes]))


def _default(parameter: click.Parameter) -> str:
    default: Any = parameter.default
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return code(f"{default:.10g}" if isinstance(default, float) else str(default)) if is_plain else ""
