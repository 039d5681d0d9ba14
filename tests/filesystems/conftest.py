"""All tests here need root, because they mount; and where a program or a file system is missing, they say so."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "filesystems":
            item.add_marker(pytest.mark.root)
