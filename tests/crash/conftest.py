"""What the simulated crashes share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of recoveries say what they found; none of it is looked at."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
