"""The forwarder checks the workers of a cluster before it takes a message, and reports a worker that is not fit."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import spool
from forwarder import SparkUnavailable
from forwarder.network.space_directory import Place
from forwarder.round import Route
from forwarder.routes import workers
from forwarder.services import Service, parse
from forwarder.task import Chunk, TaskResult, run
from spool.disk.disk import Disk
from tests.forwarder.rounds import run_round
from tests.shown import bodies
from xaspool_scripts.forward import main

SEEN_FROM_THERE = """
import sys
from forwarder.network.space_directory import Place
from forwarder.routes.workers import look
from forwarder.services import parse
import spool
path, device, inode, boot, service = sys.argv[1:]
place = Place(path, (int(device), int(inode)), boot)
print(*look(place, spool.__version__, [parse(service)], None).defects, sep="\\n")
"""


def defects_behind(mount: list[str], space: spool.Space, service: str = "queue:next") -> str:
    """Return the defects that a worker reports in a separate mount namespace, where it sees other file systems than
    this process."""
    place = Place.of(space.path)
    assert place.identity is not None
    there = [sys.executable, "-c", SEEN_FROM_THERE, space.path, *map(str, place.identity), place.boot_id, service]
    command = ["unshare", "--mount", "sh", "-c", 'mount "$1" "$2" "$3" "$4" && shift 4 && exec "$@"', "sh", *mount]
    done = subprocess.run([*command, *there], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this takes a mount namespace: {done.stderr}")
    return done.stdout.strip()


def defects_here(space: spool.Space, *services: Service) -> tuple[str, ...]:
    return workers.look(Place.of(space.path), spool.__version__, services, None).defects


def another_boot(tmp_path: Path) -> list[str]:
    """Return the arguments of a mount that makes a process believe it is on another machine."""
    other = tmp_path / "boot_id"
    other.write_text("6f3d1c1e-0000-4000-8000-000000000001\n")
    return ["--bind", str(other), "/proc/sys/kernel/random/boot_id", "-v"]


def test_x05_a_worker_of_this_machine_that_sees_the_space_is_fit(space: spool.Space) -> None:
    assert defects_here(space, parse("queue:next")) == ()


def test_x05_a_worker_on_another_machine_is_told(space: spool.Space, tmp_path: Path) -> None:
    assert f"{space.path} is open on another machine" in defects_behind(another_boot(tmp_path), space)


@pytest.mark.slow
def test_x05_a_worker_that_does_not_see_the_space_is_told(space: spool.Space) -> None:
    assert f"another directory is at {space.path} there" in defects_behind(["-t", "tmpfs", "tmpfs", space.path], space)


def test_x05_a_worker_that_sees_another_space_at_the_path_is_told(space: spool.Space, tmp_path: Path) -> None:
    with spool.create(tmp_path / "other") as other:
        told = defects_behind(["--bind", other.path, space.path, "-v"], space)
    assert f"another directory is at {space.path} there" in told


def test_x05_a_worker_that_lacks_a_service_or_has_another_version_is_told(space: spool.Space) -> None:
    (text,) = defects_here(space, parse("python:not_on_workers:function"))
    assert "there is no Python module 'not_on_workers'" in text
    (text,) = workers.look(Place.of(space.path), "0.0.0", [], None).defects
    assert "and 0.0.0 here: install the same" in text


@pytest.mark.parametrize(
    ("what", "there", "said"),
    [
        ("spool.disk.disk.Disk.boot_id", lambda disk: "another", "is open on another machine"),
        ("spool.__version__", "0.0.0", f"xaspool is 0.0.0 there, and {spool.__version__} here: install the same"),
    ],
)
def test_x05_a_task_that_cannot_work_for_the_space_writes_nothing_and_no_message_is_to_blame(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch, what: str, there: Any, said: str
) -> None:
    """The task runs in a worker that joined later, on another machine or with another version of xaspool."""
    space.put("work", "kept")

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        task = partial(run, spool.__version__)
        with monkeypatch.context() as patch:
            patch.setattr(what, there)
            return list(task([chunks]))

    with pytest.raises(spool.SystemFailure, match=re.escape(said)):
        run_round(space, Route("work", parse("queue:next")), job, limit=10, tasks=1, timeout=0)
    assert list(Path(space.path, "prepared").iterdir()) == []
    (message,) = space.browse("work")
    assert (message.attempts, bodies(space, "next")) == (0, [])


def test_x05_a_task_with_another_version_does_not_look_at_its_work() -> None:
    """Another version may not have the classes of which the driver made it."""

    def unreadable() -> Iterator[list[Chunk]]:
        raise AttributeError("no such class here")
        yield []

    (block,) = run("0.0.0", unreadable())
    assert f"xaspool is {spool.__version__} there, and 0.0.0 here: install the same" in block.error


def test_x05_a_task_that_reads_elsewhere_is_refused(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task would open the space to look for a message; on a machine that sees no locks, the opening would recover
    the space."""
    pytest.importorskip("pyspark")
    from forwarder.dataframes.source import SpoolSource

    space.put("work", "there")
    source = SpoolSource({"path": space.path})
    reader = source.reader(source.schema())
    (partition,) = pickle.loads(pickle.dumps(reader.partitions()))
    assert [batch.num_rows for batch in reader.read(partition)] == [1]
    monkeypatch.setattr(Disk, "boot_id", lambda disk: "another")
    with pytest.raises(spool.UnsafeFileSystem, match="is open on another machine"):
        list(reader.read(partition))


