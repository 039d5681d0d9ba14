"""A real Spark session: its settings, its workers' imports, its silence, and the ends of its processes."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forwarder import java, session
from forwarder.cores import cores
from forwarder.services import Request, parse
from spool.model.message import Message
from spool.model.position import Position
from tests.forwarder.conftest import MASTER
from tests.forwarder.processes import ends, kinds, processes

pyspark = pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLES = {name: os.environ.get(name) for name in session.environment("local", "", {})}
"""As they were before any session."""


@pytest.mark.spark
class TestSession:
    def test_its_settings_are_in_force(self, spark: "SparkSession") -> None:
        conf = spark.sparkContext.getConf()
        directory = conf.get("spark.local.dir") or ""
        expected = session.settings(MASTER, directory)
        del expected["spark.executorEnv.PYTHONPATH"]  # PySpark has put a directory of its own into sys.path since
        # The first query makes a URL of this path.
        assert (conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:") == expected.pop(
            "spark.sql.warehouse.dir"
        )
        assert {name: conf.get(name) for name in expected} == expected
        assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
        assert spark.sparkContext.uiWebUrl is None
        assert os.stat(directory).st_mode & 0o777 == 0o700

    def test_the_process_is_left_as_it_was(self, spark: "SparkSession", place: Path) -> None:
        assert {name: os.environ.get(name) for name in VARIABLES} == VARIABLES
        spark.range(1).collect()
        assert [path.name for path in place.iterdir() if path.name != "__pycache__"] == ["xaspool_here.py"]

    def test_a_function_from_the_current_directory_runs_in_a_worker(
        self, spark: "SparkSession", place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(place)
        service = parse("python:xaspool_here:tell")
        heard: list[str] = []
        said = threading.Event()

        class Ear:
            def write(self, text: str) -> None:
                heard.append(text)
                said.set()

        def deliver(bodies: Iterator[str]) -> Iterator[Any]:
            from spool.model.codecs import decode

            caller = service.open()
            for body in bodies:
                outcome: Any = caller(Request(Message("1", "orders", body, 0.0, Position(1, 0), {}), b""))
                yield decode(outcome.body, outcome.codec)

        monkeypatch.setattr(sys, "stderr", Ear())
        (answer,) = spark.sparkContext.parallelize(["hello"], 1).mapPartitions(deliver).collect()
        assert said.wait(30)
        assert answer["body"] == "hello"
        assert answer["pid"] != os.getpid()
        assert answer["python"] == sys.executable
        assert heard == ["a word from the worker\n"]

    def test_workers_stay_from_job_to_job(self, spark: "SparkSession") -> None:
        numbers = spark.sparkContext.parallelize(range(2), 2)
        jobs = [set(numbers.map(lambda _: os.getpid()).collect()) for _ in range(4)]
        workers = set(kinds(os.getpid())["worker"])
        assert all(pids <= workers for pids in jobs), "no worker ends after its job"

    def test_java_and_the_workers_get_no_signal_of_the_driver_s_group(self, spark: "SparkSession") -> None:
        of_driver = kinds(os.getpid())
        assert of_driver["java"]
        assert of_driver["worker"]
        pids = [pid for kind in ("java", "daemon", "worker") for pid in of_driver[kind]]
        assert os.getpgrp() not in map(os.getpgid, pids)

    def test_a_process_has_one_spark(self, spark: "SparkSession") -> None:
        with pytest.raises(session.SparkUnavailable, match="already"):
            session.start()

    def test_stopping_leaves_nothing(self, spark: "SparkSession") -> None:
        # The last: it stops the session of all tests.
        directory = Path(spark.sparkContext.getConf().get("spark.local.dir") or "")
        assert len(children(os.getpid(), "java")) == 1
        session.stop(spark)
        session.stop(spark)
        assert not directory.exists()
        assert not children(os.getpid(), "java")

    @pytest.mark.slow
    def test_another_can_be_started_and_its_start_is_quiet(self, capfd: pytest.CaptureFixture[str]) -> None:
        again = session.start("local[1]")
        session.warm_up(again)
        assert capfd.readouterr() == ("", "")
        assert again.range(3).count() == 3
        session.stop(again)


@pytest.mark.parametrize(
    ("master", "more", "chosen"),
    [
        ("local[2]", 0, "local[2]"),
        ("local[2]", 3, "local[5]"),
        ("local", 1, "local[2]"),
        ("local[2,4]", 1, "local[3,4]"),
        ("local[*]", 1, f"local[{cores() + 1}]"),
        ("local[*]", 0, "local[*]"),
        ("spark://host:7077", 3, "spark://host:7077"),
        ("local-cluster[2,1,1024]", 3, "local-cluster[2,1,1024]"),
        ("local[x]", 1, "local[x]"),
    ],
)
def test_e08_this_machine_has_a_place_more_for_each_other_route(master: str, more: int, chosen: str) -> None:
    assert session.with_places(master, more) == chosen


@pytest.mark.spark
class TestFailure:
    def test_no_java(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def find_java() -> None:
            raise java.JavaNotFound("there is no Java: install one")

        monkeypatch.setattr(session, "find_java", find_java)
        with pytest.raises(session.SparkUnavailable, match=r"^there is no Java: install one$"):
            session.start()

    @pytest.mark.parametrize(
        ("master", "variable", "value", "text"),
        [
            pytest.param(
                "local[x]", "IRRELEVANT", "", "Could not parse Master URL: 'local[x]'", marks=pytest.mark.slow
            ),
            pytest.param("nonsense", "IRRELEVANT", "", "Master must", marks=pytest.mark.slow),
            ("local[1]", "PYSPARK_SUBMIT_ARGS", "--nonsense pyspark-shell", "Unrecognized option: --nonsense"),
        ],
    )
    def test_a_failed_start_of_spark_ends_in_one_line_and_nothing_stays(
        self,
        master: str,
        variable: str,
        value: str,
        text: str,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
        tmp_path: Path,
    ) -> None:
        monkeypatch.setenv(variable, value)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(session.SparkUnavailable) as caught:
            session.start(master)
        assert str(caught.value).startswith(f"Spark did not start on {master}: ")
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
        assert capfd.readouterr() == ("", "")
        assert not list(tmp_path.iterdir())
        assert not children(os.getpid(), "java")


DRIVER = """
import os, signal, sys
from forwarder import session

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
spark = session.start("local[2]")
session.warm_up(spark)
session.warm_up(spark)

