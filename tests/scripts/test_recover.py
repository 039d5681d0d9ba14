"""spool-recover: the scan, told in plain words."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from tests.scripts.conftest import Run, execute, flip, killed_python, newest, one_line, prepare, snapshot

HOLDING_A_MESSAGE = """
import sys, spool
space = spool.open(sys.argv[1])
space.put("orders", b"x")
space.transaction().get("orders")
"""

A_LARGE_BRANCH = """
import sys, spool
space = spool.open(sys.argv[1])
tx = space.transaction()
tx.put_many("orders", [bytes(1 << 20)] * 40)
"""


def _recover(run: Run, *options: str, code: int = 0) -> str:
    done = run(*options, program="spool-recover")
    assert (done.code, done.err) == (code, ""), done
    return done.text


def _json(run: Run, *options: str, code: int = 0) -> dict[str, Any]:
    done = run("--json", *options, program="spool-recover")
    assert done.code == code
    (found,) = done.objects
    return dict(found)


@pytest.fixture
def crashed(path: Path) -> Path:
    """A space with something of each kind that a crash leaves, and a stray file."""
    prepare(path, xa.Xid(7, b"g", b"b"))
    killed_python(HOLDING_A_MESSAGE, path)
    killed_python(A_LARGE_BRANCH, path)
    killed_python(HOLDING_A_MESSAGE, path)
    (path / "committed" / "notes.txt").write_text("hello")
    return path


def test_a_space_that_was_closed_well_has_nothing_to_tell(run: Run, path: Path) -> None:
    lines = _recover(run).splitlines()
    assert len(lines) == 2
    assert str(path) in lines[0]
    assert lines[1].startswith("Summary: nothing that recovery reads is damaged; bodies are not read here")


def test_the_summary_claims_no_more_than_was_read(run: Run, path: Path) -> None:
    """A body is read by check only: recovery says so, and not that nothing is lost."""
    with spool.open(path) as space:
        space.put("orders", b"body" * 10)
    damaged = newest(path)
    flip(damaged, damaged.read_bytes().index(b"bodybody"))
    told = _recover(run)
    assert "lost" not in told
    assert "spool-admin check reads them" in told.splitlines()[-1]
    assert run("check").code == 4


def test_recover_describes_dead_processes_and_transactions_in_doubt_in_words(run: Run, path: Path) -> None:
    prepare(path, xa.Xid(7, b"g", b"b"))
    killed_python(HOLDING_A_MESSAGE, path)
    told = _recover(run)
    assert "1 process died while it held messages; they are back in their queues:" in told
    assert "1 transaction waits for a decision:" in told
    assert "1 transaction is in doubt" in told.splitlines()[-1]
    assert run("message", "get", "orders").out == b"x"
    again = _recover(run)
    assert "died" not in again
    assert "1 transaction is in doubt" in again.splitlines()[-1]


def test_a_branch_that_was_cut_off_is_rolled_back(run: Run, path: Path) -> None:
    killed_python(A_LARGE_BRANCH, path)
    assert list((path / "active").iterdir())
    assert "1 transaction was cut off before it committed:" in _recover(run)
    assert not list((path / "active").iterdir())
    assert run("message", "get", "orders").code == 3


def test_a_commit_that_was_cut_off_before_it_was_visible_is_told(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"1")
        space.put("orders", b"2")
    last = newest(path)
    torn = last.with_name(f"{int(last.stem) + 1:016d}.msgpack")
    torn.write_bytes(last.read_bytes()[:50])
    done = run(program="spool-recover")
    assert done.code == 0
    assert "moved to quarantine" in one_line(done, torn.name)  # the engine's log says so as well
    told = done.text
    assert "1 file was only half written" in told
    assert torn.name in told
    assert [run("message", "get", "orders").out for _ in range(2)] == [b"1", b"2"]


def test_damage_is_told_clearly_and_is_exit_code_4(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"1")
        damaged = newest(path)
        space.put("orders", b"2")
    damaged.write_bytes(b"")
    for options in ([], ["--dry-run"]):
        told = _recover(run, *options, code=4)
        assert "1 file was durable and is not whole any more:" in told
        assert damaged.name in told
        assert "1 file is damaged" in told.splitlines()[-1]
        assert [f["kind"] for f in _json(run, *options, code=4)["findings"]] == ["damaged"]


def test_many_findings_of_a_kind_are_counted_and_not_all_listed(run: Run, path: Path) -> None:
    for i in range(1500):
        (path / "committed" / f"stray-{i}").touch()
    told = _recover(run)
    assert "1,500 files do not belong here:" in told
    assert "… and 1,480 more" in told
    assert len(told.splitlines()) < 40
    assert len(_json(run)["findings"]) == 1500


def test_json_is_the_report(run: Run, path: Path) -> None:
    prepare(path, xa.Xid(7, b"g", b"b"))
    found = _json(run)
    assert (found["path"], found["alone"], found["dry_run"]) == (str(path), True, False)
    assert found["in_doubt"] == [str(xa.Xid(7, b"g", b"b"))]
    assert found["findings"][0].keys() == {"kind", "name", "detail", "action", "reason", "position"}


def test_a_dry_run_changes_nothing_and_lists_the_findings_of_the_recovery_that_follows(run: Run, crashed: Path) -> None:
    before = snapshot(crashed)
    told = _recover(run, "--dry-run")
    planned = _json(run, "--dry-run")
    assert snapshot(crashed) == before
    assert "Nothing was changed. A recovery would do this:" in told
    assert told.splitlines()[-1].startswith("Dry run:")
    done = _json(run)
    key = lambda finding: (finding["kind"], finding["name"])  # noqa: E731
    assert sorted(planned["findings"], key=key) == sorted(done["findings"], key=key)
    assert (planned["in_doubt"], planned["alone"]) == (done["in_doubt"], done["alone"])


def test_a_dry_run_knows_the_space_without_its_run_directory(run: Run, path: Path) -> None:
    """``run/`` may be deleted while no process has the space open; a dry run does not create it again."""
    xid = xa.Xid(7, b"g", b"b")
    prepare(path, xid)
    with spool.open(path) as space:
        space.put("orders", b"1")
        damaged = newest(path)
        space.put("orders", b"2")
    flip(damaged, 20)
    shutil.rmtree(path / "run")
    found = _json(run, "--dry-run", code=4)
    assert [f["name"] for f in found["findings"] if f["kind"] == "damaged"] == [f"committed/{damaged.name}"]
    assert not (path / "run").exists()


def test_recover_names_the_other_open_processes_and_does_not_touch_their_work(path: Path) -> None:
    with spool.open(path) as space:
        space.put("orders", b"x")
        transaction = space.transaction()
        transaction.get("orders")
        (path / "active" / f"{xa.Xid(7, b'g', b'b')}.copy").touch()  # as a process that finishes a dead one's commit
        before = snapshot(path)
        dry = execute("spool-recover", "-s", path, "--dry-run")
        assert snapshot(path) == before
        for told in (dry, execute("spool-recover", "-s", path)):
            assert (told.code, told.err) == (0, "")
            assert "Other processes have it open (process " in told.text
            assert "nothing needs to be recovered now" in told.text
            assert "half" not in told.text
        transaction.commit()
        assert space.stats("orders").ready == 0
