"""The documents cannot rot: their examples run, their commands exist, their tables name what the code has."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from spool import entries, layout
from spool import format as file_format
from spool.message import FIELDS
from tests.conftest import rows, rows_of
from tests.spool.test_flush_counts import COSTS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{document.name}:{place}", text)
        for document in DOCUMENTS
        for place, (found, text) in enumerate(_BLOCK.findall(document.read_text()))
        if found == language
    ]


@pytest.mark.parametrize(("where", "code"), blocks("python"))
def test_python_examples_run_and_print_what_they_say(where: str, code: str, tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    said = re.findall(r"print\(.*\)  # (.*)", code)
    assert found.stdout.splitlines() == said


def commands() -> list[str]:
    lines = [line for _, text in blocks("sh") for line in text.splitlines()]
    return sorted({line.split(" && ")[0].strip() for line in lines if line.startswith("spool-")})


def test_there_are_examples_to_check() -> None:
    assert len(blocks("python")) >= 1
    assert len(commands()) >= 8


@pytest.mark.parametrize("line", commands())
def test_commands_in_examples_exist_with_their_options(line: str) -> None:
    program, *words = line.split("#")[0].split()
    module = __import__(f"xaspool_scripts.{program.removeprefix('spool-')}", fromlist=["main"])
    command: click.Command = module.main
    while isinstance(command, click.Group):
        word = words.pop(0)
        assert word in command.commands, line
        command = command.commands[word]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, line


def test_every_row_of_the_features_has_a_test_that_carries_its_id() -> None:
    functions = [name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (\w+)", file.read_text())]
    tested = {row for name in functions for row in rows_of(name)}
    assert len(rows()) >= 50
    assert rows() <= tested


def test_headings_that_links_name_are_there() -> None:
    for document in DOCUMENTS:
        for target, heading in re.findall(r"\]\(([^)#]*)#([^)]+)\)", document.read_text()):
            text = (document.parent / target).read_text() if target else document.read_text()
            found = [
                re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)", text, re.M)
            ]
            assert heading in found, f"{document.name} links to {target}#{heading}"


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
    for command in entries.COMMANDS:
        assert f'["{command}"' in text
    for directory in layout.DIRECTORIES:
        assert f"`{directory}/" in text
    computed = {"id", "queue", "body", "enqueued_at", "position"}
    for field in set(FIELDS) - computed:
        assert f"`{field}`" in text, field
    assert f"{file_format.SECTION_MESSAGES:,} messages" in text
    assert f"{file_format.MAX_HEADER_BYTES >> 20} MiB" in text
    assert f"{file_format.MAX_TABLE_BYTES >> 20} MiB" in text


def test_the_architecture_names_every_module_of_the_engine() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for module in (ROOT / "spool").glob("*.py"):
        if module.stem != "__init__":
            assert f"`{module.stem}`" in text, module.stem


def test_reliability_md_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 15
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"


def test_reliability_md_says_what_each_step_costs() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    for cost in COSTS:
        _, _, ordered, carrying, strict = cost.values
        assert f"| {cost.id} | {ordered} | {carrying} | {strict} |" in text
