"""Programs end beside two processes that commit all the while as they end alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
import xa
from tests.beside.company import two_that_commit
from tests.conftest import in_memory
from tests.shown import bodies


@pytest.fixture(scope="module")
def busy() -> Iterator[Path]:
    """A space in which two processes commit all the while."""
    with in_memory() as directory:
        with spool.create(directory / "space", defaults={"retry_delay": 0.0}) as space:
            for queue in ("replies", "errors"):
                space.create_queue(queue)
            space.create_queue("orders", reply_queue="replies", error_queue="errors", retries=1)
        with two_that_commit(directory):
            yield directory / "space"


@pytest.fixture
def path(busy: Path) -> Path:
    """The same space without the messages of an earlier test."""
    with spool.open(busy) as space:
        for queue in ("orders", "replies", "errors"):
            space.purge(queue)
    return busy


def program(name: str, path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    code = f"import sys, xaspool_scripts.start; sys.argv[0] = 'spool-{name}'; xaspool_scripts.start.{name}()"
    command = [sys.executable, "-c", code, "-s", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)


def test_the_intake_takes_each_dropped_file_once(path: Path) -> None:
    for n in range(15):
        (path / "drop" / "orders" / f"{n:02}.txt").write_text(str(n))
    for _ in range(2):
        done = program("intake", path, "--once")
        assert done.returncode == 0, done.stderr
    with spool.open(path) as space:
        assert sorted(bodies(space)) == sorted(map(str, range(15)))


def test_an_intake_that_watches_takes_file_after_file(path: Path) -> None:
    """The intake commits each file while others post."""
    command = [sys.executable, "-c", "import xaspool_scripts.start; xaspool_scripts.start.intake()", "-s", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as intake, spool.open(path) as space:
        try:
            for n in range(20):
                (path / "drop" / "orders" / f".{n}").write_text(str(n))
                (path / "drop" / "orders" / f".{n}").rename(path / "drop" / "orders" / f"{n}.txt")
            got = sorted(int(space.get("orders", timeout=60).body) for _ in range(20))
        finally:
            intake.terminate()
            _, err = intake.communicate(timeout=60)
    assert got == list(range(20))
    assert "Traceback" not in err


@pytest.mark.every(4)
@pytest.mark.parametrize("ends", ["commit", "one phase", "rollback", "two managers"])
def test_each_branch_ends_as_it_is_decided(path: Path, ends: str) -> None:
    with spool.open(path) as space, spool.open(path) as other:
        manager, decider = xa.ResourceManager(space), xa.ResourceManager(other if ends == "two managers" else space)
        for n in range(20):
            xid = xa.Xid(7, b"branch %d" % n, b"")
            space.put("orders", n)
            manager.start(xid, xa.TMNOFLAGS)
            space.get("orders")
            space.put("replies", n)
            manager.end(xid, xa.TMSUCCESS)
            if ends == "one phase":
                manager.commit(xid, xa.TMONEPHASE)
                continue
            assert manager.prepare(xid) == xa.XA_OK
            if ends == "rollback":
                decider.rollback(xid)
                assert space.get("orders").body == n
            else:
                decider.commit(xid)
        assert bodies(space, "replies") == ([] if ends == "rollback" else [*range(20)])
        assert bodies(space) == []
        assert manager.recover(xa.TMSTARTRSCAN | xa.TMENDRSCAN) == []


def test_the_forwarder_answers_each_message_once(path: Path) -> None:
    (path.parent / "services.py").write_text(
        "import spool\n"
        "def answer(message):\n"
        "    if message.body == 13: raise spool.Reject('unlucky')\n"
        "    return str(message.body)\n"
    )
    with spool.open(path) as space:
        space.put_many("orders", range(30))
        done = program("forward", path, "--route", "orders=python:services:answer", "--once", "--no-spark")
        assert done.returncode == 6, done.stderr
        assert sorted(bodies(space, "replies"), key=int) == [str(n) for n in range(30) if n != 13]
        assert bodies(space, "errors") == [13]


def test_a_worker_answers_each_message_once(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", range(30))
        space.work("orders", lambda message: str(message.body), threads=3, once=True)
        assert sorted(bodies(space, "replies"), key=int) == [*map(str, range(30))]