def work(path):
    with open(path, "w") as pipe:
        pipe.write("at work")
    with open(path) as pipe:
        return pipe.read()

for _ in range(2):
    print(*spark.sparkContext.parallelize([sys.argv[1]], 1).map(work).collect(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(120)  # else a driver that died leaves the pipe below without a writer for long
def test_the_round_survives_signals_to_the_driver_and_nothing_survives_a_killed_driver(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(pipe)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )
    try:
        assert pipe.read_text() == "at work"
        # To the whole group, as the terminal does on Ctrl-C, and the program `timeout` when the time is up.
        os.killpg(driver.pid, signal.SIGINT)
        os.killpg(driver.pid, signal.SIGTERM)
        pipe.write_text("finished")
        assert driver.stdout is not None
        assert driver.stdout.readline() == "finished\n"

        assert pipe.read_text() == "at work"
        family = descendants(driver.pid)
        assert len(family) >= 3, "Java, the daemon, a worker"
        driver.kill()
        assert [pid for pid in family if not ends(pid, timeout=30.0)] == []
        assert list(tmp_path.iterdir()) == [pipe]
    finally:
        driver.kill()
        driver.wait()


class TestDecisions:
    def test_only_a_local_master_is_bound_to_this_machine(self) -> None:
        for master in ("local", "local[*]", "local[2,3]"):
            assert session.settings(master, "/d")["spark.driver.bindAddress"] == "127.0.0.1"
            assert session.environment(master, "/java", {"PYSPARK_PYTHON": "/p"})["PYSPARK_PYTHON"] == sys.executable
        for master in ("spark://host:7077", "yarn", "local-cluster[1,1,1024]"):
            assert "spark.driver.bindAddress" not in session.settings(master, "/d")
            assert session.environment(master, "/java", {"PYSPARK_PYTHON": "/p"})["PYSPARK_PYTHON"] == "/p"

    def test_sockets_whose_path_would_be_too_long_are_not_used(self) -> None:
        for length, used in ((64, "true"), (65, "false")):
            directory = "/" + "d" * (length - 1)
            assert session.settings("local", directory)["spark.python.unix.domain.socket.enabled"] == used

    def test_workers_look_in_the_current_directory_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", ["/a", "lib", "", "/a", "/b:c"])
        assert session.python_path() == f"{tmp_path}:/a:{tmp_path}/lib"

    @pytest.mark.parametrize(
        ("printed", "line"),
        [
            ([], ""),
            (["WARNING: Using incubator modules", "\n", "Setting Spark log level to ERROR\n"], ""),
            (["Java heap space\n"], "Java heap space"),
            (['Exception in thread "main" a.b.C$D: no master\n', "\tat a.b.C.main\n"], "no master"),
            (["1 2 WARN X: no error yet\n", "26/01/02 10:11:12 ERROR Backend: gave up\n"], "gave up"),
        ],
    )
    def test_the_complaint_is_the_telling_line(self, printed: list[str], line: str) -> None:
        assert session.complaint(printed) == line

    def test_java_s_stacks_are_printed_only_with_spool_debug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert session.settings("local", "/d")["spark.log.level"] == "FATAL"
        monkeypatch.setenv("SPOOL_DEBUG", "1")
        assert session.settings("local", "/d")["spark.log.level"] == "ERROR"

    def test_broken_pipes_of_spark_s_own_code_are_left_out_of_the_output(self) -> None:
        start = "Traceback (most recent call last):\n"
        spark = '  File "/site/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
        own = '  File "/home/me/services.py", line 3, in book\n'
        end = "BrokenPipeError: [Errno 32] Broken pipe\n"
        printed = ["a word\n", start, spark, end, start, start, spark, spark, end, end, start, spark, own, end, "and"]
        assert list(session.without_broken_pipes(printed)) == ["a word\n", start, spark, own, end, "and"]

    def test_broken_pipes_while_a_broken_pipe_is_printed_are_left_out_too(self) -> None:
        start, end = "Traceback (most recent call last):\n", "BrokenPipeError: [Errno 32] Broken pipe\n"
        worker = '  File "/site/pyspark.zip/pyspark/worker.py", line 4359, in main\n'
        between = "During handling of the above exception, another exception occurred:\n"
        chained = [start, worker, end, "\n", between, "\n"]
        printed = ["PySpark daemon failed to flush the output to the worker process:\n", *chained, start, worker, end]
        assert list(session.without_broken_pipes([*printed, "a word\n", "\n"])) == ["a word\n", "\n"]

    def test_a_traceback_cut_by_a_kill_is_left_out_too(self) -> None:
        start = "Traceback (most recent call last):\n"
        spark = '  File "/site/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
        own = '  File "/home/me/services.py", line 3, in book\n'
        for printed in ([start], [start, spark]):
            assert list(session.without_broken_pipes(["a word\n", *printed])) == ["a word\n"]
        assert list(session.without_broken_pipes([start, spark, own])) == [start, spark, own]


def children(pid: int, program: str | None = None) -> list[int]:
    return [child for child, (parent, name) in processes().items() if parent == pid and program in (None, name)]


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]
