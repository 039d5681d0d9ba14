"""The housekeeper decides its work from a few numbers; the tests try each number on both sides of its limit."""

import pytest

from spool.maintenance.triggers import IndexSize, checkpoint_from, is_checkpoint_due, is_reclaim_due, retained

NOTHING = IndexSize()


@pytest.mark.parametrize(
    ("idle", "compacted", "quiet", "due"),
    [
        (0, False, False, False),
        (511, False, False, False),
        (512, False, False, True),
        (63, False, True, False),
        (64, False, True, True),
        (0, True, False, True),
    ],
)
def test_files_are_reclaimed_in_large_groups_and_in_small_ones_while_nothing_happens(
    idle: int, compacted: bool, quiet: bool, due: bool
) -> None:
    assert is_reclaim_due(idle, compacted=compacted, quiet=quiet) is due


def test_files_are_left_for_readers_unless_nothing_happens() -> None:
    assert (retained(quiet=False), retained(quiet=True)) == (512, 0)


@pytest.mark.parametrize(
    ("now", "saved", "lasting", "due"),
    [
        (IndexSize(255, 255), NOTHING, False, False),
        (IndexSize(256, 256), NOTHING, False, True),
        (IndexSize(10_000, 255), NOTHING, False, False),  # little to read
        (IndexSize(10_000, 9_000), IndexSize(9_745, 9_000), False, False),  # little of it new
        (IndexSize(10_000, 9_000), IndexSize(9_744, 9_000), False, True),
        (IndexSize(1, 0, 1), NOTHING, False, True),  # one segment is as much as 256 files
        (IndexSize(10_000, 300), IndexSize(10_000, 9_000), False, False),  # reclaim alone has changed it
        (IndexSize(10_000, 300), IndexSize(10_000, 9_000), True, True),
        (IndexSize(10_000, 255), IndexSize(10_000, 9_000), True, False),
    ],
)
def test_a_checkpoint_is_written_when_an_opener_would_read_much_that_is_new(
    now: IndexSize, saved: IndexSize, lasting: bool, due: bool
) -> None:
    assert is_checkpoint_due(now, saved, 256, lasting=lasting) is due


def test_many_files_make_a_checkpoint_rarer() -> None:
    assert (checkpoint_from(0), checkpoint_from(4_000)) == (256, 1_256)
