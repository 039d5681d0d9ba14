"""A plugin of pytest: skips the tests that reasons.toml names, with the reason. ``SUITE`` is a table of the file."""

import os
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

REASONS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text())


def reason_of(suite: str, kind: str, name: str) -> str | None:
    """Return the reason for a test. ``kind``: "skipped" or "fails". ``name``: as in ``pytest -v``, a pattern."""
    for entry in REASONS.get(suite, {}).get(kind, []):
        if any(fnmatchcase(name, f"*{pattern}".replace("[", "[[]")) for pattern in entry["tests"]):
            return str(entry["reason"])
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := reason_of(os.environ["SUITE"], "skipped", item.nodeid):
            item.add_marker(pytest.mark.skip(reason=reason))
