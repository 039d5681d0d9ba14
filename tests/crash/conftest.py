"""The fixture of all simulated crashes."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of recoveries log their findings; nobody reads them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
