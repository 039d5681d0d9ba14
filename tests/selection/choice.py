"""The choice: for each file of the product, some tests that notice changes of the file within a minute.

The tests are those that noticed a mutation of the file, then at least two tests for each function of the file, then all
tests of the test files that spend the largest part of their calls in this file. ``chosen.toml`` keeps the choice.
"""

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutation.memory import noticed
from tests.selection.probes import names_of_functions

CHOSEN = Path(__file__).with_name("chosen.toml")
SECONDS = 60.0
"""The most time of one processor for the tests of a file."""
ALL = "*"
"""Stands for all tests of a test file."""
_HEAD = """\
# The tests that scripts/test --for runs for a file of the product; "*" is all tests of a test file.
# Written by scripts/test --record-calls. If you rename a file or a test, rename it here, too.
"""
_EACH = 2  # tests that enter a function
_OPENING = 0.3  # seconds to import a test file

Tests = Mapping[str, Collection[str]]
"""The names of tests, by test files; ``*`` is all tests of a test file."""


class Recorded(NamedTuple):
    """A test of the record, for one file of the product.

    ``seconds`` is the test's duration, and ``opening`` the time until the first test of its test file can begin.
    ``entered`` has the file's functions that the test entered, and ``share`` is their part of all entered functions.
    """

    path: str
    name: str
    seconds: float
    opening: float
    entered: frozenset[str]
    share: float


def choose(tests: Iterable[Recorded], whole: Mapping[str, float], noticing: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the tests of one file of the product, which take ``SECONDS`` at most.

    ``tests``: the tests that enter the file; ``whole``: the duration of all tests of a test file in seconds;
    ``noticing``: the ids of the tests that noticed a mutation of the file.
    """
    left, known = SECONDS, {*noticing}
    chosen: defaultdict[str, list[str]] = defaultdict(list)
    wanted: Counter[str] = Counter()
    focus: defaultdict[str, float] = defaultdict(float)
    for test in tests:
        wanted.update(test.entered)
        focus[test.path] += test.share
    wanted = Counter({function: min(count, _EACH) for function, count in wanted.items()})

    def cost(test: Recorded) -> float:
        return 0.001 + test.seconds + (0 if test.path in chosen else test.opening)

    def value(test: Recorded) -> float:
        """Of noticing tests, the quickest is the first; of others, the test with the most functions a second."""
        if f"{test.path}::{test.name}" in known:
            return 1e9 / cost(test)
        return sum(wanted[function] > 0 for function in test.entered) / cost(test)

    rest = [*tests]
    while rest := [test for test in rest if value(test) and cost(test) <= left]:
        best = max(rest, key=value)
        left -= cost(best)
        rest.remove(best)
        chosen[best.path].append(best.name)
        wanted.subtract(best.entered)
    for path in sorted(focus, key=lambda path: -focus[path]):
        if whole[path] <= left:
            left -= whole[path]
            chosen[path] = [ALL]
    return dict(chosen)


def choices(record: Path) -> dict[str, Tests]:
    """Return the tests for each file, from the directory of a record."""
    functions = [(path, name) for path, names in names_of_functions(record).items() for name in names]
    lines = [json.loads(line) for file in record.glob("*.jsonl") for line in file.open()]
    opening: defaultdict[str, float] = defaultdict(float)
    whole: defaultdict[str, float] = defaultdict(float)
    for test, seconds, _ in lines:
        path = test.partition("::")[0]
        opening[path] = max(opening[path], _OPENING + seconds[0])
        whole[path] += sum(seconds)
    tests: defaultdict[str, list[Recorded]] = defaultdict(list)
    for test, seconds, entered in lines:
        by_file: defaultdict[str, set[str]] = defaultdict(set)
        for number in entered:
            by_file[functions[number][0]].add(functions[number][1])
        path, _, name = test.partition("::")
        for file, names in by_file.items():
            share = len(names) / len(entered)
            tests[file].append(Recorded(path, name, sum(seconds), opening[path], frozenset(names), share))
    noticing: defaultdict[str, list[str]] = defaultdict(list)
    for site, (test, *options) in noticed().items():
        if not options:
            noticing[site.partition(" ")[0]].append(test)
    return {file: choose(tests[file], whole, noticing[file]) for file in sorted(tests)}


@cache
def read() -> dict[str, Tests]:
    """Return the tests for each file of the product."""
    return tomllib.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}


def write(chosen: Mapping[str, Tests]) -> None:
    """Keep the tests for each file of the product."""
    text = _HEAD
    for file in sorted(chosen):
        text += f"\n[{_string(file)}]\n"
        for path, names in sorted(chosen[file].items()):
            listed = "".join(f"    {_string(name)},\n" for name in sorted(names))
            text += f"{_string(path)} = " + (f"[\n{listed}]\n" if [*names] != [ALL] else f"{_string(ALL)}\n")
    CHOSEN.write_text(text)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # TOML reads the escapes of JSON
