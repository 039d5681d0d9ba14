"""Workers, their processes, ``celery beat`` and publishing programs are killed at random."""

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.beside.company import two_that_commit
from tests.celery.storm import storm
from tests.celery.workers import prepared

KINDS = ("worker", "worker", "beat", "publisher")
CHILDREN = ("child", "child")
STOPS = ("stop worker", "stop child", "stop child", "results")  # (the results of chords under way are deleted)
THOUSANDS = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("tasks", "beside", "kinds", "every"),
    [
        pytest.param(300, two_that_commit, KINDS, 100, id="hundreds"),
        pytest.param(10_000, nullcontext, KINDS + CHILDREN, 100, id="thousands", marks=THOUSANDS),
        pytest.param(10_000, two_that_commit, KINDS + CHILDREN, 100, id="thousands beside", marks=THOUSANDS),
        pytest.param(20_000, nullcontext, KINDS + CHILDREN + STOPS, 80, id="stopped", marks=THOUSANDS),
    ],
)
def test_tasks_run_whatever_is_killed_and_run_again_only_after_a_kill(
    tmp_path: Path, tasks: int, beside: Any, kinds: tuple[str, ...], every: int, record_property: Any
) -> None:
    """Two other processes commit to the same space all the while, or none. No body of a chord is lost in silence."""
    with prepared(tmp_path) as space:
        space.create_queue("failed", exist_ok=True)
        space.create_queue("celery", retries=1000, retry_delay=0.0, error_queue="failed")
        with beside(tmp_path), storm(tmp_path, space, seed=tasks, kinds=kinds, every=every) as here:
            here.run(tasks)
            journal, output = here.journal, here.output()
        again = sum(len(runs) > 1 for runs in journal.runs.values())
        record_property(
            "celery tasks under kills",
            {
                "published": len(journal.published),
                "run again": again,
                "chords": len(journal.chords),
                "failed chords": len(journal.lost),
            },
        )
        record_property("celery kills", dict(here.kills))
        assert journal.runs.keys() <= journal.names.keys()
        assert journal.unexcused() == []
        assert journal.counted_too_early() == []
        assert journal.without_body() == []
        expected = {body: sums for body, sums in journal.totals.items() if body in journal.chords}
        assert {body: {journal.chords[body]} for body in journal.totals if body in journal.chords} == expected
        assert "results" in kinds or not journal.lost
        for queue, stats in space.stats().items():
            assert stats.claimed == 0, queue
            assert stats.ready == 0 or queue in ("zz", "celery.bindings", "celery.results"), queue
        assert space.check() == []
    assert not re.search(r'File ".*/(spool|celery_xaspool)/|are not acknowledged yet', output), output
    admin = "import xaspool_scripts.start; xaspool_scripts.start.admin()"
    command = [sys.executable, "-c", admin, "-s", str(tmp_path / "space"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((tmp_path / "space" / "active").iterdir()), "the first opener removes the files of dead processes"
