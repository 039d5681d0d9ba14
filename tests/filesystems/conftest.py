"""The tests of this folder need root, because they mount. They are skipped with a reason if a program or a file system
is missing."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "filesystems":
            item.add_marker(pytest.mark.root)
