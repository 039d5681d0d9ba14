"""The pages of quarantine: files by cause, and changes of one file, of chosen files, of a cause, and of all files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from spool.intake import Intake
from tests.console import sample
from tests.console.conftest import Served, serving
from xaspool_console.quarantine_pages import token_of

FOREIGN = os.fsdecode(b"\xff<b> of others")


@pytest.fixture
def refusing(bakery: spool.Space) -> Iterator[Served]:
    """A console whose space refused 51 files that are no msgpack and two that are too large, and found another."""
    sample.refuse(bakery, wrong=51, large=2)
    (Path(bakery.path) / "quarantine" / FOREIGN).write_bytes(b"left here")
    with serving(bakery, changes=True) as served:
        yield served


def names(space: spool.Space) -> list[str]:
    return sorted(each.name.rpartition("/")[2] for each in space.quarantined())


def test_files_are_listed_by_cause_with_the_next_step(refusing: Served) -> None:
    with refusing.logged_in() as (client, _):
        text = client.get("/quarantine").text
        assert text.count('<a class="row"') == 54
        for words in ("all (54)", "refused (51)", "too-large (2)", "unknown (1)", "54 files are in quarantine"):
            assert words in text
        assert "/space.toml, then restore the file" in text
        assert "dropped for queue orders" not in text, "the words that each reason begins with"
        assert "Restore all files…" in text
        text = client.get("/quarantine?cause=too-large").text
        assert text.count('<a class="row"') == 2
        assert "fix the problem in a copy" not in text
        assert '/quarantined/restore?cause=too-large"' in text
        assert '/quarantined/delete?cause=too-large"' in text
        text = client.get("/quarantine?cause=unknown").text
        assert text.count('<a class="row"') == 1
        assert "\\udcff&lt;b&gt; of others" in text
        assert "Restore" not in text, "a file that was not dropped cannot return"
        assert "No file in quarantine has this cause." in client.get("/quarantine?cause=x").text


def test_the_files_of_a_cause_return_together_and_become_messages(refusing: Served) -> None:
    space = refusing.space
    ready = space.stats("orders").ready
    for file in (Path(space.path) / "quarantine").glob("*.msgpack"):
        file.write_bytes(b"\x81\xa4body\xa3tea")
    with refusing.logged_in() as (client, csrf):
        text = client.get("/quarantined/restore?cause=refused").text
        assert "51 files with the cause refused can return to the folders of their queues." in text
        assert client.post("/quarantined/restore?cause=refused", data={"csrf": csrf}).status_code == 303
        assert "51 files with the cause refused went back" in client.get("/quarantine").text
    assert len(names(space)) == 3
    Intake(space).run(once=True)
    assert space.stats("orders").ready == ready + 51
    assert refusing.records[-1].endswith("51 files with the cause refused went back to the folders of their queues.")


def test_all_files_return_but_those_that_cannot(refusing: Served) -> None:
    with refusing.logged_in() as (client, csrf):
        text = client.get("/quarantined/restore").text
        assert "53 files can return to the folders of their queues. 1 file cannot, and remain" in text
        client.post("/quarantined/restore", data={"csrf": csrf})
        assert "53 files went back to the folders of their queues." in client.get("/quarantine").text
    assert names(refusing.space) == [FOREIGN]


def test_chosen_files_are_deleted_and_the_others_remain(refusing: Served) -> None:
    with refusing.logged_in() as (client, csrf):
        query = f"?chosen=1&file={token_of('active.wrong-07.msgpack')}&file={token_of(FOREIGN)}&file={token_of('gone')}"
        assert "This deletes 2 files for good." in client.get(f"/quarantined/delete{query}").text
        client.post(f"/quarantined/delete{query}", data={"csrf": csrf})
        assert "Deleted 2 files from quarantine." in client.get("/quarantine").text
        left = names(refusing.space)
        assert len(left) == 52
        assert not {"active.wrong-07.msgpack", FOREIGN} & set(left)
        for verb in ("restore", "delete"):
            answer = client.post(f"/quarantined/{verb}?chosen=1", data={"csrf": csrf})
            assert (answer.status_code, "No file is chosen" in answer.text) == (400, True)
            answer = client.post(f"/quarantined/{verb}?cause=x", data={"csrf": csrf})
            assert (answer.status_code, "has the cause" in answer.text) == (400, True)
        assert names(refusing.space) == left
        client.post("/quarantined/delete", data={"csrf": csrf})
        assert "Quarantine is empty." in client.get("/quarantine").text


def test_a_file_that_cannot_return_keeps_no_other_file_in_quarantine(refusing: Served) -> None:
    folder = Path(refusing.space.path) / "drop" / "orders"
    (folder / "wrong-07.msgpack").write_bytes(b"another of that name")
    with refusing.logged_in() as (client, csrf):
        client.post("/quarantined/restore?cause=refused", data={"csrf": csrf})
        text = client.get("/quarantine").text
    assert "50 files with the cause refused went back" in text
    assert "1 file failed, e.g.: drop/orders/wrong-07.msgpack waits to be taken" in text
    assert "active.wrong-07.msgpack" in names(refusing.space)
    assert (folder / "wrong-07.msgpack").read_bytes() == b"another of that name"


def test_a_console_that_only_reads_has_no_boxes_and_no_changes(refusing: Served) -> None:
    before = names(refusing.space)
    with serving(refusing.space) as served, served.client() as client:
        text = client.get("/quarantine").text
        assert text.count('<a class="row"') == 54
        for words in ("checkbox", "Restore", "Delete", "/quarantined/"):
            assert words not in text
        assert client.get("/quarantined/delete").status_code == 404
        assert client.post("/quarantined/delete", headers={"Origin": served.url}, data={"csrf": ""}).status_code == 403
    assert names(refusing.space) == before
