"""``spool-admin quarantine`` lists and deletes quarantined files, and restores them where that is possible."""

import os
from pathlib import Path

import msgpack
import pytest

import spool
from spool.intake import Intake
from tests.scripts.conftest import Run, flip, newest, one_line
from tests.scripts.test_completion import _complete
from tests.scripts.test_terminal import _on_a_terminal

BAD = b"\x81\xa4body"


def dropped(path: Path, name: str = "order.msgpack", data: bytes = BAD) -> None:
    """A file that was not accepted."""
    (path / "drop/orders" / name).write_bytes(data)
    with spool.open(path) as space:
        assert Intake(space).run(once=True).quarantined == 1


def test_a_dropped_file_is_listed_shown_mended_and_put_back(run: Run, path: Path) -> None:
    one_line(run("quarantine", "list"), "quarantine is empty")
    dropped(path)
    listed = run("quarantine", "list")
    assert "active.order.msgpack" in listed.text
    assert "ends within a message" in listed.text
    assert "fix the problem in a copy, mv the copy over the file, then restore the file" in listed.err
    shown = run("quarantine", "show", "active.order.msgpack").text
    assert "orders" in shown
    assert "81 a4 62 6f 64 79" in shown, "a piece of the content"
    (path / "quarantine/active.order.msgpack").write_bytes(msgpack.packb({"body": "mended"}))
    one_line(run("quarantine", "restore", "active.order.msgpack"), "put back as drop/orders/order.msgpack", code=0)
    assert list((path / "quarantine").iterdir()) == []
    with spool.open(path) as space:
        Intake(space).run(once=True)
        assert space.get("orders").body == "mended"


def test_as_json_each_is_one_object(run: Run, path: Path) -> None:
    dropped(path)
    (found,) = run("quarantine", "list", "--json").objects
    assert found == run("quarantine", "show", "quarantine/active.order.msgpack", "--json").objects[0]
    assert isinstance(found.pop("since"), float)
    reason, advice = found.pop("reason"), found.pop("advice")
    assert "dropped for queue orders" in reason
    assert "restore" in advice
    assert found == {
        "name": "active.order.msgpack", "size": 6, "kind": "refused", "queue": "orders", "is_damage": False,
        "can_be_restored": True, "beginning": "gaRib2R5", "beginning_encoding": "base64",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["n" * 247 + ".msgpack", "a: dropped for queue orders: b.msgpack", "\N{SNOWMAN}.msgpack", "x.1.msgpack",
     os.fsdecode(b"caf\xe9.msgpack")],
)  # fmt: skip
def test_a_restored_file_has_its_first_name_again(run: Run, path: Path, name: str) -> None:
    dropped(path, name)
    (entry,) = (each for each in os.listdir(path / "quarantine") if not each.endswith(".reason.txt"))
    assert run("quarantine", "restore", entry).code == 0
    assert os.listdir(path / "drop/orders") == [name]


def test_a_second_of_one_name_waits_for_the_first(run: Run, path: Path) -> None:
    dropped(path)
    dropped(path)
    assert run("quarantine", "restore", "active.order.msgpack.1").code == 0
    done = run("quarantine", "restore", "active.order.msgpack")
    one_line(done, "drop/orders/order.msgpack waits to be taken", "spool-intake", code=2)
    assert (path / "quarantine/active.order.msgpack").read_bytes() == BAD


def test_a_queue_that_is_gone_is_made_again_first(run: Run, path: Path) -> None:
    dropped(path)
    run("queue", "delete", "orders")
    done = run("quarantine", "restore", "active.order.msgpack")
    one_line(done, "orders, which was deleted: create it again first", code=1)


def test_a_damaged_file_cannot_be_restored_and_the_error_names_the_way_out(run: Run, path: Path) -> None:
    run("message", "put", "orders", "--body", "x")
    flip(newest(path), 70)
    run("check", "--repair")
    found = {file["name"]: file for file in run("quarantine", "list", "--json").objects}
    assert found
    for name, file in found.items():
        assert not file["can_be_restored"]
        done = run("quarantine", "restore", name)
        one_line(done, "cannot be put back", "its bytes are not proven", "docs/format.md", code=2)


def test_a_file_that_became_messages_is_not_restored(run: Run, path: Path) -> None:
    folder = "active/drop.orders.0123456789abcdef/.late.3.17"
    os.makedirs(path / folder)
    (path / folder / "slow").write_bytes(b"one and more")
    with spool.open(path) as space:
        Intake(space).run(once=True)
    (file,) = run("quarantine", "list", "--json").objects
    assert "they have its first 3 bytes, and the 9 bytes after those are only in this file" in file["reason"]
    assert (file["queue"], file["can_be_restored"]) == ("orders", False)
    one_line(run("quarantine", "restore", file["name"]), "put the missing content as a new message")


def test_a_file_is_deleted_with_its_reason(run: Run, path: Path) -> None:
    dropped(path)
    one_line(run("quarantine", "delete", "active.order.msgpack"), "deleted active.order.msgpack")
    assert list((path / "quarantine").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, True), ("y", 0, False)])
