"""Enduro/X tmqueue's behaviours, by their ids, and its flaws, which are not ours. (E07-E09: ``test_published``.)"""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest

import spool
import xa
from spool.policies.retries import retry_delay
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.children import living
from tests.clocks import MovedClock, timed
from tests.features.conftest import Reopen, drained, seen


def test_e01_a_branch_s_file_moves_from_stage_to_stage_with_its_xid_in_its_name_until_committed(space: spool.Space):
    space.create_queue("q")
    stages = {stage: Path(space.path, stage) for stage in ("active", "prepared", "committed")}

    def names(stage: str) -> list[str]:
        return sorted(os.listdir(stages[stage]))

    xid, rm = xa.Xid(1, b"global", b"branch"), xa.ResourceManager(space)
    with voting(rm, xid):
        space.put_many("q", [b"x" * (1 << 20)] * 20)  # large enough to be written while it is open
        assert names("active") == [f"{xid}.msgpack"]
    assert (names("active"), names("prepared"), names("committed")) == ([], [f"{xid}.msgpack"], [])
    rm.commit(xid, xa.TMNOFLAGS)
    assert (names("active"), names("prepared")) == ([], [])
    assert len(names("committed")) == 2
    assert not any(str(xid) in name for name in names("committed"))


def test_e02_removal_and_update_travel_as_commands_that_the_commit_applies(space: spool.Space) -> None:
    space.create_queue("q")
    one, two = space.put_many("q", [1, 2])
    space.get("q", message_id=one)
    space.change(two, priority=60)
    commands = []
    for name in sorted(os.listdir(f"{space.path}/committed")):
        with open(f"{space.path}/committed/{name}", "rb") as file:
            parts = [part for part in msgpack.Unpacker(file) if isinstance(part, dict)]
            commands += [command for part in parts for command in part.get("commands", ())]
    assert [command[0] for command in commands] == ["remove", "update"]
    assert seen(space, "q") == [2]


def test_e04_several_processes_share_a_space_each_killable_at_any_moment(path: Path, space: spool.Space) -> None:
    space.create_queue("q")
    space.put_many("q", range(4))

    def take_and_wait(ready: Callable[[], object]) -> object:
        transaction = spool.open(path).transaction(timeout=None)
        return transaction, transaction.get("q"), ready()

    with ExitStack() as members:
        for _ in range(3):
            members.enter_context(living(take_and_wait))
        assert (space.stats("q").claimed, space.stats("q").ready) == (3, 1)
    assert sorted(drained(space, "q")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"retry_delay": 5, "retry_delay_max": None}, [5, 5, 5, 5]),
        ({"retry_delay": 5, "retry_delay_max": 30}, [5, 10, 20, 30, 30]),
        ({"retry_delay": 0}, [0, 0]),
        ({}, [1, 2, 4]),
    ],
    ids=["steady", "growing", "none", "default"],
)
def test_e06_waits_grow_between_tries_up_to_the_cap(options: dict[str, float], waits: list[float]) -> None:
    config = spool.QueueConfig("q", **options)  # type: ignore[arg-type]
    assert [retry_delay(config, attempts) for attempts in range(len(waits))] == waits
    longest = config.retry_delay_max if config.retry_delay and config.retry_delay_max is not None else waits[-1]
    assert retry_delay(config, 10_000) == longest


def test_e06_waits_before_the_first_try_and_between_tries_survive_restarts(
    path: Path, clock: MovedClock, again: Reopen
) -> None:
    with spool.create(timed(path, clock)) as space:
        space.create_queue("q", first_delay=100, retry_delay=10, retry_delay_max=1000)
        space.put("q", "delayed")
        space.put("q", "at once", delay=0)
    for wait in (100, 10, 20, 40):
        space = again()
        assert drained(space, "q") == (["at once"] if wait == 100 else [])
        clock.later += wait - 2
        assert drained(space, "q") == []
        clock.later += 3
        with space.transaction() as tx:
            assert tx.get("q").body == "delayed"
            tx.rollback()
        space.close()


