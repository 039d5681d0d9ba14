"""The files of a space and of its mirror, side by side."""

from pathlib import Path

from spool.model import layout


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def commits(mirror: Path) -> dict[str, bytes]:
    """The mirror without the ids and its copy of the settings."""
    found = files(mirror)
    assert found.pop(layout.SPACE_ID)
    assert found.pop(layout.MIRROR_ID)
    assert found.pop(layout.MIRROR_SETTINGS)
    return found


def expect_same(path: Path) -> None:
    assert commits(path / "mirror") == files(path / "space" / "committed")
