"""Programs that order, and workers, are killed again and again: each committed order has exactly one task."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import override_settings

import spool
from django_xaspool.models import OutboxTask
from django_xaspool.tasks import task_backends
from tests.django_backend import conf
from tests.django_backend.databases import KINDS, database, numbers
from tests.django_backend.test_worker import worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=KINDS)
def space(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spool.Space]:
    """A space of a back end with an outbox in each kind of database, which child processes use, too."""
    monkeypatch.setenv("OUTBOX", "1")
    monkeypatch.setenv("SPACE", str(tmp_path / "space"))
    tasks = conf.tasks_in(tmp_path / "space", outbox=True)
    with database(request.param, tmp_path, monkeypatch), override_settings(TASKS=tasks):
        found = task_backends["default"].space_with("default", "mail")
        found.change_queue("default", deduplication_window=0, retry_delay=0, retries=None)
        yield found


def order(first: int, count: int, ways: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.django_backend.orders", str(first), str(count), ways]
    return subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("orders", "kills"), [(60, 6), pytest.param(2000, 60, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_each_committed_order_has_one_task_whatever_is_killed(space: spool.Space, orders: int, kills: int) -> None:
    """The deduplication window is 0, so only the messages and the rows show that a task was moved."""
    chance = random.Random(orders)
    ways = ["c", "d", "anywhere", "worker"]
    of_each = orders // kills
    undone, left = set(), 0
    for kill in range(kills):
        way, first = ways[kill % len(ways)], kill * of_each
        plan = ["u" if chance.random() < 0.1 else "s" if chance.random() < 0.1 else "." for _ in range(of_each)]
        if way in "cd":
            plan[-1] = way
        undone |= {first + place for place, letter in enumerate(plan) if letter == "u"}
        process = order(first, of_each, "".join(plan))
        assert process.stdout is not None
        if way == "worker":
            with worker(Path(space.path), "--threads", "2") as killed:
                for _ in range(of_each):
                    process.stdout.readline()
                killed.kill()
        elif way == "anywhere":
            for _ in range(chance.randrange(of_each)):
                process.stdout.readline()
            process.kill()
        process.communicate(timeout=120)
        left += OutboxTask.objects.count()
    ordered = numbers("orders")
    assert left > 0
    call_command("spool_worker", once=True, stdout=StringIO())
    call_command("spool_worker", once=True, stdout=StringIO())
    assert OutboxTask.objects.count() == 0
    done = [message.body["args"][0] for message in space.browse("django-results")]
    assert sorted(done) == ordered  # each task ended once, and no other
    assert not undone & set(ordered)
    assert set(numbers("cooked")) == set(ordered)
    print(f"{len(ordered)} orders under {kills} kills; {left} rows were left; {len(numbers('cooked'))} runs")
