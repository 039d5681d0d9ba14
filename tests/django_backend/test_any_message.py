"""A worker of Django lives with any message and any task that a program enqueues, and no message is lost."""

import json
import tempfile
from pathlib import Path
from typing import Any

from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

import spool
from django_xaspool.results import problem_of
from django_xaspool.tasks import task_backends
from tests.django_backend import conf, jobs

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner)
)
JOBS = "tests.django_backend.jobs"
PATHS = st.sampled_from([f"{JOBS}.add", JOBS, "os.getpid", "this.d", "x.y", "."])
FIELDS = ("task", "args", "kwargs", "priority", "run_after", "enqueued_at")
RIGHT = {"task": "tests.django_backend.jobs.add", "args": [1], "kwargs": {}, "priority": 0, "run_after": None,
         "enqueued_at": 0.0}  # fmt: skip
TASKS = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)).map(lambda changed: {**RIGHT, **changed})
BODIES = JSON | st.binary() | TASKS | st.builds(lambda path: {**RIGHT, "task": path}, PATHS) | st.just({"task": None})


def run(space: spool.Space) -> spool.WorkSummary:
    return spool.Worker(space, "default", task_backends["default"].run, once=True).run()


@given(st.lists(BODIES, max_size=8))
def test_no_message_stops_a_worker(bodies: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory, override_settings(TASKS=conf.tasks_in(Path(directory) / "space")):
        space = task_backends["default"].space_with("default")
        space.change_queue("default", retries=0, retry_delay=0)
        for body in bodies:
            space.put("default", body)
        last = jobs.add.enqueue(1)
        done = run(space)
        last.refresh()
        assert last.status == "SUCCESSFUL"
        failed, results = list(space.browse("django-failed")), list(space.browse("django-results"))
        assert all(message.failure_reason for message in failed)
        assert done.rejected + done.dead_lettered == len(failed)
        assert len(failed) + sum(result.body["status"] == "SUCCESSFUL" for result in results) == len(bodies) + 1
        assert all(problem_of(message.body) or message.body["task"] for message in failed)
        space.close()


@given(st.lists(JSON, max_size=4), st.dictionaries(TEXT, JSON, max_size=4), st.integers(-100, 100))
def test_all_arguments_arrive(args: list[Any], kwargs: dict[str, Any], priority: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for outbox in (False, True):
            with override_settings(TASKS=conf.tasks_in(Path(directory) / "space", outbox=outbox)):
                result = jobs.echo.using(priority=priority).enqueue(*args, **kwargs)
                run(task_backends["default"].space)
                result.refresh()
                assert result.return_value == json.loads(json.dumps([args, kwargs]))
        spool.shared(Path(directory) / "space").close()