def test_a_terminal_is_asked_before_a_file_is_deleted(path: Path, answer: str, code: int, left: bool) -> None:
    dropped(path)
    words = ("-s", path, "quarantine", "delete", "active.order.msgpack")
    assert "delete active.order.msgpack (6 bytes) for good?" in _on_a_terminal(*words, typed=f"{answer}\n", code=code)
    assert (path / "quarantine/active.order.msgpack").exists() is left


def test_any_entry_in_quarantine_can_be_shown_and_deleted(run: Run, path: Path) -> None:
    (path / "quarantine/folder").mkdir()
    (path / "quarantine/link").symlink_to("/etc/passwd")
    (path / "quarantine/link.reason.txt").symlink_to("/etc/passwd")
    (path / os.fsdecode(b"quarantine/two\nlines\xe9")).write_bytes(b"")
    for name in ("folder", "link", r"two\nlines\udce9"):  # (list prints the last name with these escapes)
        assert b"root:" not in run("quarantine", "show", name).out
        assert run("quarantine", "delete", name).code == 0
    assert (Path("/etc/passwd").exists(), list((path / "quarantine").iterdir())) == (True, [])


@pytest.mark.parametrize("name", ["nope", "../space.toml", "", ".", "..", "active.order.msgpack.reason.txt"])
def test_a_name_that_is_not_in_quarantine_is_refused(run: Run, path: Path, name: str) -> None:
    dropped(path)
    for verb in ("show", "restore", "delete"):
        done = run("quarantine", verb, "--", name)
        one_line(done, "nothing in quarantine is called", "spool-admin quarantine list", code=1)


def test_names_are_completed_from_the_space(path: Path) -> None:
    dropped(path)
    assert _complete("spool-admin quarantine show a", SPOOL_SPACE=str(path)) == ["active.order.msgpack"]


def _drop_many(path: Path, large: int, wrong: int) -> None:
    (path / "space.toml").write_text("max_body_bytes = 1000\n" + (path / "space.toml").read_text())
    for number in range(large):
        (path / "drop/orders" / f"large-{number}.bin").write_bytes(bytes(2_000))
    for number in range(wrong):
        (path / "drop/orders" / f"wrong-{number}.msgpack").write_bytes(BAD)
    with spool.open(path) as space:
        assert Intake(space).run(once=True).quarantined == large + wrong


def test_x17_files_of_one_cause_come_back_together_once_the_cause_is_gone(run: Run, path: Path) -> None:
    _drop_many(path, 51, 2)
    listed = run("quarantine", "list")
    assert max(map(len, listed.text.splitlines())) <= 100
    assert f"too-large (51 files): raise max_body_bytes in {path}/space.toml, then restore" in listed.err
    assert "refused (2 files): fix the problem in a copy" in listed.err
    assert listed.err.count("all of them: spool-admin quarantine restore --cause too-large\n") == 1
    assert all(f"active.large-{number}.bin" in listed.text for number in range(51)), "each name is whole"
    text = (path / "space.toml").read_text()
    (path / "space.toml").write_text(text.replace("max_body_bytes = 1000\n", ""))
    one_line(run("quarantine", "restore", "--cause", "too-large"), "put back 51 files; spool-intake takes them")
    with spool.open(path) as space:
        assert Intake(space).run(once=True).files == 51
        assert space.stats("orders").ready == 51
        assert len(space.quarantined()) == 2


def test_x17_several_files_are_deleted_by_name_by_cause_or_all(run: Run, path: Path) -> None:
    _drop_many(path, 3, 4)
    one_line(run("quarantine", "delete", "active.large-0.bin", "active.wrong-0.msgpack"), "deleted 2 files")
    one_line(run("quarantine", "delete", "--cause", "refused", "--yes"), "deleted 3 files")
    done = run("quarantine", "delete", "--cause", "refused")
    one_line(done, "no file in quarantine has the cause 'refused': there is too-large", code=1)
    one_line(run("quarantine", "delete", "--all", "--yes"), "deleted 2 files")
    assert list((path / "quarantine").iterdir()) == []
    for wrong in ((), ("active.x", "--all"), ("--all", "--cause", "refused")):
        assert run("quarantine", "delete", *wrong).code == 2


def test_a_file_that_cannot_come_back_keeps_no_other_file_in_quarantine(run: Run, path: Path) -> None:
    _drop_many(path, 3, 0)
    (path / "drop/orders/large-1.bin").write_bytes(b"another of that name")
    done = run("quarantine", "restore", "--all")
    assert done.code == 1
    assert "put back 2 files" in done.err
    assert "large-1.bin waits to be taken" in done.err
    assert [name for name in os.listdir(path / "quarantine") if name.endswith(".bin")] == ["active.large-1.bin"]


def test_the_cause_of_a_queue_that_is_too_small_names_the_queue(run: Run, path: Path) -> None:
    run("queue", "change", "orders", "--max-bytes", "10")
    dropped(path, "large.bin", bytes(20))
    (found,) = run("quarantine", "list", "--json").objects
    assert (found["kind"], found["can_be_restored"]) == ("queue-limit", True)
    assert "spool-admin queue change orders" in found["advice"]
