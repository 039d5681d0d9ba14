"""The delays that `Retry` accepts."""

from typing import Any

import pytest

from spool import InvalidArgument, Retry


@pytest.mark.parametrize("delay", ["x", -1, float("nan"), b""])
def test_a_delay_that_is_no_number_of_seconds_is_refused_in_words(delay: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay is a number of seconds from 0, not "):
        Retry("busy", delay=delay)
