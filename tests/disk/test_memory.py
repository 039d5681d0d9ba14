"""Memory that processes share: a word is stored once, because another process may change it after any instruction."""

import ctypes
import os
import signal

import pytest

from spool.disk.memory import Mapped

TRACE_ME, STEP = 0, 9  # of ptrace(2)
OURS, THEIRS = b"ours", b"them"
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_change_of_another_process_is_not_lost_behind_the_store_of_a_word() -> None:
    memory, changes = Mapped(-1, 4096), 0
    memory.store(8, bytes(4))  # (the first store takes more instructions)
    child = os.fork()
    if child == 0:
        libc.ptrace(TRACE_ME, 0, 0, 0)
        stop()
        memory.store(8, OURS)
        stop()
        os._exit(0)
    os.waitpid(child, 0)
    if libc.ptrace(STEP, child, 0, 0):
        pytest.skip("this process may not trace its children")
    while os.waitpid(child, 0)[1] >> 8 == signal.SIGTRAP:
        if memory[8:12] == OURS:
            memory.store(8, THEIRS)
            changes += 1
        libc.ptrace(STEP, child, 0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert (memory[8:12], changes) == (THEIRS, 1)
