"""The choice of places for a default run: each kind of call is among them, and --long chooses every place."""

import pytest

from tests.strides import Stride, left_out, some

CALLS = ["create active/1f2e3d4c", "write 0", "write 1", "write 2", "flush committed", "write 3", "flush committed"]


def test_a_step_of_one_chooses_every_place() -> None:
    assert list(some(range(len(CALLS)), CALLS, 1)) == [*range(len(CALLS))]


def test_the_first_place_before_each_kind_of_call_is_chosen() -> None:
    assert list(some(range(len(CALLS)), CALLS, 100)) == [0, 1, 4]


def test_every_so_manieth_place_is_chosen() -> None:
    assert list(some([*range(10, 10 + len(CALLS))], CALLS, 6)) == [10, 11, 14, 16]


def test_the_fixture_gives_every_place_with_long_only(stride: Stride, pytestconfig) -> None:
    assert stride(7) == (1 if pytestconfig.getoption("--long") else 7)


def test_a_default_run_leaves_out_all_but_each_nth_case_that_it_could_run() -> None:
    """A skipped case does not count, and each test has its own count."""
    cases = [Case(f"t.py::test_a[{n}]", every=3, first=1) for n in range(7)]
    cases.insert(2, Case("t.py::test_a[skipped]", every=3, first=1, skipped=True))
    others = [Case("t.py::test_b[0]", every=2), Case("t.py::test_c[0]")]
    gone = {case.nodeid for case in left_out([*cases, *others])}  # type: ignore[list-item]
    assert gone == {f"t.py::test_a[{n}]" for n in (0, 2, 3, 5, 6)}


class Case:
    """A test's case, as far as ``left_out`` looks at it."""

    def __init__(self, nodeid: str, *, every: int = 0, first: int = 0, skipped: bool = False) -> None:
        self.nodeid = nodeid
        self._marks = {"every": pytest.mark.every(every, first=first).mark} if every else {}
        if skipped:
            self._marks["skip"] = pytest.mark.skip.mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)
