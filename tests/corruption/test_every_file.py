"""X11, E03, E12: with any damage, the space opens, serves every whole message, names the damage, and can be
repaired."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spool.model import layout
from tests.corruption import damages, zoo
from tests.corruption.damages import Damage
from tests.corruption.judge import judge
from tests.corruption.zoo import Zoo
from tests.strides import Stride

KINDS = (
    "totals", "one section", "other queue", "several sections", "partly taken", "removal", "try counted",
    "head of adopted branch", "adopted branch", "head of unmoved branch", "unmoved branch", "held", "in doubt",
    "orphan", "claimed", "note", "active branch", "copy", "spare", "taken file", "counters", "control", "feed",
    "numbers", "xids", "claim file",
)  # fmt: skip
LARGE_BYTES = 8_000
OFTEN = ("one section", "head of unmoved branch")
SELDOM = ("feed",)  # large, and worth nothing once no process has the space open
ODD_NAMES = (
    *(layout.committed(number) for number in (1, 25, 140, layout.MAX_NUMBER)),
    *(layout.committed(*place) for place in ((11, 1), (17, 2), (1, 1), (60, 1))),
    "prepared/7.bmV3..msgpack", "active/7.bmV3..msgpack", "active/7.bmV3..claims", "active/7.bmV3..copy",
    "free/100-aaaaaaaaaaaaaaaa", "free/3-aaaaaaaaaaaaaaaa.new", "free/²-aaaaaaaaaaaaaaaa", "run/claims-99", "run/²",
    "committed/junk", "prepared/junk", "active/junk", "active/drop.left.junk",
    f"quarantine/committed.{'²' * 16}.msgpack", "quarantine/junk.reason.txt",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return zoo.make(tmp_path_factory.mktemp("zoo") / "space")


Judged = Callable[[Iterator[Damage], int], None]


@pytest.fixture
def judged(made: Zoo, memory: Path, record_property: Callable[[str, object], None]) -> Judged:
    """Judge every n-th of the damages; each second of those is repaired first."""

    def run(found: Iterator[Damage], step: int) -> None:
        counts: Counter[str] = Counter()
        for place, damage in enumerate(found):
            if place % step:
                continue
            repair = place // step % 2 == 1
            judge(made, damage, memory / "space", repair=repair)
            counts[damage.kind] += 1
            counts["repaired"] += repair
        assert counts
        record_property("corrupted files", dict(counts))

    return run


def _content(made: Zoo, kind: str) -> tuple[str, bytes]:
    name = made.files[kind]
    return name, made.content[name] or b""


def test_the_zoo_has_every_kind(made: Zoo) -> None:
    assert set(made.files) == {*KINDS, "settings"}
    directories = {name.partition("/")[0] for name in made.files.values()} - {layout.SETTINGS}
    assert directories == {*layout.OWN_NAMES}


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", KINDS)
def test_e12_a_flipped_bit(made: Zoo, judged: Judged, kind: str, stride: Stride) -> None:
    name, data = _content(made, kind)
    if data:
        step = stride(29 if kind in OFTEN else 839 if kind in SELDOM else 167)
        judged(damages.flips(name, data, 3 if step == 1 else 1, random.Random(kind)), step)


@pytest.mark.every(4, first=1)
@pytest.mark.parametrize("kind", KINDS)
def test_e12_a_file_that_is_cut_off(made: Zoo, judged: Judged, kind: str, stride: Stride) -> None:
    name, data = _content(made, kind)
    if data:
        step = stride(839 if kind in SELDOM else 167)
        judged(damages.cuts(name, data, random.Random(kind)), step)


@pytest.mark.every(4, first=2)
@pytest.mark.parametrize("kind", KINDS)
def test_e03_zeroes_noise_surplus_and_other_things_under_the_name(made: Zoo, judged: Judged, kind: str, stride: Stride):
    name, data = _content(made, kind)
    step = stride(29 if len(data) < LARGE_BYTES else 167)
    judged(damages.replacements(name), 1)
    judged(damages.extensions(name, data), step)
    if data:
        judged(damages.blocks(name, data, random.Random(kind)), step)


@pytest.mark.every(4, first=3)
@pytest.mark.parametrize("kind", KINDS)
def test_e16_files_that_change_places_and_copies_of_files(made: Zoo, judged: Judged, kind: str, stride: Stride) -> None:
    step = stride(37)
    name, _ = _content(made, kind)
    others = [made.files[other] for other in KINDS if other != kind]
    judged(damages.swaps(name, others), step)
    judged(damages.copies(name, [*others, *ODD_NAMES]), step)
