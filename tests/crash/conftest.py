"""The fixture of all simulated crashes."""

import pytest


@pytest.fixture(autouse=True)
def _quiet(quiet) -> None:
    """Turn off the log, because thousands of recoveries would log their findings."""
