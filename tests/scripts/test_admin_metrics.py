"""``spool-admin metrics`` prints the metrics of a space once, and complains of each failure in one line."""

import grp
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spool
from spool.watch.published import publish
from tests import door
from tests.scripts.conftest import Run, one_line
from tests.scripts.exporters import parsed, value


def test_the_command_metrics_prints_the_metrics_once(path: Path, run: Run) -> None:
    with spool.open(path) as space:
        space.put("orders", b"four")
        done = run("metrics")
    assert done.code == 0
    assert value(done.text, "xaspool_queue_bytes", queue="orders") == 4
    assert f'xaspool_up{{space="{path}"}} 1.0' in done.text


def test_json_has_the_same_samples(path: Path, run: Run) -> None:
    samples = {(each["name"], frozenset(each["labels"].items())) for each in run("metrics", "--json").objects}
    printed = parsed(run("metrics").text)
    expected = {(name, labels) for name, values in printed.items() for labels in values}
    assert {(name, labels - {("space", str(path))}) for name, labels in samples} == expected


COUNTING = """
import sys
import spool

with spool.open(sys.argv[1]) as space:
    space.put("orders", b"x")
    space._store.meters.add("rounds", "orders", number=int(sys.argv[2]))
    space._store.meters.share()  # a process that is killed loses the counts that it has not shared
    print("counted", flush=True)
    sys.stdin.read()
"""


@contextmanager
def counting(path: Path, number: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that counts, and has the space open until the end."""
    command = [sys.executable, "-c", COUNTING, str(path), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"counted\n"
        yield process


def test_processes_count_together_and_take_no_count_with_them(path: Path, run: Run) -> None:
    def read() -> tuple[float, float]:
        text = run("metrics").text
        return value(text, "xaspool_rounds_total", queue="orders"), value(text, "xaspool_commit_requests_total")

    with counting(path, 3) as first, counting(path, 4):
        rounds, requests = read()
        assert rounds == 7
        assert requests >= 2
        first.kill()
        first.wait()
        assert read()[0] == 7
        with counting(path, 2):
            later, requests_later = read()
    assert later == 9
    assert requests_later > requests
    assert read()[0] == 9


def test_a_space_that_is_none_is_a_failure(run: Run, tmp_path: Path) -> None:
    for arguments in ([], ["--published"], ["--listen", "127.0.0.1:0"]):
        done = run("metrics", *arguments, space=tmp_path / "elsewhere")
        assert done.code == 1
        assert done.out == b""
        one_line(done, "elsewhere")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 100, "192.0.2.1"])
def test_an_address_of_another_machine_is_a_failure_of_one_line(run: Run, host: str) -> None:
    one_line(run("metrics", "--listen", f"{host}:0"), f"cannot listen at {host}:0: ", code=1)


def test_published_metrics_are_read_without_the_space(path: Path, run: Run) -> None:
    with spool.open(path) as space:
        space.put("orders", b"four")
        publish(door.disk(space), space.metrics(), grp.getgrgid(os.getgid()).gr_name)
    done = run("metrics", "--published")
    assert done.code == 0, done.err
    assert value(done.text, "xaspool_queue_bytes", queue="orders") == 4
