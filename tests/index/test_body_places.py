"""The index has the correct place of each body, in commits of this process and of others, and in a checkpoint."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.errors import CorruptedFile
from spool.log import checkpoint
from spool.log.visibility import catch_up
from spool.model import layout
from tests import door

bodies = st.integers(0, 255).flatmap(lambda n: st.sampled_from([0, 1, 255, 256, 70_000]).map(lambda m: bytes([n]) * m))
commits = st.lists(st.lists(bodies, min_size=1, max_size=4), min_size=1, max_size=4)


def check(space: spool.Space, put: list[list[bytes]]) -> None:
    store, found = door.store(space), []
    catch_up(store)
    for run in store.view.index.messages.queue("orders").ready:
        file = Path(space.path, layout.committed(run.file.number)).read_bytes()
        for ordinal in range(run.first, run.end):
            offset, length, _ = store.files.cache.place(run, ordinal)
            found.append(file[offset : offset + length])
            assert store.files.cache.bodies(run, ordinal, 1, bytes) == [found[-1]]
            assert run.bytes_of(ordinal) == length
    assert found == [body for one in put for body in one]


@given(put=commits)
def test_a_body_lies_where_the_index_says(tmp_path_factory: pytest.TempPathFactory, put: list[list[bytes]]) -> None:
    with spool.create(tmp_path_factory.mktemp("places") / "space") as space:
        space.create_queue("orders")
        for one in put:
            space.put_many("orders", one)
        check(space, put)
        with spool.open(space.path) as other:
            check(other, put)
        store = door.store(space)
        assert checkpoint.save(store.files.disk, store.shared.counters, store.view)
        with spool.open(space.path) as restored:
            assert door.index(restored).restored == store.view.index.applied
            check(restored, put)


def test_a_changed_body_is_not_returned(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        space.put("orders", b"one")
        space.put_many("orders", [b"two", b"three"])
        check(space, [[b"one"], [b"two", b"three"]])
        for path in Path(space.path, layout.COMMITTED).iterdir():
            path.write_bytes(path.read_bytes().replace(b"two", b"owt").replace(b"one", b"eno"))
        cache = door.store(space).files.cache
        for run in door.index(space).messages.queue("orders").ready:
            with pytest.raises(CorruptedFile, match="does not match its checksum"):
                cache.bodies(run, run.first, 1, bytes)
            assert cache.unproven(run, run.first) in (b"eno", b"owt")
