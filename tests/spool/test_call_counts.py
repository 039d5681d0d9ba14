"""The numbers of calls in a put, a get, a transaction and a two-phase commit: an added layer makes these tests fail.

``bench.walk`` counts the calls as frames of Python and calls of C functions. It runs one thread without a housekeeper,
with one flush a commit on any file system. A change that makes a step shorter lowers its line. A new promise raises
one, and so does a plainer form of the code that costs no time (``bench.before``).
"""

import subprocess
import sys
from typing import NamedTuple

import pytest

from bench.walk import ROOT

# Counted with Python 3.11: 3.12 and 3.13 inline comprehensions, so they need fewer frames. Later ones are not known.
ALLOWED = 1.0 if sys.version_info < (3, 14) else 1.1

# By step: the most frames of Python and calls of C functions, 2 % above today's counts. The comments give the goals.
MOST = {
    "put": (88, 133),  # 50 + 80
    "get": (124, 171),  # 70 + 110
    "transaction of a get and a put": (244, 285),
    "the commit of such a transaction": (109, 146),
    "two-phase commit of a put, all five calls": (288, 334),  # 200 + 250
    "each further put of a transaction": (8, 13),  # 8 + 15
    "each further get of a transaction, of messages of one commit": (36, 42),  # 25 + 30
    "each further get of a transaction, of messages of a commit each": (34, 42),  # 25 + 30
}


MOST_MODULES = {"put": 19, "get": 25}


class Counted(NamedTuple):
    modules: int
    frames: int
    c_calls: int


@pytest.fixture(scope="module")
def counted() -> dict[str, Counted]:
    """Return the counts that a separate program prints, so that the remains of other tests in this process do not
    count."""
    printed = subprocess.run([sys.executable, "-m", "bench.walk"], capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [line.removeprefix("| ").split(" | ") for line in printed.stdout.splitlines()[2:]]
    return {name: Counted(*map(int, (entered, *calls))) for name, entered, _, _, _, *calls, _ in rows}


def test_every_step_has_a_ceiling(counted: dict[str, Counted]) -> None:
    assert set(counted) == set(MOST)


@pytest.mark.parametrize("step", MOST_MODULES)
def test_a_step_enters_few_modules(counted: dict[str, Counted], step: str) -> None:
    assert 1 < counted[step].modules <= MOST_MODULES[step]


@pytest.mark.parametrize("step", MOST)
def test_a_step_makes_no_more_calls_than_it_did(counted: dict[str, Counted], step: str) -> None:
    frames, c_calls = MOST[step]
    assert 1 < counted[step].frames <= ALLOWED * frames
    assert 1 < counted[step].c_calls <= ALLOWED * c_calls
