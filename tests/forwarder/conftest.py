"""What the tests of the forwarder share."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE


@pytest.fixture
def space(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        for queue in ("replies", "failures", "errors", "next"):
            space.create_queue(queue)
        space.create_queue("work", reply_queue="replies", failure_queue="failures", error_queue="errors", retries=2)
        yield space


@pytest.fixture
def chance() -> random.Random:
    """A random sequence that $SEED repeats; it is printed."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    return random.Random(seed)
