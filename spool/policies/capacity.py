"""Run the capacity command when a queue reaches its high mark, but not again before the queue falls to its low mark.

Before the command runs, a commit records durably the high mark that was reached. So another process, or this process
after a restart, does not run the command again for this mark. The command runs outside any commit, in a separate
thread; its failure is logged.
"""

import logging
import os
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from typing import BinaryIO, cast

from spool.disk import Disk
from spool.errors import SpoolError
from spool.log.engine_commit import commit_if
from spool.log.quota import Usage, prepared_usage, usage_of
from spool.log.visibility import catch_up, list_prepared
from spool.log.write_set import WriteSet
from spool.model.settings import QueueConfig, fullness, parse_mark
from spool.store.store import Store

log = logging.getLogger("spool")

_SHOWN_BYTES = 500


def check_marks(store: Store) -> None:
    """Record the queues that have reached a mark, and run the commands of queues that have reached the high mark."""
    catch_up(store, list_prepared(store))
    known = store.settings.known.config
    for config in map(known.queues.__getitem__, known.marked):
        is_high, usage = _crossing(store, config)
        if is_high is not None and _record(store, config, is_high) and is_high and config.capacity_command is not None:
            run_command(store.files.disk, config, usage)


def _crossing(store: Store, config: QueueConfig) -> tuple[bool | None, Usage]:
    """Compare the fill level of the queue with the recorded state. Return (change, usage).

    change: True if the queue has reached its high mark, False if it has fallen to its low mark, otherwise None.
    """
    assert config.capacity_high is not None
    high = parse_mark(config.capacity_high)
    low = parse_mark(config.capacity_low or config.capacity_high)
    with store.view.mutex:
        usage = usage_of(store.view, config.name, prepared_usage(store.view.prepared))
        was_high = store.view.index.facts.get(_fact_key(config.name), (0, None, None))[1] == config.capacity_high
    level = fullness(high.unit, usage.messages, usage.bytes, config.max_messages, config.max_bytes)
    is_high = level > low.amount or level >= high.amount if was_high else level >= high.amount
    return None if is_high is was_high else is_high, usage


def _record(store: Store, config: QueueConfig, is_high: bool) -> bool:
    """Record durably that the queue has reached a mark.

    Return False if another process has already recorded this, or if the queue is no longer at the mark.
    """
    fact = WriteSet().fact(_fact_key(config.name), config.capacity_high if is_high else None)
    return commit_if(store, fact, lambda: _crossing(store, config)[0] is is_high) is not None


def forget_mark(store: Store, queue: str, mark: str) -> None:
    """Forget that a queue has reached a mark that it has no longer. So the mark counts anew if it is set again."""
    key = _fact_key(queue)
    with suppress(OSError, SpoolError):  # (the change of the queue is done)
        commit_if(store, WriteSet().fact(key, None), lambda: store.view.index.facts.get(key, (0, None))[1] == mark)


def _fact_key(queue: str) -> str:
    return f"capacity:{queue}"


def run_command(disk: Disk, config: QueueConfig, usage: Usage) -> None:
    """Run the command in a separate thread, until it ends or its time is over, even after the space was closed.

    A root process runs the command as the owner of the space, because the owner may have written the command.
    """
    threading.Thread(target=_run, args=(disk.root, disk.owner, config, usage), name="xaspool capacity").start()


def _run(space: str, owner: tuple[int, int] | None, config: QueueConfig, usage: Usage) -> None:
    assert config.capacity_command is not None
    user, group = owner or (None, None)
    inherited = os.environ if owner is None else {"PATH": os.defpath}
    environment = {
        **inherited,
        "SPOOL_SPACE": space,
        "SPOOL_QUEUE": config.name,
        "SPOOL_MESSAGES": str(usage.messages),
        "SPOOL_BYTES": str(usage.bytes),
    }
    what = f"the capacity command of queue {config.name}"
    try:
        # The output goes to a file. So the output takes no memory, and the thread need not wait for children of the
        # command.
        with _scratch() as output:
            with subprocess.Popen(
                config.capacity_command, shell=True, env=environment, cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                user=user, group=group, extra_groups=None if owner is None else (),
            ) as child:  # fmt: skip
                try:
                    child.wait(config.capacity_timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)  # kill the command with all its children
                    log.warning("%s was ended: it took longer than %g s", what, config.capacity_timeout)
                    return
            if child.returncode:
                output.seek(max(0, output.seek(0, os.SEEK_END) - _SHOWN_BYTES))
                text = " ".join(output.read(_SHOWN_BYTES).decode("utf-8", "replace").split())
                log.warning("%s failed with exit status %d: %s", what, child.returncode, text or "no output")
    except OSError as error:
        log.warning("%s could not be run: %s", what, error)


def _scratch() -> BinaryIO:
    """Open a file without a name for the output. If the disk is full, the command runs, but its output is lost."""
    try:
        return cast("BinaryIO", tempfile.TemporaryFile())
    except OSError:
        return open(os.devnull, "r+b")
