"""The choice of places for a default run: each kind of call is among them, and --long chooses every place."""

from typing import Any

import pytest

from tests.strides import Stride, of_this_run, some

CALLS = ["create active/1f2e3d4c", "write 0", "write 1", "write 2", "flush committed", "write 3", "flush committed"]


def test_a_step_of_one_chooses_every_place() -> None:
    assert list(some(range(len(CALLS)), CALLS, 1)) == [*range(len(CALLS))]


def test_the_first_place_before_each_kind_of_call_is_chosen() -> None:
    assert list(some(range(len(CALLS)), CALLS, 100)) == [0, 1, 4]


def test_every_so_manieth_place_is_chosen() -> None:
    assert list(some([*range(10, 10 + len(CALLS))], CALLS, 6)) == [10, 11, 14, 16]


def test_the_fixture_gives_every_place_with_long_only(stride: Stride, pytestconfig) -> None:
    assert stride(7) == (1 if pytestconfig.getoption("--long") else 7)


def test_a_default_run_has_each_nth_case_that_it_could_run_and_no_slow_test() -> None:
    """A case that is slow or skipped does not count, and each test has its own count."""
    cases = [Case(f"t.py::test_a[{n}]", pytest.mark.every(3, first=1)) for n in range(7)]
    cases.insert(2, Case("t.py::test_a[skipped]", pytest.mark.every(3, first=1), pytest.mark.skip))
    cases.insert(2, Case("t.py::test_a[slow]", pytest.mark.every(3, first=1), pytest.mark.slow))
    b, c = Case("t.py::test_b[0]", pytest.mark.every(2)), Case("t.py::test_c")
    items: list[Any] = [*cases, b, c, Case("t.py::test_d", pytest.mark.deep)]
    chosen = [case.nodeid for case in of_this_run(items, long=False, deep=False)]
    assert chosen == ["t.py::test_a[1]", "t.py::test_a[skipped]", "t.py::test_a[4]", "t.py::test_b[0]", "t.py::test_c"]
    assert [*of_this_run(items, long=True, deep=False)] == items[:-1]
    assert [*of_this_run(items, long=True, deep=True)] == items


class Case:
    """A test's case, as far as ``of_this_run`` looks at it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self._marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)
