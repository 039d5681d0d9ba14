"""The documents match the code: their examples run, their commands exist, and their tables name parts of the code."""

import ast
import os
import re
import shutil
import signal
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import click
import pytest

import spool
from spool.format import commands as commands_of_tables
from spool.format import header
from spool.model import layout
from spool.model.message import FIELDS
from spool.model.settings import QUEUE_OPTIONS, SPACE_OPTIONS
from tests import pages, references
from tests.conftest import rows, rows_of
from tests.led import of_programs
from tests.log.test_flush_counts import COSTS
from tests.ports import free_port
from tests.postgresql import server

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, str]:
    """Return the environment of a reader, with the programs of this tree on PATH instead of installed ones."""
    directory = tmp_path_factory.mktemp("bin")
    texts = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}
    for name, target in PROGRAMS.items():
        module, function = target.split(":")
        texts[name] = f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\n\nsys.exit({function}())\n"
    for name, text in texts.items():
        program = directory / name
        program.write_text(text)
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOOL_")}
    roots = f"{ROOT}:{ROOT / 'scripts'}"
    found = {**kept, "PATH": f"{directory}:{os.environ['PATH']}", "HOME": str(directory), "PYTHONPATH": roots}
    return of_programs(found) if pytestconfig.getoption("--led") else found


def readers(spark: bool) -> list[Path]:
    """The pages of which there is something to run; with ``spark`` those that come to a start of Spark."""

    def to_run(document: Path) -> bool:
        few = pages.programs(document)
        return pages.programs(document, spark=True) != few if spark else bool(few)

    return [document for document in DOCUMENTS if to_run(document)]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[dict[str, str]]:
    """Run a PostgreSQL with default settings and the database ``shop``; returns the variables that lead to it."""
    with server(two_phase=False) as found, closing(found.connect(autocommit=True)) as database:
        database.execute("create database shop")
        yield {"PGHOST": found.directory, "PGUSER": "test"}


@pytest.mark.every(8)
@pytest.mark.parametrize("page", readers(spark=False), ids=lambda page: page.name)
def test_a_page_runs_block_after_block_as_it_says(
    page: Path, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    programs = list(pages.programs(page))
    if any("import psycopg" in block.text for block in programs):
        environment = {**environment, **request.getfixturevalue("postgresql")}
    port = free_port()  # (another run may have the port of the page)
    try:
        for block in programs:
            pages.run(
                replace(block, text=block.text.replace("127.0.0.1:8815", f"127.0.0.1:{port}")), tmp_path, environment
            )
    finally:
        for server in tmp_path.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(server.read_text()), signal.SIGTERM)


