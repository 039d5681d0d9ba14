"""Every command: a wrong value of any argument or option is exit 2 in one line."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import spool
import xa
from forwarder import Summary
from spool.admin.findings import Kind
from tests.branches import voting
from tests.scripts.conftest import leaves
from tests.scripts.test_help import commands, programs
from xaspool_scripts.forward import print_summary
from xaspool_scripts.start import INTERRUPTED
from xaspool_scripts.terminal import exit_codes
from xaspool_scripts.terminal import program as common

XID = xa.Xid(7, b"g", b"b")

# A value that is refused, by the metavar of the option.
WRONG = {
    "TIME": "soon", "[TIME]": "soon", "SIZE": "many", "HOW": "sometimes", "N": "x", "QUEUE": "a/b", "ID": "zz",
    "QUEUE...": "a/b", "ID...": "zz", "NAME": "nothing", "QUEUE=MODULE:FUNCTION...": "nothing", "XID": "garbage",
    "CRITERIA": "random", "WAYS": "sideways", "WHERE": "nowhere", "MARK": "full", "METHOD": "sloppy", "KIND": "nfs",
    "NAME=VALUE": "novalue", "TEXT": "x" * 5000, "GROUP": "no-such-group", "COMMAND": "", "QUEUE=SERVICE": "nothing",
    "HOST:PORT": "nowhere", "HOST[:PORT]": "no where", "[[NAME=]DIRECTORY...]": "../x=.", "TYPE": "",
    "FILE": "no-such.toml", "SUFFIX=TYPE": "csv", "MOMENT": "soon", "ROLE": "boss", "SUFFIX": "ok", "CRON": "often",
    "ZONE": "Mars", "HOST:PORT|unix:PATH": "nowhere", "PATTERN": "a/b",
}  # fmt: skip
# Any text is accepted; errors come from the file or space that it names.
ANY = {
    "--body", "--file", "--space", "--keep", "--master", "--mirror", "--cause", "file", "path", "directory", "page",
    "name", "names",
}  # fmt: skip
ANY_OF = {"message get": {"--correlation-id"}}
# Options that a command needs besides its arguments.
NEEDED = {"queue change": ["--retry-delay", "1"], "message change": ["--priority", "1"]}
NEEDED["schedule create"] = ["--body", "x"]


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


@pytest.mark.every(3)
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


# -- docs/commands.md --------------------------------------------------------------------------------------------------

PAGE = "\n" + (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def _rows(heading: str, columns: int) -> list[list[str]]:
    """The table under a heading, without its first two lines."""
    part = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    lines = [line.strip("| ").split("|") for line in part.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line] for line in lines[2:]]
    return [row + [""] * (columns - len(row)) for row in rows]


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_the_page_names_every_command_and_which_of_them_have_json() -> None:
    page = {" ".join(re.sub(r"[\[\]=:]|\b[A-Z]+\b|\.\.\.", "", row[0].strip("`")).split()): row for row in TABLE}
    assert page.keys() == commands().keys()
    with_json = {
        name for name, command in commands().items() if any("--json" in option.opts for option in command.params)
    }
    assert {name for name, row in page.items() if row[2]} == with_json
    assert {row[2] for row in TABLE} - {""} == OBJECTS.keys()


def test_the_page_names_every_kind_of_finding() -> None:
    assert {row[0] for row in _rows("### Kinds of findings", 2)} == {kind.value for kind in Kind}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("message put", spool.PutOptions), ("queue create", spool.QueueOptions), ("queue change", spool.QueueOptions),
        ("init", spool.SpaceOptions),
    ],
)  # fmt: skip
def test_every_option_of_a_call_is_one_of_its_command(command: str, options: type) -> None:
    parameters = {parameter.name for parameter in commands()[f"spool-admin {command}"].params}
    in_the_file_only = {"defaults", "max_headers", "max_headers_bytes"}  # of space.toml
    assert set(options.__annotations__) - in_the_file_only <= parameters


def test_the_page_names_every_exit_code() -> None:
    told = {int(row[0]) for row in _rows("## Exit codes", 2)}
    assert told == {
        0, exit_codes.FAILED, exit_codes.WRONG_USAGE, exit_codes.NOTHING_THERE, exit_codes.DAMAGE_LEFT,
        exit_codes.LEFT_SOME, exit_codes.FAILED_FOR_GOOD, exit_codes.COULD_NOT_LOOK, INTERRUPTED, 128 + signal.SIGTERM,
    }  # fmt: skip
    assert {int(code) for row in TABLE for code in re.findall(r"\d+", row[3])} <= told


def test_help_names_the_exit_codes_that_the_page_names() -> None:
    """The test covers the exit codes that differ between commands."""
    for (name, command), row in zip(sorted(commands().items()), sorted(TABLE), strict=True):
        said = " ".join(re.findall(r"[Ee]xit codes?((?:[^.\n]|\n(?!\n))*)", command.help or ""))
        in_help = {code for code in re.findall(r"\b\d+\b", said) if code not in ("0", "1", "2", "130")}
        assert in_help == set(re.findall(r"\d+", row[3])), name


def test_the_page_names_the_variables_that_the_programs_read() -> None:
    named = {name for row in _rows("## The space", 2) for name in _quoted(row[0])}
    sources = Path(common.__file__).parent.glob("*.py")
    read = {name for file in sources for name in re.findall(r'environ(?:\.get\(|\[)"(SPOOL_\w+)"', file.read_text())}
    assert named == read | {"NO_COLOR"}


OBJECTS = {row[0]: _quoted(row[1]) for row in _rows("## The objects of `--json`", 2)}
OBJECTS["message seen"] |= OBJECTS["message"]
OBJECTS["schedule shown"] |= OBJECTS["schedule"]
TABLE = _rows("# The commands", 4)


# (object, a command that prints one)
WITH_JSON = [
    ("queue", ["queue", "list"]), ("queue", ["queue", "show", "orders"]), ("count", ["queue", "purge", "orders"]),
    ("count", ["queue", "resume", "orders"]),
    ("id", ["message", "put", "orders", "--body", "x"]), ("message", ["message", "get", "orders"]),
    ("message seen", ["message", "list", "orders"]), ("message seen", ["message", "show", "ID"]),
    ("message", ["message", "change", "ID", "--priority", "1"]), ("message", ["message", "move", "ID", "errors"]),
    ("count", ["message", "redrive", "errors"]), ("transaction", ["transaction", "list"]),
    ("transaction", ["transaction", "show", str(XID)]), ("finding", ["check"]), ("proof", ["doctor"]),
    ("intake", ["spool-intake", "--once"]), ("quarantined file", ["quarantine", "list"]),
    ("quarantined file", ["quarantine", "show", "order.json"]), ("subscription", ["subscription", "list"]),
    ("schedule", ["schedule", "list"]), ("schedule shown", ["schedule", "show", "nightly"]),
    ("worked", ["spool-worker", "errors=tests.scripts.test_commands:nothing", "--once"]), ("space", ["top", "--once"]),
    ("recovery", ["spool-recover"]), ("mirror", ["mirror", "show"]), ("sample", ["metrics"]),
    ("id", ["schedule", "run", "nightly"]), ("archived", ["archive", "orders", "--to", "DIRECTORY"]),
]  # fmt: skip


def test_every_command_with_json_is_one_whose_keys_are_looked_at() -> None:
    run = [" ".join(words if words[0].startswith("spool-") else ["spool-admin", *words]) for _, words in WITH_JSON]
    for name, command in commands().items():
        if name in ("spool-forward", "spool-serve", "spool-admin console"):  # (they have tests of their own)
            continue
        if any("--json" in option.opts for option in command.params):
            assert any(f"{line} ".startswith(f"{name} ") for line in run), f"{name} is not in WITH_JSON"


@pytest.mark.every(4)
@pytest.mark.parametrize(("named", "words"), WITH_JSON)
def test_json_has_the_keys_that_the_page_names(path: Path, named: str, words: list[str]) -> None:
    spool.mirrors.begin(path, path.parent / "mirror").close()
    with spool.open(path) as space:
        message_id = space.put("orders", b"x")
        with voting(xa.ResourceManager(space), XID):
            space.put("orders", b"x")
        space.engine.register_subscription("seen", ("orders",), 3600.0)
        space.create_schedule("nightly", "orders", "x", cron="@daily")
    (path / "stray").touch()
    (path / "quarantine" / "order.json").touch()
    program, *typed = words if words[0].startswith("spool-") else ["spool-admin", *words]
    values = {"ID": message_id, "DIRECTORY": str(path.parent / "archive")}
    typed = [values.get(word, word) for word in typed]
    done = CliRunner().invoke(programs()[program], [*typed, "--json"], env={"SPOOL_SPACE": str(path)})
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[0]).keys()
    assert found | (OBJECTS[named] & {"value", "duplicate"}) == OBJECTS[named]  # not always there


def nothing(message: spool.Message) -> None:
    """The function that a worker calls."""


def test_json_of_the_forwarder_has_the_keys_that_the_page_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Summary(), as_json=True, delayed={})
    assert json.loads(capsys.readouterr().out).keys() == OBJECTS["forwarded"]
