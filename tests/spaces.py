"""Fixtures of spaces: a module with ``space = space_with("orders")`` gets an open space with a queue, new in each test.

The queues deliver a failed message again at once, unless the module gives other defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spool
from tests import door
from tests.at_once import AT_ONCE


def space_with(*queues: str, **given: Any) -> Any:
    """A fixture: an open space with these queues. given: see ``created``."""

    @pytest.fixture
    def space(tmp_path: Path) -> Iterator[spool.Space]:
        with created(tmp_path / "space", queues, **given) as found:
            yield found

    return space


def path_with(*queues: str, **given: Any) -> Any:
    """A fixture: the path of a space with these queues, which no process has open."""

    @pytest.fixture
    def path(tmp_path: Path) -> Path:
        with created(tmp_path / "space", queues, **given):
            return tmp_path / "space"

    return path


def opened_again() -> Any:
    """A fixture: the open space of the test, opened a second time, as another process opens it."""

    @pytest.fixture
    def other(space: spool.Space) -> Iterator[spool.Space]:
        with spool.open(space.path) as other:
            yield other

    return other


def opened_path() -> Any:
    """A fixture: the open space at the path of the test."""

    @pytest.fixture
    def space(path: Path) -> Iterator[spool.Space]:
        with spool.open(path) as space:
            yield space

    return space


@contextmanager
def created(
    path: Path,
    queues: Sequence[str],
    *,
    defaults: Any = AT_ONCE,
    messages: Mapping[str, Sequence[object]] = {},
    **options: Mapping[str, Any],
) -> Iterator[spool.Space]:
    """Create a space. messages: bodies by queue. options: by the name of a further queue, its options."""
    with spool.create(path, defaults=defaults) as space:
        for name in queues:
            space.create_queue(name)
        for name, chosen in options.items():
            space.create_queue(name, **chosen)
        for name, bodies in messages.items():
            space.put_many(name, bodies)
        yield space


def remove_by_hand(space: spool.Space, queue: str) -> None:
    """Remove the table of a queue from ``space.toml``, as an edit by hand does. Other queues may still name the
    queue."""
    file = Path(space.path, "space.toml")
    text = file.read_text()
    [header] = [form for form in (f"[queues.{queue}]\n", f'[queues."{queue}"]\n') if form in text]
    before, _, rest = text.partition(header)
    _, bracket, after = rest.partition("[")
    file.write_text(before + bracket + after)
    door.housekeep(space)
    assert queue not in space.queues()


def fail_one(space: spool.Space, queue: str) -> None:
    """Take the next message of a queue, and count a failed attempt."""
    with space.transaction() as tx:
        tx.get(queue)
        tx.rollback()
