"""X13: the figures of a space, and their copy for users with read access only."""

import grp
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgpack
import pytest

import spool
import xa
from spool.disk import Disk
from spool.intake.intake import Intake
from spool.model import layout
from spool.store import run_files
from spool.watch.last_recovery import record_recovery
from spool.watch.published import Publisher, read_metrics
from tests import door
from tests.spaces import space_with
from tests.users import DROPPER, GROUP, OWNER, acting_as, directory_of, in_a_process_of

space = space_with("errors", defaults={}, orders={"error_queue": "errors"})


def test_x13_the_figures_are_those_of_stats(space: spool.Space) -> None:
    for number in range(5):
        space.put("orders", number)
    space.get("orders")
    metrics = space.metrics()
    assert {name: figures.ready for name, figures in metrics.queues.items()} == {"errors": 0, "orders": 4}
    assert (metrics.queues["orders"].enqueued, metrics.queues["orders"].dequeued) == (5, 1)
    assert metrics.references["orders"].error_queue == "errors"
    assert metrics.commits == 6
    assert metrics.folders["committed"].files >= 1
    assert metrics.free_bytes > 0
    assert not metrics.is_stopped
    assert any(f"process {os.getpid()}" in process for process in metrics.processes)


def test_x13_open_transactions_and_branches_in_doubt_have_their_messages(space: spool.Space) -> None:
    for number in range(5):
        space.put("orders", number)
    rm, xid = xa.ResourceManager(space), xa.Xid(1, b"transfer", b"")
    with rm.branch(xid):
        space.get("orders")
        space.put("errors", "moved")
    rm.prepare(xid)
    with space.transaction():
        space.get("orders")
        space.get("orders")
        doubt, claim = space.metrics().transactions
    assert (doubt.state, doubt.xid, doubt.takes, doubt.puts) == ("in doubt", str(xid), {"orders": 1}, {"errors": 1})
    assert (claim.state, claim.takes, claim.puts) == ("claimed", {"orders": 2}, {})
    assert claim.pid == doubt.pid == os.getpid()
    assert (space.metrics().in_doubt, len(space.metrics().transactions)) == (1, 1)
    rm.decide_heuristically(xid, commit=True)
    assert (space.metrics().in_doubt, space.metrics().decisions) == (0, {str(xid): "committed"})


def test_x13_a_stopped_space_still_has_figures(space: spool.Space) -> None:
    space.put("orders", 1)
    space.stats()  # applies the commit
    door.store(space).shared.counters.stop()
    metrics = space.metrics()
    assert metrics.is_stopped
    assert metrics.queues["orders"].ready == 1


def test_x13_the_findings_of_the_last_recovery_remain(space: spool.Space) -> None:
    space.put("orders", 1)
    path = Path(space.path)
    space.close()
    (path / "active" / "stray").write_bytes(b"no message")
    with spool.open(path) as opened:
        found = [str(finding) for finding in opened.recovery.findings]
        assert found
    with spool.open(path) as again:
        record = again.metrics().recovery
        assert [str(finding) for finding in record.findings] == found


@pytest.mark.parametrize("data", [b"", b"abcd", b"\0" * 100, os.urandom(200)])
def test_x13_a_damaged_record_of_a_recovery_counts_as_none(space: spool.Space, data: bytes) -> None:
    Path(space.path, layout.RECOVERY).write_bytes(data)
    assert space.metrics().recovery is None


# -- for users who may only look --------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Iterator[spool.Space]:
    with spool.create(tmp_path / "published", monitor_group=grp.getgrgid(os.getegid()).gr_name) as space:
        space.create_queue("orders")
        yield space


def publish(space: spool.Space) -> None:
    Publisher(door.store(space))()


def test_x13_the_copy_has_all_figures(published: spool.Space) -> None:
    space = published
    space.put("orders", 1)
    rm, xid = xa.ResourceManager(space), xa.Xid(1, b"transfer", b"")
    with rm.branch(xid):
        space.get("orders")
    rm.prepare(xid)
    space.engine.meters.change("route_down", "orders", "http://example", by=1)
    Path(space.path, "drop", "orders", "bad.msgpack").write_bytes(b"bad")
    record_recovery(Disk(space.path), spool.RecoveryReport(alone=True, findings=space._check(door.store(space))), 1.0)
    publish(space)
    copy, now = read_metrics(space.path), space.metrics()
    for name in ("queues", "roles", "references", "transactions", "decisions", "states", "counts", "folders"):
        assert (
            repr(getattr(copy, name)).partition("oldest_age")[0] == repr(getattr(now, name)).partition("oldest_age")[0]
        )
    assert copy.states == {("route_down", "orders", "http://example"): 1}


