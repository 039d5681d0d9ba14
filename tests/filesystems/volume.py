"""A real file system in a file, on a loop device: made, mounted, cut off, mounted again, and always taken down."""

import fcntl
import gc
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

_GOING_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are _IOR('X', 125, __u32)
_WITHOUT_FLUSHING_THE_LOG = struct.pack("I", 2)
_BOOT_BYTES = 64


class Kind(NamedTuple):
    """How a file system is made and mounted. Timers are put off, so that nothing gets durable by chance."""

    name: str
    make: Sequence[str]
    megabytes: int
    options: str
    ordered: bool
    mend: Sequence[str] = ()


EXT4 = Kind("ext4", ("mkfs.ext4", "-q", "-F"), 64, "commit=600", ordered=True)
EXT4_WITHOUT_JOURNAL = Kind(
    "ext4 without a journal", ("mkfs.ext4", "-q", "-F", "-O", "^has_journal"), 64, "rw", ordered=False,
    mend=("e2fsck", "-fy"),
)  # fmt: skip
XFS = Kind("xfs", ("mkfs.xfs", "-q", "-f"), 320, "rw", ordered=True)
BTRFS = Kind("btrfs", ("mkfs.btrfs", "-q", "-f"), 160, "commit=300", ordered=True)
KINDS = {kind.name: kind for kind in (EXT4, EXT4_WITHOUT_JOURNAL, XFS, BTRFS)}


def missing(*programs: str) -> str:
    """Return the reason that a test cannot run here, or ''."""
    absent = [program for program in programs if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed"
    return "" if os.path.exists("/dev/loop-control") else "needs loop devices, which this machine does not have"


_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def run(*command: str, allowed: Sequence[int] = (0,)) -> str:
    """Run a command and return its output; raise AssertionError with the output if the command failed."""
    done = subprocess.run(command, env={**os.environ, "PATH": _PATH}, capture_output=True, text=True)
    assert done.returncode in allowed, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


class Volume:
    """A mounted file system. ``image``: the file that it lies in; anything else that can be looped will do."""

    def __init__(self, kind: Kind, directory: Path, image: Path | None = None) -> None:
        self.kind = kind
        self.image = image or directory / "image"
        self.path = directory / "mounted"
        self.mounted = False
        self.path.mkdir(parents=True, exist_ok=True)

    def make(self, megabytes: int | None = None) -> Self:
        """A new, empty one."""
        with self.image.open("wb") as file:
            file.truncate((megabytes or self.kind.megabytes) << 20)
        run(*self.kind.make, str(self.image))
        return self

    def mount(self, *options: str) -> Self:
        run("mount", "-o", ",".join(("loop", self.kind.options, *options)), str(self.image), str(self.path))
        self.mounted = True
        return self

    def unmount(self) -> None:
        gc.collect()  # (a mapping in a circle of references would keep the file system busy)
        run("umount", str(self.path))
        self.mounted = False

    def cut(self) -> None:
        """From now on nothing reaches the device any more, as if the power had gone (ext4 and xfs only)."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _GOING_DOWN, _WITHOUT_FLUSHING_THE_LOG)
        finally:
            os.close(handle)

    def mend(self) -> None:
        """Repair a file system without a journal, as a machine does at its start before it mounts the file system."""
        if self.kind.mend:
            run(*self.kind.mend, str(self.image), allowed=(0, 1))

    def writes(self) -> int:
        """Return the number of writes that the device got so far."""
        device = Path(run("findmnt", "-no", "SOURCE", str(self.path)).strip()).name
        return int((Path("/sys/block") / device / "stat").read_text().split()[4])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], env={**os.environ, "PATH": _PATH}, capture_output=True)


def boot_anew(space: Path) -> None:
    """Write another boot id into ``run/``, because a simulated power cut does not change the machine's boot id."""
    try:
        handle = os.open(space / "run" / "counters", os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        if os.fstat(handle).st_size >= _BOOT_BYTES:
            os.pwrite(handle, b"another boot".ljust(_BOOT_BYTES, b"\0"), 0)
    finally:
        os.close(handle)
