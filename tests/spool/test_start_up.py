"""A program that makes its space and its queues can be started again, and several times at once."""

import os
from pathlib import Path

import pytest

import spool
from tests.children import at_once
from tests.machine import NO_FILES, Machine
from tests.meanwhile import Meanwhile
from tests.simdisk import SimulatedDisk


def start(path: Path) -> None:
    with spool.create(path, max_headers=8, exist_ok=True) as space:
        space.create_queue("errors", exist_ok=True)
        space.create_queue("orders", retries=3, error_queue="errors", exist_ok=True)
        space.put("orders", os.getpid())


def test_a_program_that_makes_its_space_and_queues_can_be_started_twice(tmp_path: Path) -> None:
    for _ in range(2):
        start(tmp_path / "shop")
    with spool.open(tmp_path / "shop") as space:
        assert len(space.get_many("orders", 10)) == 2


@pytest.mark.parametrize("round", range(3))
@pytest.mark.every(3)
def test_of_programs_that_start_at_once_one_makes_the_space_and_all_use_it(tmp_path: Path, round: int) -> None:
    children = at_once(lambda _: start(tmp_path / "shop"), 6)
    with spool.open(tmp_path / "shop") as space:
        assert sorted(message.body for message in space.get_many("orders", 10)) == sorted(children)
        assert sorted(space.queues()) == ["errors", "orders"]


def test_a_create_that_looked_before_another_made_the_space_does_not_make_it_again() -> None:
    """Otherwise it would replace a space.toml that names queues by one that names none."""
    machine = Machine(NO_FILES)

    def make() -> None:
        with spool.create(SimulatedDisk(machine)) as space:
            space.create_queue("orders")
            space.put("orders", "kept")

    for call in ("open_directory", "flock"):
        disk = Meanwhile(machine)
        disk.before(call, make)
        with spool.create(disk, exist_ok=True) as space:
            assert not disk.waits_for(call)
            assert space.get("orders").body == "kept"
        machine = Machine(NO_FILES)


def test_a_space_with_other_options_is_refused_and_the_text_names_them(tmp_path: Path) -> None:
    spool.create(tmp_path / "shop", max_headers=8, defaults={"retries": 3}).close()
    spool.create(tmp_path / "shop", exist_ok=True, max_headers=8, defaults={"retries": 3}).close()
    with pytest.raises(spool.SpaceExists, match=r"max_headers is 8, not 9.*space\.toml"):
        spool.create(tmp_path / "shop", exist_ok=True, max_headers=9)
    with pytest.raises(spool.SpaceExists, match="defaults is retries=3, not empty"):
        spool.create(tmp_path / "shop", exist_ok=True, defaults={})
    with pytest.raises(spool.SpaceExists, match="exist_ok=True"):
        spool.create(tmp_path / "shop")


def test_a_queue_with_other_options_is_refused_and_the_text_names_them(tmp_path: Path) -> None:
    with spool.create(tmp_path / "shop", defaults={"retries": 3}) as space:
        made = space.create_queue("orders", order="priority", max_messages=5)
        assert space.create_queue("orders", exist_ok=True) == made
        same = space.create_queue("orders", exist_ok=True, order=("priority", "fifo"), max_messages=5, retries=3)
        assert same == made
        with pytest.raises(
            spool.QueueExists, match=r"\(order is priority,fifo, not fifo, retries is 3, not None\)"
        ) as e:
            space.create_queue("orders", exist_ok=True, order="fifo", retries=None)
        assert "change_queue" in str(e.value)
        assert space.queues()["orders"] == made
        with pytest.raises(spool.QueueExists, match="exist_ok=True"):
            space.create_queue("orders")


def test_a_queue_that_was_just_written_into_the_file_by_hand_can_be_used_at_once(tmp_path: Path) -> None:
    with spool.create(tmp_path / "shop") as space:
        with open(tmp_path / "shop" / "space.toml", "a") as file:
            file.write("[queues.orders]\nretries = 2\n")
        assert space.create_queue("orders", exist_ok=True).retries == 2
        space.put("orders", "tea")
        assert space.get("orders").body == "tea"
