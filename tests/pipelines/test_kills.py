"""A pipeline that is killed and started again: each message is translated once, as a whole, and in sequence."""

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import spool
from forwarder import Pipeline
from tests.at_once import AT_ONCE

ROOT = Path(__file__).parents[2]
TOML = """
name = "p"
inbound = "tests.pipelines.hooks:lazily"
retries = 100        # a death counts as an attempt of what was being handled
retry_delay = 0.0

[[routes]]
name = "r"
translate = "tests.pipelines.hooks:lazily"
to = ["one", "two"]

[destinations.one]
service = "queue:out"
retry_delay = 0.0

[destinations.two]
service = "queue:unused"
stopped = true
"""


def start(tmp_path: Path, *options: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "xaspool_scripts.forward", "-s", str(tmp_path / "space"), "--pipeline", "p.toml"]
    return subprocess.Popen(
        [*words, *options], cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def killed_when(process: "subprocess.Popen[bytes]", space: spool.Space, count: int) -> None:
    """Kill a process as soon as so many messages have come out."""
    while space.stats("out").enqueued < count:
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.001)
    process.kill()
    process.communicate()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("messages", "kills", "options"),
    [
        (40, 1, ["--no-spark"]),
        pytest.param(2000, 100, ["--no-spark"], marks=pytest.mark.slow),
        pytest.param(2000, 10, ["--master", "local[2]"], marks=[pytest.mark.slow, pytest.mark.spark]),
    ],
)
def test_c03_c07_a_pipeline_that_is_killed_translates_each_message_once_and_as_a_whole(
    messages: int, kills: int, options: Sequence[str], tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(TOML)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = sorted(random.Random(seed).sample(range(1, 4 * messages), kills))
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("out")
        space.create_queue("unused")
        Pipeline.load(tmp_path / "p.toml").create_queues(space)
        ids = space.put_many("p", [f"{n}." for n in range(messages)])
        for count in moments:
            killed_when(start(tmp_path, *options), space, count)
        last = start(tmp_path, "--once", *options)
        assert last.wait(900) == 0, last.communicate()
        last.communicate()
        right = [f"{n}.{one}{two}" for n in range(messages) for one in "12" for two in "12"]
        assert [message.body for message in space.browse("out")] == right, "each once, in sequence"
        stopped = list(space.browse("p.to.two"))
        assert [message.body for message in stopped] == right
        assert [message.correlation_id for message in stopped] == [id_ for id_ in ids for _ in range(4)]
        for first in range(0, len(stopped), 2):
            assert len({message.position.number for message in stopped[first : first + 2]}) == 1, "of one, one commit"
        left = {
            queue: stats.ready + stats.delayed + stats.claimed + stats.in_doubt
            for queue, stats in space.stats().items()
        }
        assert {queue for queue, count in left.items() if count} == {"out", "p.to.two"}
        assert [finding for finding in space.check() if finding.kind == "damaged"] == []
