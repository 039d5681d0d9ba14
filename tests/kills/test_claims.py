"""The kernel kills a process that holds claims at each changing system call, and then the process that counts its
attempts: each attempt counts once."""

import random
import shutil
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.kills import claims
from tests.kills.scaffold import Scaffold
from tests.strides import Stride

pytestmark = pytest.mark.strace

WAITS, WAITS_AFTER_ONE = ("orders", 0, 0), ("orders", 1, 0)
# The states of a message that each last step allows: its queue, attempts, and attempts in the queue before.
ALLOWED = {
    "": {WAITS},
    "beginning": {WAITS, WAITS_AFTER_ONE},
    "begun": {WAITS_AFTER_ONE},
    "failing": {WAITS_AFTER_ONE},
    "failed": {WAITS_AFTER_ONE},
    "removing": {WAITS_AFTER_ONE, None},
    "removed": {None},
    "rejecting": {WAITS_AFTER_ONE, ("errors", 0, 1)},
    "rejected": {("errors", 0, 1)},
    "releasing": {WAITS, WAITS_AFTER_ONE},
    "released": {WAITS},
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "space"
    with spool.create(path, sync_method="ordered", defaults=AT_ONCE) as space:
        space.create_queue("errors", retries=5)
        space.create_queue("orders", retries=5, error_queue="errors")
        space.put_many("orders", claims.MESSAGES)
    return path


@pytest.mark.parametrize(
    "call", ["pwrite64", "renameat", "unlinkat", "fsync", "renameat2", pytest.param("fcntl", marks=pytest.mark.slow)]
)
def test_each_attempt_of_claims_counts_once_whenever_processes_are_killed(
    call: str, template: Path, tmp_path: Path, scaffold: Scaffold, stride: Stride, record_property
) -> None:
    path, log, rng = tmp_path / "space", tmp_path / "log", random.Random(call)
    n, kills, recoveries = 1, 0, 0
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        log.write_text("")
        killed = scaffold.kill_at(call, n, "claims", str(path), str(log))
        if killed and kills % 3:
            kind = rng.choice(["pwrite64", "unlinkat"])
            recoveries += scaffold.kill_at(kind, rng.randint(1, 6), "recovery", str(path))
        steps = dict(line.split() for line in log.read_text().splitlines())
        with spool.open(path) as space:
            found = {
                message.body: (message.queue, message.attempts, message.origin_attempts)
                for queue in ("orders", "errors")
                for message in space.browse(queue)
            }
            for body in claims.MESSAGES:
                assert found.get(body) in ALLOWED[steps.get(body, "")], f"{call} {n}: {body} {steps.get(body)}"
            assert space.check() == []
        if not killed:
            break
        kills += 1
        n += stride(4 if call == "pwrite64" else 1)
    record_property("kills", kills + recoveries)
    assert kills, f"claims never call {call}"
