"""A device that fails writes (nbdkit's error filter): the space stops for all processes, and reopening tells the truth.

The kernel reports success for the flush after a failed one, although the pages are lost (PostgreSQL's "fsyncgate"). The
engine therefore never flushes again after a failed flush.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.filesystems.devices import PROGRAMS, Device
from tests.filesystems.volume import BTRFS, EXT4, EXT4_WITHOUT_JOURNAL, XFS, Kind, Volume, boot_anew, missing


@pytest.fixture(
    params=[EXT4, EXT4_WITHOUT_JOURNAL, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (XFS, BTRFS))],
    ids=lambda kind: kind.name,
)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    if reason := missing(*PROGRAMS, kind.make[0], *kind.mend[:1]):
        pytest.skip(reason)
    return kind


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """While this file is there, every write fails."""
    return tmp_path / "fault"


@pytest.fixture
def volume(kind: Kind, fault: Path, tmp_path: Path) -> Iterator[Volume]:
    made = Volume(kind, tmp_path).make()
    error = ["error-pwrite=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={fault}"]
    with Device(tmp_path, ["--filter=error", "file", str(made.image), *error]) as device:
        with Volume(kind, tmp_path, device.file) as volume:
            yield volume.mount()


def work_until_it_fails(space: spool.Space) -> tuple[list[str], list[str], spool.SpoolError]:
    """Ids that were acknowledged, ids whose fate is unknown, and the error."""
    told: list[str] = []
    for n in range(100_000):
        try:
            told.append(space.put("q", b"%d" % n + b"x" * (n % 7 * 1000)))
        except spool.CommitUnknown as error:
            return told, list(error.ids), error
        except spool.SpoolError as error:
            return told, [], error
    raise AssertionError("no write ever failed")


def test_a_failed_flush_stops_all_processes_and_loses_no_acknowledged_message(volume: Volume, fault: Path) -> None:
    root = volume.path / "space"
    with spool.create(root, defaults=AT_ONCE) as space:
        space.create_queue("q")
    kept: list[str] = []
    for round_ in range(3):
        with spool.open(root) as space, spool.open(root) as bystander:
            kept += [space.put("q", b"%d" % n) for n in range(30)]
            fault.touch()
            told, unknown, error = work_until_it_fails(space)
            kept += told
            assert isinstance(error, spool.DiskFailure)
            refuse(space, bystander)
            fault.unlink()  # the device is well again, but these have seen it fail
            refuse(space, bystander)
        if round_ == 1 or not _writable(volume.path):
            mount_again(volume)
        kept += survivors(root, kept, unknown)
        mount_again(volume)
        assert survivors(root, kept, []) == []
    print(f"{volume.kind.name}: 3 faults, {len(kept)} acknowledged messages survived")


def refuse(*spaces: spool.Space) -> None:
    for space in spaces:
        for call in (lambda space: space.put("q", b"x"), lambda space: space.get("q")):
            with pytest.raises((spool.SpaceStopped, spool.DiskFailure)):
                call(space)


def survivors(root: Path, kept: list[str], unknown: list[str]) -> list[str]:
    """Open the space, expect all acknowledged messages in order, and return the messages of unknown outcome that exist
    too."""
    with spool.open(root) as space:
        found = [message.id for message in space.browse("q")]
        assert [one for one in found if one not in unknown] == kept
        assert space.check() == []
    return [one for one in found if one in unknown]


def mount_again(volume: Volume) -> None:
    """Mount the file system again with an empty page cache, as after a start of the machine."""
    volume.unmount()
    volume.mount()
    boot_anew(volume.path / "space")


def _writable(path: Path) -> bool:
    """An ext4 or xfs that could not write its journal is read-only, or gone, until it is mounted again."""
    try:
        (path / "probe").write_bytes(b"x")
        return True
    except OSError:
        return False
