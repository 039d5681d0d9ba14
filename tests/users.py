"""Two users beside root: one that owns a space, and one that may only drop files. For tests that run as root."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.children import exit_code_of

OWNER, DROPPER, GROUP = 65534, 1234, 65534


@contextmanager
def acting_as(user: int, umask: int = 0o022) -> Iterator[None]:
    """Give this process the rights of that user, without capabilities, while the block runs."""
    before = os.geteuid()
    groups, group, mask = os.getgroups(), os.getegid(), os.umask(umask)
    _become(user, GROUP, [])
    try:
        yield
    finally:
        _become(before, group, groups)
        os.umask(mask)


def _become(user: int, group: int, groups: list[int]) -> None:
    os.seteuid(0)
    os.setgroups(groups)
    os.setegid(group)
    os.seteuid(user)


def in_a_process_of(user: int, act: Callable[[], object], umask: int = 0o022) -> None:
    """Call ``act`` in a separate process of the user until it ends, so that other threads of this process keep their
    rights."""

    def act_as_the_user() -> None:
        os.umask(umask)
        os.seteuid(0)
        os.setgroups([])
        os.setgid(GROUP)
        os.setuid(user)
        act()

    assert exit_code_of(act_as_the_user) == 0


@contextmanager
def directory_of(user: int) -> Iterator[Path]:
    """A new directory that others may pass."""
    path = Path(tempfile.mkdtemp(prefix="two-users-"))
    os.chmod(path, 0o755)
    os.chown(path, user, GROUP)
    try:
        yield path
    finally:
        shutil.rmtree(path)
