"""The examples of the pages, the tour and the demonstration end beside other processes as they end alone."""

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import pages
from tests.beside.committer import QUEUE
from tests.beside.company import two_that_commit
from tests.led import of_programs
from tests.test_docs import ROOT, readers
from tests.test_docs import environment as environment  # a fixture
from tests.test_docs import postgresql as postgresql  # another one

README, FIRST_STEPS = ROOT / "README.md", ROOT / "docs" / "first-steps.md"
NOT_BESIDE_OTHERS = {
    "metrics.md": "its output has a line for each queue of the space",
    "operations.md": "it moves a space and begins a mirror, for which all programs are stopped",
}


def read(*quick: Path) -> list[Any]:
    """Return the pages as parameters; all but these are slow."""
    slow = pytest.mark.slow
    return [pytest.param(page, marks=() if page in quick else slow, id=page.name) for page in readers(spark=False)]


def of_page(page: Path, environment: dict[str, str], request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment of the page's programs, with a database if they need one."""
    if not any("import psycopg" in block.text for block in pages.programs(page)):
        return environment
    given: dict[str, str] = request.getfixturevalue("postgresql")
    with closing(psycopg.connect(host=given["PGHOST"], user=given["PGUSER"], dbname="postgres")) as database:
        database.autocommit = True
        database.execute("drop database shop with (force)")  # another test of the page has used it
        database.execute("create database shop")
    return {**environment, **given}


@pytest.mark.slow
@pytest.mark.parametrize("page", read(README, FIRST_STEPS))
def test_a_page_runs_as_it_says_while_another_process_leads(
    page: Path, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    led = of_programs(of_page(page, environment, request))
    for block in pages.programs(page):
        pages.run(block, tmp_path, led)


@pytest.mark.parametrize("page", read())
def test_a_page_runs_as_it_says_beside_two_processes_that_commit(
    page: Path, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Lines about the queue of these processes do not count."""
    if page.name in NOT_BESIDE_OTHERS:
        pytest.skip(NOT_BESIDE_OTHERS[page.name])
    given = of_page(page, environment, request)
    with two_that_commit(tmp_path, at_once=False):
        for block in pages.programs(page):
            pages.run(block, tmp_path, given, without=QUEUE)


def test_the_tour_ends_as_it_ends_alone(environment: dict[str, str], tmp_path: Path) -> None:
    command = ["/usr/bin/env", "spool-admin", "tour", "--keep", str(tmp_path / "tour")]
    with two_that_commit(tmp_path, at_once=False):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spool-admin: clean" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demonstration_loses_and_doubles_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xaspool_scripts.demo", "--keep"]  # the committers need the space to the end
    with two_that_commit(tmp_path, at_once=False):
        done = subprocess.run(
            command, env={**environment, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
        )
    # The demonstration proves that its space is empty at the end, and the committers still have messages there.
    others = rf"demo: that is not right: left in queues \{{'{QUEUE}': \d+\}}, damaged \[\]; please report it"
    lines = done.stderr.splitlines()
    if done.returncode != 0:
        assert re.fullmatch(others, lines[-1]), done.stderr
    else:
        assert "Nothing lost, nothing doubled" in done.stdout
