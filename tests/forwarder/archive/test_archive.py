"""An archive has each message that was put into its queue exactly once, whenever a run is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

import spool
from tests import door
from tests.clocks import MovedClock, timed
from tests.full import no_room
from tests.scripts.conftest import Result, execute, mounted, one_line
from tests.spaces import space_with

pytest.importorskip("pyarrow")

import pyarrow.dataset
from pyarrow import parquet

from forwarder.archive import AFTER_LOSS, Archive, ArchiveReport, files, record
from forwarder.archive import archive as one_run
from forwarder.archive.files import DatedFiles
from forwarder.archive.record import RecordFile
from forwarder.message_rows import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

space = space_with("orders", "others")
MONTH, NEVER = 30 * 86_400.0, 1_000_000


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(space: spool.Space, out: Path, queue: str = "orders", **options: Any) -> ArchiveReport:
    return Archive(space, queue, str(out), **{"subscription": f"archive-{queue}", "expiry": MONTH, **options}).run()


def rows(out: Path) -> list[dict[str, Any]]:
    """Return all rows of an archive, in the order of the puts."""
    found = pyarrow.dataset.dataset(str(out), format="parquet", partitioning="hive").to_table()
    return sorted(found.to_pylist(), key=lambda row: (row["number"], row["ordinal"]))


def bodies(out: Path) -> list[bytes]:
    return [row["body"] for row in rows(out)]


def consumed(space: spool.Space) -> None:
    """Take all messages, and reclaim all files that may be removed."""
    space.get_many("orders", 100_000)
    space.put("others", b"the newest commit stays")
    while door.reclaim(space):
        pass


# -- the messages -----------------------------------------------------------------------------------------------------


def test_each_message_that_was_put_is_archived_once_even_if_it_was_consumed(space: spool.Space, out: Path) -> None:
    space.put_many("orders", [b"0", b"1"])
    space.put("others", b"of another queue")
    assert run(space, out).messages == 2
    space.put("orders", b"2", headers={"tenant": "acme"}, priority=70)
    space.put("orders", b"3")
    consumed(space)
    report = run(space, out)
    assert (report.messages, report.bytes, len(report.files)) == (2, 2, 1)
    assert run(space, out).messages == 0
    assert bodies(out) == [b"0", b"1", b"2", b"3"]
    assert dict(rows(out)[2]["headers"]) == {"tenant": "acme"}
    (state,) = space.subscriptions().values()
    assert (state.unread, state.kept_bytes) == (0, 0), "the space keeps nothing that was archived"


def test_files_are_flushed_before_the_record_names_them_and_their_names_afterwards(
    space: spool.Space, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(space, out)
    flushed, flush = list[str](), record.flush
    for module in (files, record):
        monkeypatch.setattr(module, "flush", lambda path: (flushed.append(os.path.relpath(path, out)), flush(path)))
    space.put("orders", b"1")
    run(space, out)
    (_, file, *_), date = flushed, next(out.glob("date=*")).name
    assert file.endswith(".0.part")
    assert flushed == [".", file, ".", ".archive-orders.json.part", ".", date, "."]


def test_an_empty_queue_has_no_file_and_the_next_run_goes_on(space: spool.Space, out: Path) -> None:
    assert run(space, out) == ArchiveReport("orders", str(out), (), 0, 0, 1, 0)
    space.put("orders", b"1")
    consumed(space)
    run(space, out)
    assert bodies(out) == [b"1"]


def test_messages_that_a_compaction_or_a_transaction_moved_are_archived(space: spool.Space, out: Path) -> None:
    with space.transaction() as tx:
        for body in (b"a", b"b"):
            tx.put("orders", body)
        tx.put("others", b"c")
    space.move(next(space.browse("orders")).id, "others")
    run(space, out)
    space.put("orders", b"d")
    space.move(next(iter(space.browse("others"))).id, "orders")
    run(space, out)
    assert bodies(out) == [b"b", b"d"], "a message that was moved into the queue was not put into the queue"


def test_the_columns_are_those_of_spark() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_schema

    from forwarder.dataframes.columns import columns

    assert to_arrow_schema(columns(True), timezone="UTC").equals(arrow_schema())


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_an_archive_as_it_reads_the_queue(space: spool.Space, out: Path, spark: "SparkSession") -> None:
    import forwarder

    forwarder.register(spark)
    space.put_many("orders", [b"1", b"2"], headers={"tenant": "acme"}, delay=3600)
    space.put("orders", {"a": 1}, correlation_id="c")
    run(space, out)
    of_queue = spark.read.format("spool").option("queue", "orders").load(space.path)
    archived = spark.read.parquet(str(out)).drop("date")
    assert [field.simpleString() for field in archived.schema] == [field.simpleString() for field in of_queue.schema]
    assert sorted(map(str, archived.collect())) == sorted(map(str, of_queue.collect()))


# -- the files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def days(tmp_path: Path) -> Iterator[spool.Space]:
    """Messages of three days."""
    clock = MovedClock()
    with spool.create(timed(tmp_path / "days", clock)) as space:
        space.create_queue("orders")
        for day in range(3):
            clock.later = day * 86_400.0
            space.put_many("orders", [b"%d" % (100 * day + n) for n in range(100)])
        yield space


def test_each_day_of_puts_is_a_partition(days: spool.Space, out: Path) -> None:
    report = run(days, out)
    dates = [(datetime.now(UTC) + timedelta(days=day)).strftime("%Y-%m-%d") for day in range(3)]
    partitions = sorted(Path(file).parent.name for file in report.files)
    assert partitions == sorted(path.name for path in out.iterdir() if path.is_dir())
    assert partitions in ([f"date={date}" for date in dates], partitions), "(midnight may pass in the middle)"
    assert len(partitions) == 3
    assert bodies(out) == [b"%d" % n for n in range(300)]


def test_a_row_group_has_a_limit_of_messages(days: spool.Space, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_run, "_PLANNED_MESSAGES", 30)
    monkeypatch.setattr(one_run, "_COMMITS", 2)
    for n in range(50):
        days.put("orders", b"%d" % n)
    report = run(days, out, row_group=40)
    sizes = []
    for file in report.files:
        of = parquet.ParquetFile(out / file).metadata
        sizes += [of.row_group(group).num_rows for group in range(of.num_row_groups)]
    assert sum(sizes) == 350
    assert max(sizes) <= 40


def test_large_bodies_make_small_row_groups(space: spool.Space, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forwarder.archive.files._ROW_GROUP_BYTES", 500)
    for _ in range(10):
        space.put("orders", b"x" * 600)
    monkeypatch.setattr("spool.reading.message_reader._BATCH_ROWS", 1)
    (file,) = run(space, out).files
    assert parquet.ParquetFile(out / file).metadata.num_row_groups == 10


def test_moved_files_are_not_written_again(space: spool.Space, out: Path, tmp_path: Path) -> None:
    space.put("orders", b"1")
    (file,) = run(space, out).files
    (out / file).rename(tmp_path / "on another disk")
    assert run(space, out).messages == 0


# -- runs that end in the middle --------------------------------------------------------------------------------------


class Died(BaseException):
    """The process ends here; nothing of it runs any more."""


@pytest.mark.every(2)
@pytest.mark.parametrize(("kind", "earlier"), [(kind, runs) for kind in ("before", "after") for runs in (1, 0)])
def test_an_archive_that_dies_at_any_step_neither_loses_nor_doubles_a_message(
    kind: str, earlier: int, days: spool.Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [b"%d" % n for n in range(300)]
    step, died = 0, True
    while died:
        out = tmp_path / f"{kind}-{step}"
        for last_step in (*[NEVER] * earlier, step):
            died = dies_at(days, out, last_step, kind, monkeypatch)
            days.put("orders", b"later")
            wanted.append(b"later")
        run(days, out, subscription=out.name)
        assert bodies(out) == wanted, f"died {kind} step {step}"
        assert not list(out.rglob("*.part"))
        step += 1
    assert step > 12


def concerns(out: Path, file: Any) -> bool:
    """Return whether a path, or a descriptor, belongs to the archive and not to the space."""
    path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
    return str(path).startswith(str(out))


def dies_at(space: spool.Space, out: Path, step: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Begin an archive that dies before or after its n-th step. Return False if it got through."""
    left = [step]

    def dying(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if owner is os and not concerns(out, arguments[0]):
                return original(*arguments, **options)
            left[0] -= 1
            found = original(*arguments, **options) if kind == "after" or left[0] >= 0 else None
            if left[0] < 0:
                raise Died
            return found

        context.setattr(owner, name, call)

    with monkeypatch.context() as context:
        for owner, name in (
            (os, "rename"), (os, "fsync"), (os, "makedirs"), (parquet.ParquetWriter, "write_table"),
            (one_run.Subscriber, "begin"), (one_run.Subscriber, "read"), (RecordFile, "write"), (RecordFile, "finish"),
        ):  # fmt: skip
            dying(owner, name)
        context.setattr(DatedFiles, "__exit__", lambda *_: None)  # a killed process removes no file
        try:
            run(space, out, subscription=out.name)
        except Died:
            return True
    return False


@pytest.mark.every(4, first=3)
@pytest.mark.parametrize(("call", "at"), [("fsync", 1), ("fsync", 3), ("rename", 2), ("rename", 3)])
def test_a_killed_run_of_ten_thousand_messages_is_finished_by_the_next(
    call: str, at: int, space: spool.Space, out: Path
) -> None:
    for n in range(100):
        space.put_many("orders", [b"%d" % (100 * n + m) for m in range(100)])
    consumed_after = 5000
    space.get_many("orders", consumed_after)
    death = (
        f"import os, signal; n = [0]; call = os.{call}; os.{call} = lambda *args, **names: "
        f"(n.__setitem__(0, n[0] + 1), n[0] == {at} and os.kill(os.getpid(), signal.SIGKILL), call(*args, **names))[2]"
    )
    killed = execute("spool-admin", "-s", space.path, "archive", "orders", "--to", out, before=death)
    assert killed.code == -9, killed
    done = execute("spool-admin", "-s", space.path, "archive", "orders", "--to", out)
    assert done.code == 0, done
    assert bodies(out) == [b"%d" % n for n in range(consumed_after, 10_000)]


@pytest.mark.parametrize("where", ["pyarrow.parquet.ParquetWriter.write_table", "forwarder.archive.files.flush"])
def test_a_full_disk_archives_nothing_and_the_next_run_everything(
    where: str, space: spool.Space, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.put("orders", b"1")
    with monkeypatch.context() as context:
        context.setattr(where, lambda *_, **__: no_room())
        with pytest.raises(OSError, match="No space left"):
            run(space, out)
    assert not list(out.rglob("*.part"))
    run(space, out)
    assert bodies(out) == [b"1"]


@pytest.mark.root
def test_the_command_names_a_full_disk_in_one_line(space: spool.Space, tmp_path: Path) -> None:
    space.put_many("orders", [os.urandom(1000) for _ in range(1000)])
    with contextmanager(mounted)(tmp_path / "small", "100k") as small:
        done = execute("spool-admin", "-s", space.path, "archive", "orders", "--to", small / "out")
        one_line(done, "cannot be written", "No space left on device", "run the command again", code=1)
        assert not list(small.rglob("*.parquet"))


def test_two_runs_at_once_do_not_share_an_archive(space: spool.Space, out: Path) -> None:
    with RecordFile(str(out), "archive-orders").locked(), pytest.raises(spool.InvalidArgument, match="another run"):
        run(space, out)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_a_run_after_end_of_subscription_fails_until_the_user_accepts_the_loss(space: spool.Space, out: Path) -> None:
    space.put("orders", b"0")
    run(space, out)
    space.put("orders", b"lost")
    space.delete_subscription("archive-orders")
    consumed(space)
    space.put("orders", b"2")
    with pytest.raises(spool.InvalidArgument, match=f"has not kept all messages .*{AFTER_LOSS}"):
        run(space, out)
    assert run(space, out, after_loss=True).messages == 1
    space.put("orders", b"3")
    run(space, out)
    assert bodies(out) == [b"0", b"2", b"3"]


def test_another_directory_does_not_continue_an_archive(space: spool.Space, out: Path, tmp_path: Path) -> None:
    for count in range(3):
        space.put("orders", b"%d" % count)
        run(space, out)
        with pytest.raises(spool.InvalidArgument, match=f"belongs to the archive in {out}: .* another --subscription"):
            run(space, tmp_path / "mistyped", after_loss=count == 2)
    assert bodies(out) == [b"0", b"1", b"2"]
    space.put("orders", b"3")
    out.rename(tmp_path / "moved")
    assert run(space, tmp_path / "moved").messages == 1
    with pytest.raises(spool.InvalidArgument, match=f"the archive in {tmp_path}/moved: "):
        run(space, out)


def test_an_older_copy_of_an_archive_is_refused_in_the_words_of_archives(space: spool.Space, out: Path, tmp_path: Path):
    run(space, out)
    copytree(out, tmp_path / "older")
    space.put("orders", b"1")
    run(space, out)
    with pytest.raises(spool.InvalidArgument, match=f"one in the archive: .* by a run with a later record in {out}"):
        run(space, tmp_path / "older")


def test_the_archive_of_another_space_or_queue_is_refused(space: spool.Space, out: Path, tmp_path: Path) -> None:
    run(space, out)
    with pytest.raises(spool.InvalidArgument, match="another space or another queue"):
        run(space, out, "others", subscription="archive-orders")
    with spool.create(tmp_path / "second") as second:
        second.create_queue("orders")
        with pytest.raises(spool.InvalidArgument, match="another space or another queue"):
            run(second, out)


def test_two_archives_share_a_directory(space: spool.Space, out: Path) -> None:
    space.put("orders", b"1")
    space.put("others", b"2")
    run(space, out, "others", subscription="archive-orders-1")
    (part := out / ".archive-orders.1.1.0.part").touch()  # of a third archive, which runs now
    run(space, out)
    assert (bodies(out), part.exists()) == ([b"1", b"2"], True)


def test_after_a_loss_without_messages_the_next_runs_archive_each_message(space: spool.Space, out: Path) -> None:
    run(space, out)
    space.put("orders", b"lost")
    space.get("orders")
    space.delete_subscription("archive-orders")
    run(space, out, after_loss=True)
    space.put("orders", b"1")
    space.get("orders")
    run(space, out)
    assert bodies(out) == [b"1"]


def test_files_without_a_record_are_not_archived_again(space: spool.Space, out: Path) -> None:
    run(space, out)
    space.put("orders", b"1")
    run(space, out)
    (out / "_archive-orders.json").unlink()
    with pytest.raises(spool.InvalidArgument, match=r"restore .*_archive-orders.json from a backup"):
        run(space, out, after_loss=True)
    assert bodies(out) == [b"1"]
    next(out.glob("date=*/*")).unlink()
    with pytest.raises(spool.InvalidArgument, match=f"lost the record .*_archive-orders.json .*{AFTER_LOSS}"):
        run(space, out)


def test_a_damaged_record_is_an_error_with_its_name(space: spool.Space, out: Path) -> None:
    run(space, out)
    (out / "_archive-orders.json").write_text("{")
    with pytest.raises(spool.CorruptedFile, match="json is no record"):
        run(space, out)


# -- the command ------------------------------------------------------------------------------------------------------


def archive(space: spool.Space, *args: object, **options: Any) -> Result:
    return execute("spool-admin", "-s", space.path, "archive", *args, **options)


def test_the_command_prints_its_report(space: spool.Space, out: Path) -> None:
    space.put_many("orders", [b"1", b"22"])
    (report,) = archive(space, "orders", "--to", out, "--json").objects
    assert (report["messages"], report["bytes"], report["queue"]) == (2, 3, "orders")
    assert (out / report["files"][0]).exists()
    one_line(archive(space, "orders", "--to", out), "archived 0 messages of orders", code=0)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["orders", "--row-group", "0"], "row-group"), (["orders", "--keep-for", "367d"], "366d"),
        (["nothing"], "there is no queue 'nothing'"), (["orders", "--subscription", ""], "--subscription is empty"),
    ],
)  # fmt: skip
def test_a_command_refuses_other_values_in_one_line(args: list[str], said: str, space: spool.Space, out: Path) -> None:
    one_line(archive(space, *args, "--to", out), said)
    assert not out.exists()


@pytest.mark.parametrize("directory", ["file", "s3://bucket/orders", "shop/drop/orders", "other/out"])
def test_the_command_refuses_a_file_a_url_and_a_directory_of_the_space(
    directory: str, space: spool.Space, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    spool.create(tmp_path / "other").close()
    place = f"{space.path}/drop/orders" if "drop" in directory else str(tmp_path / directory)
    said = "an archive is a directory of this machine" if "s3" in directory else "directory"
    one_line(archive(space, "orders", "--to", directory if "s3" in directory else place), said)
    assert space.subscriptions() == {}