def test_x13_the_copy_is_for_the_group_and_has_no_message(published: spool.Space) -> None:
    published.put("orders", "secret-body", headers={"secret-header": "value"}, correlation_id="secret-correlation")
    publish(published)
    path = Path(published.path, layout.STATUS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_gid == os.getegid()
    assert b"secret" not in path.read_bytes()
    assert [str(finding) for finding in published.check() if finding.kind == "exposed"] == []


def test_x13_an_open_process_publishes_by_itself(published: spool.Space) -> None:
    door.steps(published)
    assert read_metrics(published.path).queues.keys() == {"orders"}


def test_x13_without_the_option_the_copy_is_removed(published: spool.Space) -> None:
    publish(published)
    settings = Path(published.path, "space.toml")
    settings.write_text("".join(line for line in settings.read_text().splitlines(True) if "monitor_group" not in line))
    door.steps(published)
    door.steps(published)
    with pytest.raises(spool.NotASpace, match="set monitor_group"):
        read_metrics(published.path)
    assert stat.S_IMODE(Path(published.path, "run").stat().st_mode) == 0o700


def test_x13_a_group_that_does_not_exist_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with spool.create(tmp_path / "space", monitor_group="no-such-group") as space:
        publisher = Publisher(door.store(space))
        with caplog.at_level(logging.WARNING, "spool"):
            publisher()
            publisher()
        space.create_queue("orders")
        space.put("orders", 1)
    expected = [" are not published: there is no group 'no-such-group' on this machine"]
    assert [record.getMessage().partition(": the metrics")[2] for record in caplog.records] == expected


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"", spool.CorruptedFile), (b"abcdefgh", spool.CorruptedFile), (os.urandom(500), spool.CorruptedFile)],
)
def test_x13_a_damaged_copy_is_one_clear_error(published: spool.Space, data: bytes, error: type[spool.SpoolError]):
    Path(published.path, layout.STATUS).write_bytes(data)
    with pytest.raises(error, match="is damaged"):
        read_metrics(published.path)


def test_x13_a_copy_of_another_version_is_refused(published: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "_VERSION", 2)
    publish(published)
    monkeypatch.undo()
    with pytest.raises(spool.NewerFormat, match="another version"):
        read_metrics(published.path)


def test_x13_a_directory_without_a_copy_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(spool.NotASpace, match="monitor_group"):
        read_metrics(".")


@pytest.mark.root
def test_x13_a_member_of_the_group_reads_the_figures_and_nothing_else() -> None:
    """The member is DROPPER, whose only group is GROUP; another user with no group reads nothing."""
    with directory_of(OWNER) as directory:
        with acting_as(OWNER), spool.create(directory / "space", monitor_group=grp.getgrgid(GROUP).gr_name) as space:
            space.create_queue("orders")
            space.put("orders", "secret")
            publish(space)
            path = Path(space.path)

        def look() -> None:
            assert read_metrics(path).queues["orders"].ready == 1
            for name in ("space.toml", "run/counters"):
                with pytest.raises(PermissionError):
                    (path / name).read_bytes()
            for name in ("", "committed", "run"):
                with pytest.raises(PermissionError):
                    os.listdir(path / name)
            with pytest.raises((spool.SpoolError, OSError)):
                spool.open(path)

        in_a_process_of(DROPPER, look)
        os.chown(path / layout.STATUS, OWNER, 0)

        def look_in_vain() -> None:
            with pytest.raises(spool.DiskFailure, match="monitor_group"):
                read_metrics(path)

        in_a_process_of(DROPPER, look_in_vain)


# -- names and reasons that others chose ------------------------------------------------------------------------------

NOT_UTF_8 = b"bad\xffname"


def test_x13_a_stray_file_with_any_name_does_not_prevent_the_opening(space: spool.Space) -> None:
    path = Path(space.path)
    space.close()
    (path / "active" / os.fsdecode(NOT_UTF_8)).write_bytes(b"x")
    with spool.open(path) as again:
        record = again.metrics().recovery
        assert [os.fsencode(finding.name) for finding in record.findings] == [b"active/" + NOT_UTF_8]


def test_x13_a_dropped_file_with_any_name_does_not_end_the_publication(published: spool.Space) -> None:
    space = published
    Path(space.path, "drop", "orders", f"{os.fsdecode(NOT_UTF_8)}.msgpack").write_bytes(b"bad")
    Intake(space).run(once=True)
    door.steps(space)
    copy = read_metrics(space.path)
    assert (copy.quarantined, copy.quarantine) == (1, ())


def test_x13_the_copy_has_no_reason_and_no_name_of_a_file(published: spool.Space) -> None:
    """A reason may quote the message that a file was dropped with."""
    space = published
    secret = msgpack.packb({"body": "b", "headers": {"a": ["SECRET"]}})
    Path(space.path, "drop", "orders", "SECRET.msgpack").write_bytes(secret)
    Intake(space).run(once=True)
    assert "SECRET" in str(space.quarantined())
    report = spool.RecoveryReport(alone=True, findings=space.quarantined())
    record_recovery(Disk(space.path), report, 1.0)
    publish(space)
    assert b"SECRET" not in Path(space.path, layout.STATUS).read_bytes()
    record = read_metrics(space.path).recovery
    assert [finding.kind for finding in record.findings] == ["quarantined"]


def test_x13_no_failure_of_the_publication_ends_the_housekeeping(
    published: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch("spool.watch.published.space_metrics", side_effect=ZeroDivisionError("a bug")):
        door.steps(published)
    assert "the metrics are not published: a bug" in caplog.text


def test_x13_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(spool.NotASpace, match="is not a directory"):
        read_metrics(tmp_path / "nowhere")
