"""Every command: a wrong value of any argument or option is exit 2 in one line."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import spool
import xa
from tests.scripts.conftest import leaves
from tests.scripts.test_help import programs

XID = xa.Xid(7, b"g", b"b")

# A value that is not accepted, by what the help calls the value.
WRONG = {
    "TIME": "soon", "[TIME]": "soon", "SIZE": "many", "N": "x", "QUEUE": "a/b", "ID": "zz", "ID...": "zz",
    "XID": "garbage",
    "CRITERIA": "random", "WAYS": "sideways", "WHERE": "nowhere", "MARK": "full", "MODE": "sloppy", "KIND": "nfs",
    "NAME=VALUE": "novalue", "TEXT": "x" * 5000, "GROUP": "no-such-group", "COMMAND": "", "QUEUE=SERVICE": "nothing",
    "TYPE": "",
}  # fmt: skip
# Any text will do, or what is wrong with it is not the value itself but what lies there.
ANY = {"--body", "--file", "--space", "--keep", "--master", "file", "path", "directory", "page"}
ANY_OF = {"message get": {"--correlation-id"}}
# What else a command needs, besides its arguments.
NEEDED = {"queue change": ["--retries", "1"], "message change": ["--priority", "1"]}


def parameters() -> Iterator[tuple[str, list[str], click.Command, click.Parameter]]:
    for program, main in programs().items():
        for words, command in leaves(main):
            for parameter in command.params:
                flag = isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count)
                anything = (ANY | ANY_OF.get(" ".join(words), set())) & {parameter.name, *parameter.opts}
                if not flag and not anything:
                    yield program, words, command, parameter


def _wrong(parameter: click.Parameter) -> str:
    if parameter.metavar is None:
        return "neither"
    metavar = parameter.metavar
    assert metavar in WRONG, f"{parameter.name}: no wrong value is known for {metavar}"
    return WRONG[metavar]


def _right(parameter: click.Parameter, path: Path, message_id: str) -> str:
    values = {"XID": str(XID), "ID": message_id, "ID...": message_id, "QUEUE=SERVICE": "orders=queue:errors"}
    return values.get(parameter.metavar or "", "orders" if parameter.name == "queue" else str(path.parent / "new"))


@pytest.mark.parametrize(
    ("program", "words", "command", "parameter"),
    [pytest.param(*each, id=" ".join((each[0], *each[1], each[3].opts[-1]))) for each in parameters()],
)
def test_a_wrong_value_is_exit_code_2_in_one_line(
    path: Path, program: str, words: list[str], command: click.Command, parameter: click.Parameter
) -> None:
    with spool.open(path) as space:
        message_id = space.put("orders", b"x")
    typed = [*words, *NEEDED.get(" ".join(words), [])]
    for other in command.params:
        if other is parameter:
            typed += [parameter.opts[-1], _wrong(parameter)] if isinstance(parameter, click.Option) else []
        elif other.required and isinstance(other, click.Option):
            typed += [other.opts[0], _right(other, path, message_id)]
    typed += ["--"]
    for other in command.params:
        if isinstance(other, click.Argument):
            typed.append(_wrong(other) if other is parameter else _right(other, path, message_id))
    done = CliRunner().invoke(programs()[program], typed, input=b"", env={"SPOOL_SPACE": str(path)})
    assert done.exit_code == 2, (typed, done.output)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "None" not in done.stderr
