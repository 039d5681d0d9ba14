"""The fixture of all simulated crashes."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Turn off the log, because thousands of recoveries would log their findings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
