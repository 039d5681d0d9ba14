"""The kernel kills the engine at each changing system call of a short session, and at each one of its recovery.

After each kill: open, check, compare with the acknowledgements, and open and check again.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import spool
from tests.kills import session
from tests.kills.conftest import Life
from tests.kills.scaffold import CALLS, QUIET, Scaffold
from tests.strides import Stride
from tests.torture import aftermath, history

pytestmark = pytest.mark.strace

RECOVERY_CALLS = ("pwrite64", "openat", "fsync", "unlinkat")
NEVER = {"ftruncate"}  # a step of files that get shorter: none does in so short a life


def test_the_session_does_everything(life: Life) -> None:
    """The kills cover the engine only if the session does all of these."""
    life.begin()
    session.live(str(life.space), life.log)
    did = Counter((record["event"], record["tx"].partition("-")[0]) for record in history.read(life.log))
    assert did["ack", "putter"]
    assert did["ack", "getter"]
    assert did["ack", "dropper"]
    assert did["ack", "mover"]
    assert did["rollback", "mover"]
    assert did["prepared", "xa"] == 4
    assert did["rollback", "xa"] == 2
    assert did["ack", "xa"] == 2
    assert not (life.space / "committed" / f"{1:016}.msgpack").exists(), "nothing was reclaimed"


FLUSHES = {"fsync", "fdatasync"}
STEPS = {"pwrite64": 96, "fsync": 32, "fdatasync": 24, "renameat2": 16}  # without --long: not each of the many calls


def cases() -> Iterator[Any]:
    for call in CALLS:
        for flush in ("ordered", "strict"):
            never = call in NEVER or (call == "fdatasync" and flush == "ordered")
            slow = call in QUIET or (flush == "strict" and call not in FLUSHES)
            if not never:
                yield pytest.param(call, flush, marks=pytest.mark.slow if slow else ())


@pytest.mark.every(2)
@pytest.mark.timeout(1800)  # (with --long, at each of some hundred calls)
@pytest.mark.parametrize(("call", "flush"), list(cases()))
def test_nothing_acknowledged_is_lost_by_a_kill_at(
    call: str, flush: str, life: Life, scaffold: Scaffold, stride: Stride, record_property
) -> None:
    step = stride(STEPS.get(call, 1))
    n, kills, recoveries = 1, 0, 0
    rng = random.Random(call)
    while True:
        life.begin(flush)
        if not scaffold.kill_at(call, n, "session", str(life.space), life.log):
            break
        kills += 1
        if kills % 2:  # every other death is followed by another, while recovering from it
            recoveries += scaffold.kill_at(rng.choice(RECOVERY_CALLS), rng.randint(1, 3), "recovery", str(life.space))
        aftermath.look(str(life.space), life.logs, rng).assert_nothing_is_broken()
        n += step
    record_property("kills", kills + recoveries)
    print(f"{call}, {flush}: killed at {kills} calls, and {recoveries} times while recovering from it")
    assert kills, f"the session never calls {call}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("call", [call for call in CALLS if call not in NEVER])
def test_recovery_is_killed_at_every_call(call: str, life: Life, scaffold: Scaffold, record_property) -> None:
    """From the remains of six different kills."""
    kills = 0
    for death, at in (
        ("renameat2", 4),
        ("renameat2", 12),
        ("renameat", 5),
        ("pwrite64", 30),
        ("fsync", 9),
        ("unlinkat", 4),
    ):
        n = 1
        while True:
            life.begin()
            assert scaffold.kill_at(death, at, "session", str(life.space), life.log)
            if not scaffold.kill_at(call, n, "recovery", str(life.space)):
                break
            aftermath.look(str(life.space), life.logs, random.Random(n)).assert_nothing_is_broken()
            n += 1
        kills += n - 1
    record_property("kills", kills)
    print(f"{call}: recovery killed at {kills} calls")


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("call", "marker"),
    [
        *((call, None) for call in ("pwrite64", "renameat2", "unlinkat", "mkdirat", "fsync")),
        *((call, ".ok") for call in ("renameat2", "unlinkat")),
    ],
)
def test_spool_intake_takes_each_file_once_whenever_it_is_killed(
    call: str, marker: str | None, life: Life, scaffold: Scaffold, stride: Stride, record_property
) -> None:
    n, kills, step = 1, 0, stride(5 if call == "pwrite64" else 1)
    while True:
        life.begin()
        wanted = _drop(life.space, marker)
        if not scaffold.kill_at(call, n, "intake", str(life.space)):
            break
        for _ in range(2):
            scaffold.let_live("intake", str(life.space))
        with spool.open(life.space) as space:
            assert sorted(message.body for message in space.browse("in")) == wanted
            assert space.check() == []
            assert space.quarantined() == []
        assert list((life.space / "drop" / "in").iterdir()) == []
        kills += 1
        n += step
    record_property("kills", kills)
    print(f"spool-intake, {call}: killed at {kills} calls")
    assert kills, f"spool-intake never calls {call}"


def _drop(space: Path, marker: str | None) -> list[bytes]:
    """Four files, one of them of three messages, each with its marker if there is one; returns the bodies, sorted."""
    bodies = [b"%d" % n for n in range(6)]
    folder = space / "drop" / "in"
    for n, body in enumerate(bodies[:3]):
        (folder / f"file-{n}").write_bytes(body)
    (folder / "three.msgpack").write_bytes(b"".join(msgpack.packb({"body": body}) for body in bodies[3:]))
    if marker is not None:
        with spool.open(space) as opened:
            opened.change_queue("in", drop_marker=marker)
        for file in list(folder.iterdir()):
            file.with_name(file.name + marker).touch()
    return bodies
