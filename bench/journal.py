"""Mount ext4 with a journal, which most users have, in a file on the measured disk, and unmount it at the end."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench.peers.base import Missing

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_CHUNK = bytes(1 << 20)


@contextmanager
def ext4_with_a_journal(directory: str, megabytes: int) -> Iterator[str]:
    """Yield the mount point; Missing if the mount fails. The file is filled before, so that no append extends it."""
    if os.geteuid() != 0:
        raise Missing("needs root, to mount a file as ext4 with a journal")
    if shutil.which("mkfs.ext4", path=_PATH) is None:
        raise Missing("needs mkfs.ext4: apt-get install e2fsprogs")
    image, mounted = f"{directory}/image", f"{directory}/journal"
    with open(image, "wb") as file:
        for _ in range(megabytes):
            file.write(_CHUNK)
        file.flush()
        os.fsync(file.fileno())
    os.mkdir(mounted)
    try:
        _run("mkfs.ext4", "-q", "-F", "-O", "has_journal", "-E", "nodiscard,lazy_itable_init=0", image)
        _run("mount", "-o", "loop", image, mounted)
        try:
            yield mounted
        finally:
            _unmount(mounted)
    finally:
        os.unlink(image)


def _unmount(mounted: str) -> None:
    """Unmount. If a failed case left a file open, the mount ends when the file is closed."""
    try:
        _run("umount", mounted)
    except Missing:
        _run("umount", "-l", mounted)


def _run(*command: str) -> None:
    done = subprocess.run(command, env={**os.environ, "PATH": _PATH}, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{command[0]} failed: {said[-1] if said else f'it ended with {done.returncode}'}")
