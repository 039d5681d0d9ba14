"""btrfs, which cannot be shut down by ioctl: all processes are stopped, the live image is copied, and they go on.

A copy is the disk of a moment only if nothing was written to the device meanwhile: its own count of writes tells.
"""

import random
import time
from pathlib import Path

import pytest

from tests.filesystems.team import Team
from tests.filesystems.volume import KINDS, Volume, boot_anew, missing, run
from tests.torture import aftermath

TRIES = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["btrfs", "ext4", "xfs"])
def test_nothing_acknowledged_is_lost_in_a_copy_of_the_live_image_of(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    if reason := missing(kind.make[0], "findmnt"):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    messages = []
    with Volume(kind, tmp_path) as volume:
        volume.make().mount()
        with Team(volume.path / "space", tmp_path / "logs", seed) as team:
            assert team.make_space() is kind.ordered
            team.start()
            for _ in range(15):
                time.sleep(rng.uniform(0.05, 0.5))  # a moment that means nothing to anyone
                messages.append(_copy_and_judge(volume, team, tmp_path, rng))
    print(f"{name}: {len(messages)} copies, {sum(messages)} messages survived and were judged, no violation")


def _copy_and_judge(volume: Volume, team: Team, directory: Path, rng: random.Random) -> int:
    copy = directory / "copy"
    team.stop()
    at = time.monotonic_ns()
    for _ in range(TRIES):
        before = volume.writes()
        run("cp", "--sparse=always", str(volume.image), str(copy))
        if volume.writes() == before:
            break
    else:
        raise AssertionError("the device is never quiet, though nobody works")
    (team.logs / "end.log").unlink(missing_ok=True)
    with Volume(volume.kind, directory / "copied", copy) as copied:
        copied.mount(*(("nouuid",) if volume.kind.name == "xfs" else ()))
        boot_anew(copied.path / "space")
        found = aftermath.look(str(copied.path / "space"), team.logs, rng, until=at)
        found.assert_nothing_is_broken()
        copied.unmount()
    team.go_on()
    return found.messages
