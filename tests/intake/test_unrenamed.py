"""X22: files of programs that cannot rename: names to ignore, a time to settle, and markers."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from spool.intake.intake import Intake
from spool.model.settings import QUEUE_OPTIONS, QueueConfig
from spool.policies.dropped_states import MARK, TAKE, Action, Proof, Verdict, by_name, by_writer
from tests.clocks import MovedClock, timed
from tests.intake.test_intake import folder, intake_dies_at, running
from tests.spaces import space_with

space = space_with("orders", defaults={})


def bodies(space: spool.Space) -> list[bytes]:
    return sorted(message.body for message in space.browse("orders"))


@pytest.fixture
def timed_space(tmp_path: Path, clock: MovedClock) -> Iterator[spool.Space]:
    with spool.create(timed(tmp_path / "timed", clock)) as space:
        space.create_queue("orders", drop_settle=10)
        yield space


# -- names ------------------------------------------------------------------------------------------------------------

UNFINISHED = [
    "a.filepart", "a.crdownload", "a.partial", "a.uploading", "a.temp", "a.swp", "a.lock", "a~", "~$a.xlsx",
    "Thumbs.db", "desktop.ini", ".DS_Store", "a.tmp", "a.part", "A.TMP", "A.PART", "A.FilePart", "THUMBS.DB",
]  # fmt: skip


@pytest.mark.parametrize("name", UNFINISHED)
def test_x22_a_name_of_an_unfinished_file_is_never_taken_and_says_nothing(
    name: str, space: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    (folder(space) / name).write_bytes(b"half")
    (folder(space) / "whole").write_bytes(b"whole")
    counts = Intake(space).run(once=True)
    assert (counts.files, counts.left, counts.ignored) == (1, 0, 0 if name.startswith(".") else 1)
    assert bodies(space) == [b"whole"]
    assert (folder(space) / name).read_bytes() == b"half"
    assert not caplog.records, "an upload that goes on is no news"


@pytest.mark.parametrize("name", ["a.filepart", "A.PART"])
def test_a_file_that_is_ignored_for_an_hour_is_reported_once_with_its_pattern(
    name: str, timed_space: spool.Space, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    (folder(timed_space) / name).write_bytes(b"half")
    clock.later = 3601
    intake = Intake(timed_space)
    for _ in range(3):
        intake._begin_look()
        intake.take_all()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"drop/orders/{name}: ")
    assert ("matches *.filepart (drop_ignore)" in record.getMessage()) == (name == "a.filepart")
    assert (intake.counts.left, intake.counts.ignored) == (0, 1)


def test_the_patterns_of_a_queue_replace_the_default_and_keep_the_promise_of_tmp_and_part(space: spool.Space) -> None:
    space.change_queue("orders", drop_ignore=["*.[ab]"])
    for name in ("1.a", "2.B", "3.filepart", "4.tmp", "5.PART", ".6"):
        (folder(space) / name).write_bytes(name.encode())
    Intake(space).run(once=True)
    assert bodies(space) == [b"3.filepart"]
    space.change_queue("orders", drop_ignore=[])
    Intake(space).run(once=True)
    assert bodies(space) == [b"1.a", b"2.B", b"3.filepart"]
    assert space.change_queue("orders", drop_ignore=None).drop_ignore == QUEUE_OPTIONS["drop_ignore"].default


def test_the_space_sets_the_patterns_of_all_queues(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults={"drop_ignore": ["*.x"], "drop_marker": ".ok"}) as space:
        assert space.create_queue("q").drop_ignore == ("*.x",)
        assert space.create_queue("r", drop_marker=None).drop_marker is None
    with spool.open(tmp_path / "space") as space:
        assert (space.queues()["q"].drop_marker, space.queues()["r"].drop_marker) == (".ok", None)


@pytest.mark.parametrize(
    "options",
    [
        {"drop_ignore": ["a/b"]}, {"drop_ignore": [""]}, {"drop_ignore": ["*"] * 2}, {"drop_ignore": ["x" * 256]},
        {"drop_ignore": 3}, {"drop_ignore": [f"{n:0200}" for n in range(6)]}, {"drop_settle": -1},
        {"drop_marker": "ok"}, {"drop_marker": ".part"}, {"drop_marker": ".TMP"}, {"drop_marker": "./x"},
        {"drop_marker": 3},
    ],
    ids=str,
)  # fmt: skip
def test_other_values_are_refused(options: dict[str, object], space: spool.Space) -> None:
    with pytest.raises(spool.InvalidArgument, match=next(iter(options))):
        space.change_queue("orders", **options)


def test_a_file_that_was_captured_under_a_name_now_ignored_is_not_lost(space: spool.Space) -> None:
    taking = Path(space.path, "active", "drop.orders.0123456789abcdef")
    taking.mkdir()
    (taking / "A.PART").write_bytes(b"captured by an earlier version")
    Intake(space).run(once=True)
    assert bodies(space) == [b"captured by an earlier version"]


# -- the time to settle -----------------------------------------------------------------------------------------------


def test_x22_with_a_time_to_settle_each_file_waits_however_it_arrived(timed_space: spool.Space, clock: MovedClock):
    """A server that resumes an upload closes the file between its parts."""
    drop = folder(timed_space)
    (drop / "a.csv").write_bytes(b"half")
    (drop / ".b").write_bytes(b"b")
    (drop / ".b").rename(drop / "b")
    intake = Intake(timed_space)
    intake.take_all()
    assert (bodies(timed_space), intake.counts.left) == ([], 2)
    with (drop / "a.csv").open("ab") as file:
        file.write(b" and half")
    clock.later = 11
    intake._begin_look()
    intake.take_all()
    assert (bodies(timed_space), intake.counts.left) == ([b"b", b"half and half"], 0)


def test_a_settled_file_that_is_open_still_waits_for_its_writer(timed_space: spool.Space, clock: MovedClock) -> None:
    clock.later = 3600
    with (folder(timed_space) / "a").open("wb") as file:
        Intake(timed_space).run(once=True)
        assert bodies(timed_space) == []
        file.write(b"whole")
    Intake(timed_space).run(once=True)
    assert bodies(timed_space) == [b"whole"]


def test_a_captured_file_of_a_dead_intake_need_not_settle_again(space: spool.Space) -> None:
    space.change_queue("orders", drop_settle=3600)
    taking = Path(space.path, "active", "drop.orders.0123456789abcdef")
    taking.mkdir()
    (taking / "a").write_bytes(b"a")
    Intake(space).run(once=True)
    assert bodies(space) == [b"a"]


@pytest.mark.parametrize(
    ("writer", "declared", "settled", "found"),
    [
        (True, True, True, None),
        (False, False, False, Proof.NO_WRITER),
        (None, True, False, Proof.DECLARED),
        (None, False, True, Proof.UNCHANGED),
        (None, False, False, None),
    ],
)
def test_the_evidence_decides(writer: bool | None, declared: bool, settled: bool, found: Proof | None) -> None:
    assert by_writer(writer, 1234, 60.0, declared=declared, settled=settled).proof == found


# -- markers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def marked(space: spool.Space) -> spool.Space:
    space.change_queue("orders", drop_marker=".ok")
    return space


def test_x22_a_file_is_taken_when_its_marker_exists_and_both_are_removed(marked: spool.Space) -> None:
    drop = folder(marked)
    (drop / "a.csv").write_bytes(b"a")
    (drop / "lonely.ok").touch()
    intake = Intake(marked)
    intake.take_all()
    assert (bodies(marked), intake.counts.left) == ([], 2)
    (drop / "a.csv.ok").touch()
    intake._begin_look()
    intake.take_all()
    assert bodies(marked) == [b"a"]
    assert os.listdir(drop) == ["lonely.ok"], "a marker without its file waits"
    (drop / "lonely").write_bytes(b"b")
    assert Intake(marked).run(once=True).files == 1, "the marker is no message"
    assert os.listdir(drop) == []


def test_the_log_names_what_a_file_waits_for(marked: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    (folder(marked) / "a").touch()
    (folder(marked) / "b.ok").touch()
    Intake(marked).run(once=True)
    assert {record.getMessage() for record in caplog.records} == {
        "drop/orders/a: it waits for its marker, a.ok", "drop/orders/b.ok: it is a marker, and waits for b",
    }  # fmt: skip


def test_an_arriving_marker_wakes_a_running_intake(marked: spool.Space) -> None:
    with running(marked):
        for turn in range(2):
            (folder(marked) / "a").write_bytes(b"%d" % turn)
            (folder(marked) / "a.ok").touch()
            assert marked.get("orders", timeout=30).body == b"%d" % turn, "the same names again are new files"


def test_a_marked_file_goes_only_once_wherever_the_intake_dies(tmp_path: Path) -> None:
    step, deaths = 0, 0
    while True:
        path = tmp_path / f"space-{step}"
        with spool.create(path) as space:
            space.create_queue("orders", drop_marker=".ok")
            for name in ("a", "b"):
                (folder(space) / name).write_bytes(name.encode())
                (folder(space) / f"{name}.ok").touch()
            (folder(space) / "unmarked").write_bytes(b"unmarked")
        died = intake_dies_at(path, step)
        deaths += died
        with spool.open(path) as space:
            Intake(space).run(once=True)
            assert bodies(space) == [b"a", b"b"], f"died before change {step}"
            assert os.listdir(folder(space)) == ["unmarked"], "no marker remains for the next file of this name"
            assert os.listdir(path / "active") == []
            assert space.quarantined() == []
            (folder(space) / "a").write_bytes(b"half of the next a")
            assert Intake(space).run(once=True).files == 0, "the next file needs its own marker"
        if not died:
            break
        step += 1
    assert deaths > 12


def test_a_captured_marker_does_not_count_for_a_file_that_changed_since(marked: spool.Space) -> None:
    """The intake died between the captures of marker and file, and the program writes the file again."""
    taking = Path(marked.path, "active", "drop.orders.0123456789abcdef")
    taking.mkdir()
    (taking / "a.ok").touch()
    os.utime(taking / "a.ok", (1e9, 1e9))
    (folder(marked) / "a").write_bytes(b"half")
    assert Intake(marked).run(once=True).files == 0
    assert not taking.exists()
    (folder(marked) / "a.ok").touch()
    assert Intake(marked).run(once=True).files == 1


def test_a_false_marker_is_reported_and_left_alone(marked: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    (folder(marked) / "a").write_bytes(b"a")
    (folder(marked) / "a.ok").mkdir()
    assert Intake(marked).run(once=True).files == 0
    assert "drop/orders/a.ok: it is no regular file" in caplog.text
    assert sorted(os.listdir(folder(marked))) == ["a", "a.ok"]


def test_a_refused_file_comes_back_with_its_marker(marked: spool.Space) -> None:
    (folder(marked) / "bad.json").write_bytes(b"{")
    (folder(marked) / "bad.json.ok").touch()
    assert Intake(marked).run(once=True).quarantined == 1
    assert os.listdir(folder(marked)) == []
    Path(marked.path, "quarantine", "active.bad.json").write_bytes(b"{}")
    marked.restore_quarantined("active.bad.json")
    assert Intake(marked).run(once=True).files == 1


@pytest.mark.parametrize("captured", [False, True])
def test_an_export_has_a_marked_file_with_its_marker(captured: bool, marked: spool.Space, tmp_path: Path) -> None:
    (folder(marked) / "a").write_bytes(b"a")
    (folder(marked) / "b").write_bytes(b"b")
    marker = folder(marked) / "a.ok"
    if captured:
        marker = Path(marked.path, "active", "drop.orders.0123456789abcdef", "a.ok")
        marker.parent.mkdir()
    marker.touch()
    exported = io.BytesIO()
    marked.export(exported)
    exported.seek(0)
    with spool.import_space(tmp_path / "copy", exported) as copy:
        Intake(copy).run(once=True)
        assert bodies(copy) == [b"a"]


def test_a_thousand_marked_files_are_taken_in_order(marked: spool.Space) -> None:
    for n in range(1000):
        (folder(marked) / f"{n:04}").write_bytes(b"%04d" % n)
        (folder(marked) / f"{n:04}.ok").touch()
    assert Intake(marked).run(once=True).files == 1000
    assert [message.body for message in marked.browse("orders")] == [b"%04d" % n for n in range(1000)]
    assert os.listdir(folder(marked)) == []


def test_a_file_and_its_marker_wait_for_room_in_the_folder(marked: spool.Space) -> None:
    marked.change_queue("orders", max_messages=0)
    (folder(marked) / "a").write_bytes(b"a")
    (folder(marked) / "a.ok").touch()
    assert Intake(marked).run(once=True).left == 1
    marked.change_queue("orders", max_messages=None)
    assert Intake(marked).run(once=True).files == 1
    assert os.listdir(folder(marked)) == []


def test_the_name_decides() -> None:
    queue = QueueConfig("q", drop_marker=".ok")
    names = ["a", "a.ok", "b", "c.ok"]
    assert by_name("a", names, queue) == TAKE
    assert by_name("a.ok", names, queue) == MARK
    assert by_name("b", names, queue).step is Action.LEAVE
    assert by_name("c.ok", names, queue).step is Action.LEAVE
    assert by_name("x.lock", names, queue) == Verdict(Action.IGNORE, "its name matches *.lock (drop_ignore)")
    assert by_name("x.lock.ok", ["x.lock"], queue) == MARK, "a marker is never a message"


def test_two_intakes_share_marked_files(marked: spool.Space) -> None:
    with spool.open(marked.path) as other:
        for n in range(40):
            (folder(marked) / f"{n:02}").write_bytes(b"%02d" % n)
            (folder(marked) / f"{n:02}.ok").touch()
        both = [threading.Thread(target=Intake(each).run, args=(True,)) for each in (marked, other)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    Intake(marked).run(once=True)
    assert bodies(marked) == [b"%02d" % n for n in range(40)]
    assert os.listdir(folder(marked)) == []
