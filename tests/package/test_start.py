"""The imports of a start: ``import spool`` and a short command import no module that they do not need.

The tests measure no time: an imported module costs the same on every machine.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import spool
from tests.package.conftest import ROOT

# Each costs a millisecond or more, with its own imports, and some call or command needs it.
RARE = {
    "asyncio", "difflib", "email", "filelock", "http", "importlib.metadata", "multiprocessing", "rich", "socket",
    "subprocess", "tarfile", "tempfile", "tomlkit", "urllib", "watchdog", "zipfile", "zoneinfo", "cronsim",
}  # fmt: skip
OF_THE_ENGINE = {"spool.admin.doctor", "spool.admin.export", "spool.aio", "spool.intake", "spool.policies.capacity"}
OF_EVERY_SPACE = {"spool.opening", "spool.space", "spool.recovery", "msgpack", "sortedcontainers", "logging", "json"}
_RARE = "archive check docs doctor execute get init message put quarantine rearrange schedule"
OTHER_COMMANDS = {f"xaspool_scripts.commands.{name}" for name in _RARE.split()}


def imported(program: str, *arguments: str) -> set[str]:
    """Every module that a new Python has after that program."""
    code = f"import json, sys\n{program}\nprint(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of(found: set[str], unwanted: set[str]) -> set[str]:
    """Return the found modules that are unwanted or lie in an unwanted package."""
    return {name for name in found if any(name == each or name.startswith(f"{each}.") for each in unwanted)}


def test_import_spool_imports_no_engine() -> None:
    already = imported("")  # imported by an editable install or a coverage tool
    assert of(imported("import spool") - already, RARE | OF_THE_ENGINE | OF_EVERY_SPACE | {"dataclasses"}) == set()


def test_an_open_space_imports_only_modules_that_puts_and_gets_need() -> None:
    already = imported("")
    assert of(imported("import spool; spool.open") - already, RARE | OF_THE_ENGINE | {"spool.workers"}) == set()


@pytest.mark.every(3)
@pytest.mark.parametrize("ask", [["queue", "list"], ["queue", "list", "--json"], ["queue", "--help"]], ids=" ".join)
def test_a_short_command_imports_its_own_module_alone(ask: list[str], tmp_path: Path) -> None:
    with spool.create(tmp_path) as space:
        space.create_queue("orders")
    already = imported("")
    command = "import os; sys.argv[0] = 'spool-admin'\nfrom xaspool_scripts.start import admin\n"
    command += "try: admin()\nexcept SystemExit as end: assert not end.code, end.code"
    unwanted = RARE | OF_THE_ENGINE | OTHER_COMMANDS | {"spool.workers"}
    found = imported(command, f"--space={tmp_path}", *ask)
    assert of(found - already, unwanted) == set()
    assert ("spool.space" in found) is ("--help" not in ask)


def test_the_modules_that_the_lists_name_are_there() -> None:
    """A module that was renamed would not be missed where it is imported."""
    named = RARE | OF_THE_ENGINE | OF_EVERY_SPACE | OTHER_COMMANDS
    found = imported("\n".join(f"import {name}" for name in sorted(named)))
    assert named <= found
