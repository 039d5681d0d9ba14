"""Eight processes work on ext4 and xfs while the file system is shut down under them, without flushing its log."""

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.filesystems.team import Team
from tests.filesystems.volume import KINDS, Volume, boot_anew, missing
from tests.torture import aftermath
from tests.torture.aftermath import Cut

CUTS_PER_SPACE = 5


@pytest.mark.parametrize("name", ["ext4", "xfs"])
def test_nothing_acknowledged_is_lost_by_a_power_cut_on(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kind = KINDS[name]
    if reason := missing(kind.make[0]):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(2**31)
    cuts = 100 if pytestconfig.getoption("--long") else 2
    print(f"seed {seed}")
    with Volume(kind, tmp_path) as volume:
        volume.make().mount()
        survivors = cut_again_and_again(volume, tmp_path, cuts, random.Random(seed))
    print(f"{name}: {cuts} cuts, {survivors} messages survived and were judged, no violation")


def cut_again_and_again(volume: Volume, directory: Path, many: int, rng: random.Random) -> int:
    """A space lives through a few cuts, then another takes its place; returns how many messages were found."""
    survivors = 0
    for number, first in enumerate(range(0, many, CUTS_PER_SPACE)):
        space, logs = volume.path / f"space-{number}", directory / f"logs-{number}"
        with Team(space, logs, rng.randrange(2**31)) as team:
            assert team.make_space() is volume.kind.ordered
            cuts: list[Cut] = []
            for _ in range(first, min(first + CUTS_PER_SPACE, many)):
                cuts.append(_work_until_the_cut(volume, team, rng))
                survivors += _judge(team, cuts, rng)
        shutil.rmtree(space)
        shutil.rmtree(logs)
    return survivors


def _work_until_the_cut(volume: Volume, team: Team, rng: random.Random) -> Cut:
    team.start()
    time.sleep(rng.uniform(0.2, 1.2))  # a moment that means nothing to anyone
    begun = time.monotonic_ns()
    volume.cut()
    done = time.monotonic_ns()
    team.kill()
    over = time.monotonic_ns()
    volume.unmount()
    volume.mount()
    return Cut(begun, done, over)


def _judge(team: Team, cuts: list[Cut], rng: random.Random) -> int:
    if rng.random() < 0.2:
        shutil.rmtree(team.space / "run")
    boot_anew(team.space)
    found = aftermath.look(str(team.space), team.logs, rng, empty=False, cuts=cuts)
    found.assert_nothing_is_broken()
    return found.messages
