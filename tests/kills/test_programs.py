"""``spool-forward --once`` dies at a call of its own, and then a task of it does: each message is served all the same.

Starting Spark takes its time, so a default run kills the program without Spark; there the tasks are its threads. The
service has strace attach to the victim when it gets its first message, because nothing that goes on before changes the
space.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE

pytestmark = [pytest.mark.strace, pytest.mark.root, pytest.mark.timeout(900)]

SERVICES = """
import json, os, subprocess

def upper(message):
    try:
        os.rename("victim", "armed")
    except FileNotFoundError:
        return message.body.upper()
    with open("armed") as file:
        pid, call, n = json.load(file)
    kill = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]
    strace = subprocess.Popen(  # in a session of its own: Spark ends this group by SIGHUP, and strace may hang then
        ["strace", "-f", "-o", "/dev/null", *kill, "-p", str(pid or os.getpid())],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    strace.stderr.readline()  # it is attached
    return message.body.upper()
"""
MESSAGES = 4


def forward(space: Path, how: Sequence[str], *victim: object) -> int:
    """Run the program, and kill ``victim`` (the process, the system call, the number of that call); return the exit
    code."""
    program = [sys.executable, "-m", "xaspool_scripts.forward", "-s", str(space), *how, "--once"]
    with subprocess.Popen(
        [*program, "--route", "requests=python:kill_services:upper"],
        cwd=space.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        if victim:
            whom, call, n = victim
            (space.parent / "new").write_text(json.dumps([process.pid if whom == "driver" else 0, call, n]))
            (space.parent / "new").rename(space.parent / "victim")
        process.communicate(timeout=300)
    return process.returncode


DRIVER = [("renameat2", 1), *(("fsync", n) for n in (1, 2)), *(("pwrite64", n) for n in (2, 4, 8, 12)), ("unlink", 1)]
TASK = [("renameat2", 1), ("fsync", 1), ("pwrite64", 1), ("pwrite64", 3), ("close", 5)]
WITH_SPARK, WITHOUT = ("--master", "local[1]"), ("--no-spark",)
LONG = [*((at, TASK[0]) for at in DRIVER), *((DRIVER[0], at) for at in TASK[1:])]


@pytest.mark.parametrize(
    ("how", "driver", "task"),
    [
        (WITHOUT, DRIVER[0], TASK[0]),
        *(pytest.param(WITH_SPARK, *case, marks=[pytest.mark.spark, pytest.mark.slow]) for case in LONG),
    ],
)
def test_a04_spool_forward_answers_each_message_once_when_driver_and_task_are_killed(
    how: tuple[str, ...], driver: tuple[str, int], task: tuple[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "space"
    (tmp_path / "kill_services.py").write_text(SERVICES)
    with spool.create(path, sync_method="ordered", defaults=AT_ONCE) as space:
        space.create_queue("replies")
        space.create_queue("requests", reply_queue="replies")
        ids = [space.put("requests", f"message {n}") for n in range(MESSAGES)]
    ends = [forward(path, how, "driver", *driver)]
    with spool.open(path) as space:
        assert [finding for finding in space.check() if finding.kind == "damaged"] == []
        answered = space.stats("replies").ready
    ends.append(forward(path, how, "task", *task))
    if how is WITHOUT:  # Spark would have begun the task again
        ends.append(forward(path, how))
    with spool.open(path) as space:
        replies = {message.correlation_id: message.body for message in space.browse("replies")}
        assert replies == {id_: f"MESSAGE {n}" for n, id_ in enumerate(ids)}
        assert space.stats("replies").ready == MESSAGES
        assert space.stats("requests").ready == 0
        assert space.check() == []
    print(f"driver killed at {driver}, task at {task}: the runs ended with {ends}, {answered} answers after the first")