def test_e06_a_wait_longer_than_its_cap_is_refused(space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match="retry_delay_max is at least retry_delay, 10"):
        space.create_queue("q", retry_delay=10, retry_delay_max=5)


def test_e10_new_queues_inherit_the_spaces_defaults(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults={"retries": 3, "order": "lifo"}) as space:
        assert space.create_queue("a").retries == 3
        assert space.create_queue("b", retries=None, order="fifo").retries is None
        assert (space.queues()["a"].order, space.queues()["b"].order) == (("lifo",), ("fifo",))
    with spool.open(tmp_path / "space") as space:
        assert (space.queues()["a"].retries, space.queues()["b"].retries) == (3, None)


def test_e10_settings_that_people_edit_are_read_while_programs_run(
    space: spool.Space, again: Reopen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "spool")
    space.create_queue("q")
    other = again()
    file = Path(space.path, "space.toml")
    text = file.read_text()
    file.write_text(f"# mine\n{text}\nretries = 7\n")
    door.housekeep(space)
    assert space.queues()["q"].retries == other.queues()["q"].retries == 7
    file.write_text(f"{text}\nretries = 'many'\n")
    door.housekeep(space)
    assert "queue q: retries is a whole number from 0" in caplog.text
    assert str(file) in caplog.text
    assert space.queues()["q"].retries == 7
    file.write_text(f"# mine\n{text}")
    space.create_queue("new")
    assert file.read_text().startswith("# mine\n")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("colour = 1", "there is no option 'colour'; there are role, order, out_of_order"),
        ("retries = 1.5", "retries is a whole number"),
        ("order = ['size']", "order is priority and time"),
        ("error_queue = 7", "error_queue is the name of a queue"),
        ("max_bytes = -1", "max_bytes is a whole number from 0"),
    ],
)
def test_e10_a_wrong_key_or_type_is_named_with_file_key_and_allowed_values(path: Path, line: str, text: str) -> None:
    with spool.create(path, defaults=AT_ONCE) as space:
        space.create_queue("q")
    file = path / "space.toml"
    file.write_text(f"{file.read_text()}\n{line}\n")
    with pytest.raises(spool.InvalidArgument) as raised:
        spool.open(path)
    assert str(raised.value).startswith(f"{file}: queue q: ")
    assert text in str(raised.value)


def test_e11_a_commit_is_visible_all_at_once(space: spool.Space, again: Reopen) -> None:
    space.create_queue("a")
    space.create_queue("b")
    other = again()
    with space.transaction() as tx:
        for n in range(3):
            tx.put("a", n)
            tx.put("b", n)
            assert seen(other, "a") == seen(other, "b") == []
    assert seen(other, "a") == seen(other, "b") == [0, 1, 2]


def test_e13_order_is_by_commit_also_when_the_clock_steps(space: spool.Space, clock: MovedClock) -> None:
    space.create_queue("q")
    for n, later in enumerate((0, 100, -100, -100, 0)):
        clock.later = later
        space.put("q", n)
    assert drained(space, "q") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", ".", ".hidden", "a b", "a/b", "ümlaut", "x" * 128, "a\n", None, 7])
def test_e14_a_name_that_is_not_allowed_is_refused_with_the_rule(space: spool.Space, name: Any) -> None:
    with pytest.raises(spool.InvalidArgument, match="1 to 127 letters, digits"):
        space.create_queue(name)
    with pytest.raises(spool.SpoolError):
        space.put(name, b"")
    assert space.create_queue("-A.z_9" + "x" * 121).name


def test_e16_foreign_files_are_ignored_and_reported(path: Path) -> None:
    with spool.create(path, defaults=AT_ONCE) as space:
        space.create_queue("q")
        space.put("q", 1)
    for stage in ("active", "prepared", "committed"):
        (path / stage / "core.1234").write_text("mine")
    with spool.open(path) as space:
        assert drained(space, "q") == [1]
        named = {finding.name for finding in space.check()}
    assert named == {f"{stage}/core.1234" for stage in ("active", "prepared", "committed")}
    assert all((path / stage / "core.1234").exists() for stage in ("active", "prepared", "committed"))
