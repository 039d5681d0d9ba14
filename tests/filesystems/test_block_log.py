"""Power cuts between any two block writes: the log of a device is replayed up to a cut, without some unflushed writes.

A cut is judged by the promises that the processes had when the cut's last operation reached the device.
"""

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.filesystems import block_log
from tests.filesystems.devices import PROGRAMS, Device
from tests.filesystems.team import Team
from tests.filesystems.volume import KINDS, Kind, Volume, boot_anew, missing, run
from tests.torture import aftermath


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", ["ext4", *(pytest.param(n, marks=pytest.mark.slow) for n in ("xfs", "btrfs", "ext4 without a journal"))]
)
def test_nothing_acknowledged_is_lost_by_a_cut_between_two_block_writes_on(
    name: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kind = KINDS[name]
    if reason := missing(*PROGRAMS, kind.make[0], *kind.mend[:1]):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cuts = 150 if pytestconfig.getoption("--long") else 12
    before, log = record(kind, tmp_path, rng, seconds=cuts / 20)
    operations = block_log.read(log)
    first = next(n for n, operation in enumerate(operations) if operation.at > before)
    damaged = survivors = 0
    for _ in range(cuts):
        cut = block_log.choose_cut(operations, first, rng)
        lost, messages = replay(kind, tmp_path, operations, cut, rng)
        damaged += lost
        survivors += messages
    flushes = sum(operation.data is None for operation in operations)
    print(
        f"{name}: {cuts} cuts in {len(operations)} block operations ({flushes} flushes), "
        f"{damaged} writes lost or torn, {survivors} messages survived and were judged, no violation"
    )


def record(kind: Kind, directory: Path, rng: random.Random, seconds: float) -> tuple[int, Path]:
    """Let the team work on a device that remembers; returns when the space had been made, and the log."""
    volume = Volume(kind, directory)
    volume.make()
    shutil.copy(volume.image, directory / "empty")
    log = directory / "block-log"
    arguments = ["python", block_log.__file__, f"serves={volume.image}", f"log={log}"]
    with Device(directory, arguments) as device, Volume(kind, directory, device.file) as mounted:
        mounted.mount()
        with Team(mounted.path / "space", directory / "logs", rng.randrange(2**31)) as team:
            assert team.make_space() is kind.ordered
            before = time.monotonic_ns()
            team.start()
            time.sleep(seconds)
            team.kill()
        mounted.unmount()
    return before, log


def replay(
    kind: Kind, directory: Path, operations: list[block_log.Operation], cut: int, rng: random.Random
) -> tuple[int, int]:
    """Mount the device after the cut, and judge the space; return the numbers of lost writes and of found messages."""
    image, logs = directory / "cut", directory / "logs"
    run("cp", "--sparse=always", str(directory / "empty"), str(image))
    lost = block_log.survivor(image, operations, cut, rng)
    (logs / "end.log").unlink(missing_ok=True)
    with Volume(kind, directory, image) as volume:
        volume.mend()
        volume.mount()
        boot_anew(volume.path / "space")
        found = aftermath.look(str(volume.path / "space"), logs, rng, until=operations[cut].at)
        if kind.mend:  # unpromised names may lead to other files after the repair
            assert found.violations == []
        else:
            found.assert_nothing_is_broken()
        volume.unmount()
    return lost, found.messages
