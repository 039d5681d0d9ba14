"""Every option and argument of every command is described, in a sentence."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from click.testing import CliRunner

import xaspool_scripts.start
from tests.scripts.conftest import leaves


def programs() -> dict[str, click.Command]:
    """Every program that is installed."""
    begun = [name for name, made in vars(xaspool_scripts.start).items() if getattr(made, "__name__", "") == name]
    names = [name for name in begun if (Path(xaspool_scripts.start.__file__).with_name(f"{name}.py")).is_file()]
    return {f"spool-{name}": import_module(f"xaspool_scripts.{name}").main for name in names}


def commands() -> dict[str, click.Command]:
    """Return all commands, by the words that a user types."""
    found = {program: leaves(main) for program, main in programs().items()}
    return {" ".join((program, *words)): command for program in found for words, command in found[program]}


def groups() -> dict[str, click.Group]:
    """Return the groups of commands, by the words that a user types."""

    def below(command: click.Command, *words: str) -> Iterator[tuple[str, click.Group]]:
        if isinstance(command, click.Group):
            yield " ".join(words), command
            for name, child in command.commands.items():
                yield from below(child, *words, name)

    return {name: group for program, main in programs().items() for name, group in below(main, program)}


def test_every_option_has_help_that_is_a_sentence() -> None:
    assert all(command.help for command in commands().values())
    for name, parameter in ((name, one) for name, command in commands().items() for one in command.params):
        if not isinstance(parameter, click.Option):
            continue
        help = parameter.help
        assert help, f"{name} {parameter.opts[0]} has no help"
        assert help[0].isupper(), (name, help)
        assert help.endswith("."), (name, help)
        assert len(help.split()) >= 4, (name, help)
        if parameter.metavar in ("TIME", "[TIME]") and "2030" not in help:  # a time span
            assert "seconds" in help, (name, help)
        assert parameter.is_flag or parameter.metavar or isinstance(parameter.type, click.Choice), parameter.opts


def test_all_programs_are_looked_at() -> None:
    assert {"spool-admin", "spool-intake", "spool-recover", "spool-forward"} <= programs().keys()


def test_yes_is_one_option_with_one_help_wherever_a_command_asks() -> None:
    found = {
        (tuple(option.opts), option.help)
        for command in commands().values()
        for option in command.params
        if isinstance(option, click.Option) and "--yes" in option.opts
    }
    assert len(found) == 1
    assert {opts for opts, _ in found} == {("--yes", "-y")}


def test_a_list_of_commands_has_whole_sentences() -> None:
    for name, group in groups().items():
        _, _, listed = CliRunner().invoke(group, ["--help"]).stdout.partition("Commands:")
        assert listed, name
        assert "..." not in listed, name
