"""The messages of a queue and the files of a space, read without taking a message."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import spool


def shown(messages: Iterable[object], names: str) -> list[tuple[Any, ...]]:
    """Return these attributes of each message."""
    return [tuple(getattr(message, name) for name in names.split()) for message in messages]


def bodies(space: spool.Space, queue: str = "orders") -> list[Any]:
    return [message.body for message in space.browse(queue)]


def bodies_at(path: str | Path, queue: str = "orders") -> list[Any]:
    with spool.open(path) as space:
        return bodies(space, queue)


def numbers(space: spool.Space, queue: str = "orders") -> list[int]:
    """Return the numbers of the commits that put the messages."""
    return [message.position.number for message in space.browse(queue)]


def left_over(path: str | Path) -> list[str]:
    """The files of branches that have not ended."""
    return [f"{stage}/{name}" for stage in ("active", "prepared") for name in os.listdir(f"{path}/{stage}")]
