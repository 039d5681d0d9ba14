"""The choice of places for a default run: each kind of call is among them, and --long chooses every place."""

from tests.strides import Stride, some

CALLS = ["create active/1f2e3d4c", "write 0", "write 1", "write 2", "flush committed", "write 3", "flush committed"]


def test_a_step_of_one_chooses_every_place() -> None:
    assert list(some(range(len(CALLS)), CALLS, 1)) == [*range(len(CALLS))]


def test_the_first_place_between_two_kinds_of_calls_is_chosen() -> None:
    """Places 3 and 6 are between kinds of calls that came before."""
    assert list(some(range(len(CALLS)), CALLS, 100)) == [0, 1, 2, 4, 5]


def test_every_so_manieth_place_is_chosen() -> None:
    assert list(some([*range(10, 10 + len(CALLS))], CALLS, 6)) == [10, 11, 12, 14, 15, 16]


def test_the_fixture_gives_every_place_with_long_only(stride: Stride, pytestconfig) -> None:
    assert stride(7) == (1 if pytestconfig.getoption("--long") else 7)