@pytest.mark.every(2)
@pytest.mark.parametrize("page", sorted((ROOT / "examples").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_an_example_runs_in_its_directory_as_it_says(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    directory = shutil.copytree(page.parent, tmp_path / page.parent.name)
    for file in directory.glob("*.toml"):  # a port of its own: another run may have the one that is written there
        file.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{free_port()}", file.read_text()))
    for block in pages.programs(page):
        pages.run(block, directory, environment)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("page", readers(spark=True), ids=lambda page: page.name)
def test_a_page_runs_with_spark_as_it_says(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    for block in pages.programs(page, spark=True):
        pages.run(block, tmp_path, environment)


def test_every_block_is_in_a_language_that_says_whether_it_is_run() -> None:
    for document in DOCUMENTS:
        for block in pages.blocks(document):
            assert block.language in {*pages.RUN, *pages.READ} or document.name == "format.md", block.where


@pytest.mark.parametrize(
    ("printed", "said", "agreed"),
    [
        ("one\ntwo\n", "one\ntwo\n", True),
        ("id 17, 3 s\n", "id …, … s\n", True),
        ("one\n2\n3\nfour\n", "one\n…\nfour\n", True),
        ("one\n", "one\n…\n", True),
        ("no line end", "no line end\n", True),
        ("one\ntwo\n", "one\n", False),
        ("one\n", "one\ntwo\n", False),
        ("a.c\n", "abc\n", False),
        ("", "one\n", False),
    ],
)
def test_the_output_that_a_page_shows_is_compared_with_printed_output(printed: str, said: str, agreed: bool) -> None:
    assert pages.agrees(printed, said) is agreed


_COMMAND = re.compile(r"^(?:\$ |ExecStart=\S*/|\* .*/)?(spool-(?:\w+).*?)(?: && .*| \|.*| > .*| &)?$", re.MULTILINE)


def commands() -> list[str]:
    texts = [block.text for document in DOCUMENTS for block in pages.blocks(document) if block.language != "python"]
    return sorted({line.strip() for text in texts for line in _COMMAND.findall(text.replace("\\\n", " "))})


def test_there_are_examples_to_check() -> None:
    assert len(readers(spark=False)) >= 2
    assert len(commands()) >= 8


def command_of(program: str) -> click.Command:
    command: click.Command = __import__(f"xaspool_scripts.{program.removeprefix('spool-')}", fromlist=["main"]).main
    return command


def options_of(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {*found, "--help"}


@pytest.mark.parametrize("line", commands())
def test_commands_in_examples_exist_with_their_options(line: str) -> None:
    program, *words = line.split("#")[0].split()
    command = command_of(program)
    while isinstance(command, click.Group):
        word = words.pop(0)
        if word in ("-s", "--space"):
            del words[0]
        elif word in ("--version", "--help"):
            return
        else:
            assert word in command.commands, line
            command = command.commands[word]
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options_of(command), line


def inline(document: Path) -> list[str]:
    """Return the texts in backticks in a page's sentences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))


def test_commands_in_sentences_exist_with_their_options() -> None:
    for document in DOCUMENTS:
        for line in inline(document):
            program, *words = line.split()
            if re.fullmatch(r"spool-\w+", program):
                command = command_of(program)
                while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
                    assert words[0] in command.commands, f"{document.name}: {line}"
                    command = command.commands[words.pop(0)]
                assert {word for word in words if word.startswith("--")} <= options_of(command), (
                    f"{document.name}: {line}"
                )


def test_options_in_sentences_are_some_commands() -> None:
    def every(command: click.Command) -> Iterator[str]:
        yield from options_of(command)
        for part in command.commands.values() if isinstance(command, click.Group) else ():
            yield from every(part)

    known = {option for program in PROGRAMS for option in every(command_of(program))}
    known |= {"--long", "--database", "--parallel"}  # of scripts/test, and of manage.py of Django
    others = [
        path.read_text()
        for path in [*ROOT.glob("scripts/*"), *ROOT.glob("bench/*.py"), *ROOT.glob("scripts/*/management/*/*.py")]
        if path.is_file()
    ]
    known |= {option for text in others for option in re.findall(r"--[a-z][a-z-]+", text)}
    for document in DOCUMENTS:
        for line in inline(document):
            for option in re.findall(r"(?:^| )(--[a-z][a-z-]+)", line):
                assert option in known, f"{document.name}: {line}"


def test_programs_of_python_in_sentences_exist() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"\bpython3? -m ([\w.]+)", document.read_text()):
            if name.partition(".")[0] in ("spool", "bench", "tests", "xa", "recovery", "forwarder"):
                path = ROOT / name.replace(".", "/")
                assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{document.name}: {name}"


def test_every_row_of_the_features_has_a_test_that_carries_its_id() -> None:
    functions = [name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", file.read_text())]
    tested = {row for name in functions for row in rows_of(name)}
    assert len(rows()) >= 60
    assert rows() <= tested
    assert not rows("not yet") & tested, "a row with a test is done, or done in part"


def test_the_features_list_every_row() -> None:
    numbers = {"Q": 20, "E": 16, "C": 7, "A": 6, "S": 6, "X": 24}
    expected = {f"{letter}{number:02}" for letter, last in numbers.items() for number in range(1, last + 1)}
    assert rows("done", "in part", "not yet") == expected


def test_headings_that_links_name_are_there() -> None:
    for document in DOCUMENTS:
        for target, heading in re.findall(r"\]\(([^)#]*)#([^)]+)\)", document.read_text()):
            text = (document.parent / target).read_text() if target else document.read_text()
            found = [
                re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)", text, re.M)
            ]
            assert heading in found, f"{document.name} links to {target}#{heading}"


def test_names_in_docstrings_and_comments_exist() -> None:
    assert not references.unknown_names()


def test_files_that_are_named_are_there() -> None:
    assert not references.missing_files()


def test_headings_of_pages_that_are_named_are_there() -> None:
    assert not references.missing_headings()


def test_the_two_commands_are_there() -> None:
    for name in ("demo", "test"):
        script = ROOT / "scripts" / name
        assert script.stat().st_mode & 0o111, f"{script} cannot be run"


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_format_md_names_every_command_field_and_directory() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    for command in commands_of_tables.KINDS:
        assert f'["{command}"' in text
    for directory in layout.DIRECTORIES:
        assert f"`{directory}/" in text
    computed = {"id", "queue", "body", "enqueued_at", "position"}
    for field in set(FIELDS) - computed:
        assert f"`{field}`" in text, field
    assert f"{header.SECTION_MESSAGES:,} messages" in text
    assert f"{header.MAX_HEADER_BYTES >> 20} MiB" in text
    assert f"{header.MAX_TABLE_BYTES >> 20} MiB" in text


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def section(page: str, heading: str) -> str:
    """Return the text under a heading, up to the next heading of its level."""
    level, _, _ = heading.partition(" ")
    _, found, text = page.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^{level} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_picture_of_the_architecture_has_the_layers_that_are_proven() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["spool"]]
    (picture,) = re.findall(r"```mermaid\n(.*?)```", ARCHITECTURE, re.DOTALL)
    drawn = re.findall(r'L(\d+)\["(.*?)"\]', picture)
    assert [text.replace(" · ", " | ") for _, text in drawn] == [layer for layer in layers if layer != "__main__"]
    expected = [(str(place), str(place + 1)) for place in range(len(drawn) - 1)]
    assert re.findall(r"L(\d+)(?:\[.*?\])? --> L(\d+)", picture) == expected


def placed() -> list[tuple[str, str]]:
    """(path, name) of each name in parentheses behind a file."""
    found = re.findall(r"`([\w/]+\.py)` \(([^)]*)\)", section(ARCHITECTURE, "## Places for a change"))
    return [(path, name) for path, words in found for name in re.findall(r"`(\w+)`", words)]


def test_names_that_the_architecture_places_in_a_file_are_in_it() -> None:
    assert len(placed()) >= 6
    for path, name in placed():
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{path}: {name}"


def test_the_architecture_names_nothing_that_is_not_there() -> None:
    words = set(inline(ROOT / "docs" / "architecture.md")) - {name for path, name in placed() if "tests/" in path}
    assert not references.unknown_words(words)


def test_the_rules_of_the_architecture_are_numbered_and_those_that_are_named_are_there() -> None:
    assert list(references.rules()) == list(range(1, len(references.rules()) + 1))
    assert len(references.rules()) >= 8
    assert not references.missing_rules()


def test_planted_bugs_that_the_rules_name_exist() -> None:
    """Of each rule, the page names the tests that fail when the code breaks it."""
    noticed = re.findall(r"\*Noticed by\* ((?:.|\n(?!\n|- |  - |\w))*)", ARCHITECTURE)
    assert len(noticed) == len(references.rules())
    planted = (ROOT / "tests" / "crash" / "planted.py").read_text()
    for bug in re.findall(r'"([^"]+)"', " ".join(noticed)):
        assert f'"{" ".join(bug.split())}"' in planted, bug


def test_the_guide_lists_every_option() -> None:
    options = section((ROOT / "docs" / "guide.md").read_text(), "## All options")
    of_queues, of_spaces = options.split("| option of a space |")
    for names, text in ((QUEUE_OPTIONS, of_queues), ({*SPACE_OPTIONS, "defaults"}, of_spaces)):
        rows = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
        assert set(re.findall(r"`(\w+)`", rows)) == set(names)


def test_help_of_the_package_names_the_page_of_words() -> None:
    assert "docs/words.md" in (spool.__doc__ or "")


def test_reliability_md_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 15
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"


def test_reliability_md_gives_the_cost_of_each_step() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    for cost in COSTS:
        _, _, ordered, carrying, strict = cost.values
        assert f"| {cost.id} | {ordered} | {carrying} | {strict} |" in text


def test_operations_md_has_a_row_for_each_error() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    public = {
        name
        for name in spool.__all__
        if isinstance(found := getattr(spool, name), type) and issubclass(found, spool.SpoolError)
    }
    assert public - {"SpoolError"} == set(re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE))


def test_log_md_names_every_logger() -> None:
    text = (ROOT / "docs" / "log.md").read_text()
    for package in ("spool", "xa", "recovery", "forwarder"):
        for module in (ROOT / package).rglob("*.py"):
            for name in re.findall(r'getLogger\("([\w.]+)"\)', module.read_text()):
                assert f"`{name}`" in text, f"{module.name} logs to {name}"


def test_log_md_names_every_event_of_the_log() -> None:
    text = (ROOT / "docs" / "log.md").read_text()
    modules = [module for name in ("spool", "xa", "recovery", "forwarder") for module in (ROOT / name).rglob("*.py")]
    events = {(level, re.sub(r"%[a-z]", "…", event)) for module in modules for level, event in _events(module)}
    events = {event for event in events if re.search(r"\w", event[1])}  # else all of it is the error that it reports
    assert events == set(re.findall(r"^\| (CRITICAL|ERROR|WARNING|INFO) \| `(.*?)` \|", text, re.MULTILINE))


def _events(module: Path) -> list[tuple[str, str]]:
    """Return the level and text of each call of a module's logger."""
    text = module.read_text()
    calls = [
        node
        for node in (ast.walk(ast.parse(text)) if "log." in text else ())  # (most modules need not be parsed)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "log"
    ]
    levels = {"exception": "ERROR"}
    return [
        (levels.get(call.func.attr, call.func.attr.upper()), str(call.args[0].value))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.args and isinstance(call.args[0], ast.Constant)
    ]
