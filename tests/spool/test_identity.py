"""The id of a space: written before anything can name it, kept by a move, a copy, an export and a restore."""

import os
import re
import shutil
from pathlib import Path

import pytest

import spool
from spool.model import layout
from tests.children import at_once


def id_of(path: Path) -> str:
    with spool.open(path) as space:
        return space.id


def test_two_spaces_have_different_ids_that_they_keep(tmp_path: Path) -> None:
    with spool.create(tmp_path / "one") as one, spool.create(tmp_path / "two") as two:
        ids = one.id, two.id
    assert all(re.fullmatch("[0-9a-f]{32}", id) for id in ids)
    assert ids[0] != ids[1]
    assert (id_of(tmp_path / "one"), id_of(tmp_path / "two")) == ids
    os.rename(tmp_path / "one", tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert id_of(tmp_path / "moved") == id_of(tmp_path / "copy") == ids[0]


def test_settings_that_are_copied_as_a_template_give_no_id_away(tmp_path: Path) -> None:
    with spool.create(tmp_path / "one") as one:
        one.create_queue("orders")
    os.mkdir(tmp_path / "two")
    shutil.copy(tmp_path / "one" / layout.SETTINGS, tmp_path / "two")
    with pytest.raises(spool.NotASpace, match=r"no space\.id.*spool-admin init"):
        spool.open(tmp_path / "two")
    with spool.create(tmp_path / "two") as two:
        assert two.id != one.id
        assert set(two.queues()) == {"orders"}


def test_processes_that_create_a_space_at_once_see_one_id(tmp_path: Path) -> None:
    def create(place: int) -> None:
        with spool.create(tmp_path / "space", exist_ok=True) as space:
            (tmp_path / str(place)).write_text(space.id)

    at_once(create, 4)
    assert {(tmp_path / str(place)).read_text() for place in range(4)} == {id_of(tmp_path / "space")}


@pytest.mark.parametrize("new_id", [False, True])
def test_an_import_keeps_the_id_unless_a_new_one_is_asked_for(tmp_path: Path, new_id: bool) -> None:
    with spool.create(tmp_path / "space") as space, open(tmp_path / "export", "wb") as file:
        space.export(file)
    with open(tmp_path / "export", "rb") as file, spool.import_space(tmp_path / "copy", file, new_id=new_id) as copy:
        assert (copy.id != space.id) is new_id
    assert id_of(tmp_path / "copy") == copy.id


def test_a_space_that_is_restored_from_its_mirror_keeps_its_id(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", mirror=str(tmp_path / "mirror")) as space:
        pass
    with spool.mirrors.restore(tmp_path / "restored", tmp_path / "mirror") as restored:
        assert restored.id == space.id


def test_a_mirror_that_is_begun_later_has_the_id_too(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        pass
    spool.mirrors.begin(tmp_path / "space", tmp_path / "mirror").close()
    assert (tmp_path / "mirror" / layout.SPACE_ID).read_text() == f"{space.id}\n"


@pytest.mark.parametrize("data", [b"", b"torn", b"F" * 32 + b"\n", b"0" * 33 + b"\n", b"\xff" * 33])
def test_a_damaged_id_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    spool.create(tmp_path / "space").close()
    (tmp_path / "space" / layout.SPACE_ID).write_bytes(data)
    for make in (spool.open, lambda path: spool.create(path, exist_ok=True)):
        with pytest.raises(spool.CorruptedFile, match=r"space\.id is damaged.*backup.*spool-admin init"):
            make(tmp_path / "space")
    assert (tmp_path / "space" / layout.SPACE_ID).read_bytes() == data
    (tmp_path / "space" / layout.SPACE_ID).unlink()
    spool.create(tmp_path / "space", exist_ok=True).close()
    assert len(id_of(tmp_path / "space")) == 32


def test_an_id_that_was_removed_from_an_open_space_is_told(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        (tmp_path / "space" / layout.SPACE_ID).unlink()
        for make in (spool.open, lambda path: spool.create(path, exist_ok=True)):
            with pytest.raises(spool.NotASpace, match="backup"):
                make(tmp_path / "space")
        (tmp_path / "space" / layout.SPACE_ID).write_text(f"{space.id}\n")
        spool.open(tmp_path / "space").close()


def test_a_space_that_lost_its_settings_keeps_its_id(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space") as space:
        pass
    (tmp_path / "space" / layout.SETTINGS).unlink()
    with spool.create(tmp_path / "space") as again:
        assert again.id == space.id
