"""A wrong command is answered with the one that was meant; a name that is like nothing, with none."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import Run, one_line
from tests.scripts.test_help import commands, programs
from xaspool_scripts.terminal import suggestions


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        # commands: near, of another group, by a synonym, of another program
        ("spool-admin queue lst", "spool-admin queue list"),
        ("spool-admin put orders hello", "spool-admin message put"),
        (
            "spool-admin add orders",
            "spool-admin queue create or spool-admin schedule create or spool-admin message put",
        ),
        ("spool-admin queue ls", "spool-admin queue list"),
        ("spool-admin worker", "spool-worker"),
        ("spool-admin nix", ""),
        # options: near, by a synonym, of the command behind a group
        ("spool-admin message put orders --priorty 9", "--priority"),
        ("spool-admin message put orders --ttl 9", "--time-to-live"),
        ("spool-admin --json queue list", "spool-admin queue list --json"),
        ("spool-admin message --json show 'a b'", "spool-admin message show 'a b' --json"),
        ("spool-admin --json", ""),
        ("spool-admin queue list --queue orders", ""),
        # an argument too many
        ("spool-admin mirror show shop", "-s shop"),
        ("spool-admin message put orders 'two teas'", "--body 'two teas'"),
        ("spool-admin message put orders -", "spool-admin message put QUEUE < FILE"),
        ("spool-admin queue list orders", "spool-admin queue show orders"),
        ("spool-forward orders=python:a:b", "--route orders=python:a:b"),
        ("spool-admin queue create orders bills", ""),
    ],
)
def test_a_wrong_command_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    import shlex

    program, *words = shlex.split(typed)
    done = CliRunner().invoke(programs()[program], words)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    _, found, told = done.stderr.partition("; did you mean ")
    assert told.partition("? See ")[0] == meant, done.stderr
    assert bool(found) == bool(meant)
    assert done.stderr.rstrip().endswith(" --help")
    assert done.stderr.count("--help") == 1


def test_suggested_commands_and_options_exist() -> None:
    named = commands()
    leaves = {name.removeprefix("spool-admin ") for name in named}
    verbs = {name.rpartition(" ")[2] for name in named}
    assert {verb for several in suggestions._VERBS.values() for verb in several} <= verbs
    assert {leaf for several in suggestions._COMMANDS.values() for leaf in several} <= leaves
    assert set(suggestions._PROGRAMS.values()) <= programs().keys()
    options = {option for command in named.values() for parameter in command.params for option in parameter.opts}
    assert set(suggestions._OPTIONS.values()) <= options
    assert not suggestions._OPTIONS.keys() & options - {"--message"}


def test_a_directory_with_other_files_is_not_offered_to_become_a_space(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one_line(run("queue", "list", space=tmp_path / "other"), "Make one with: spool-admin init")
    (tmp_path / "other" / "passwd").touch()
    told = one_line(
        run("queue", "list", space=tmp_path / "other"), "it has no space.toml. Name a directory that has one"
    )
    assert f"init {tmp_path}" not in told
    with pytest.raises(spool.NotASpace):
        spool.open(tmp_path / "other")