def test_e05_a_service_that_a_worker_does_not_have_is_no_attempt_of_a_message(space: spool.Space) -> None:
    space.put("work", "kept")
    route = Route("work", parse("python:not_on_workers:function"))
    result = run_round(space, route, lambda one: list(run(spool.__version__, [one])), limit=10, tasks=1, timeout=0)
    assert "no Python module 'not_on_workers'" in result.down
    (message,) = space.browse("work")
    assert message.attempts == 0


def context(executors: int, stopped: bool = False) -> Any:
    """Return the parts of a SparkContext that describe its workers; the driver counts as one worker."""
    tracker = SimpleNamespace(getExecutorInfos=lambda: [None] * (executors + 1))
    java = SimpleNamespace(isStopped=lambda: stopped, statusTracker=lambda: tracker)
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), master="spark://there:7077", getConf=dict)


def test_x05_a_cluster_without_room_for_a_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WAIT_SECONDS", 0)
    workers.wait_for_workers(context(1), print)
    with pytest.raises(SparkUnavailable, match=r"no worker within 0 s: .* free core and 1g of memory"):
        workers.wait_for_workers(context(0), print)
    with pytest.raises(SparkUnavailable, match="look into the log of its master"):
        workers.wait_for_workers(context(1, stopped=True), print)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cores=8", "'cores=8' is no setting of Spark's: write e.g. spark.cores.max=8"),
        ("spark.cores.max", "is no setting of Spark's"),
        ("spark.master=yarn", "the master is --master"),
    ],
)
def test_x05_an_unknown_setting_of_spark_is_wrong_usage(text: str, told: str) -> None:
    done = CliRunner().invoke(main, ["--route", "work=queue:next", "--conf", text])
    assert (done.exit_code, told in done.output) == (2, True), done.output


def test_x05_settings_reach_spark(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def start(master: str, **options: Any) -> None:
        given.append((master, dict(options["conf"])))
        raise SparkUnavailable("none here")

    monkeypatch.setattr("forwarder.forwarder.start", start)
    words = ["-s", space.path, "--route", "work=queue:next", "--master", "spark://there:7077"]
    done = CliRunner().invoke(main, [*words, "--conf", "spark.cores.max=8", "--conf", "spark.a=b=c"])
    assert "none here" in done.output
    assert given == [("spark://there:7077", {"spark.cores.max": "8", "spark.a": "b=c"})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "10.9.9.9:0"], "tasks of a local master see the space: leave --listen out"),
        (["--no-spark", "--listen", "10.9.9.9:0"], "--no-spark starts no Spark: leave --listen out"),
        (["--insecure"], "without --listen, workers get no messages over the network: leave --insecure out"),
        (["--master", "spark://x:7077", "--listen", "x"], "'x' is not HOST:PORT, e.g. 127.0.0.1:8815"),
        (
            ["--master", "spark://x:7077", "--listen", "10.9.9.9:0"],
            "10.9.9.9 can be reached from other machines: give --tls-cert and --tls-key, or --insecure",
        ),
        (
            ["--master", "spark://x:7077", "--listen", "10.9.9.9:0", "--tls-cert", "a"],
            "--tls-cert and --tls-key belong together: give both",
        ),
        (
            ["--master", "spark://x:7077", "--listen", "0.0.0.0:0", "--insecure"],
            "workers cannot connect to 0.0.0.0: give the name or the address by which they reach this machine",
        ),
    ],
)
def test_x05_an_endpoint_that_cannot_work_is_refused_in_one_line(space: spool.Space, words: list[str], said: str):
    result = CliRunner().invoke(main, ["-s", space.path, "--route", "work=queue:next", *words])
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert len(result.stderr.splitlines()) == 1
