"""A process counts as alive while it holds a lock. The claims of a dead process are released even if its pid belongs to
another process by now. The claims of a live process remain even if no process can see its pid."""

import subprocess
import sys
from pathlib import Path

import pytest

import spool
from tests.spaces import path_with

pytestmark = pytest.mark.root

HOLDER = """
import os, sys, spool
space = spool.open(sys.argv[1])
transaction = space.transaction(timeout=None)
message = transaction.get("a")
print(os.getpid(), message.body, message.attempts, flush=True)
if sys.stdin.readline():
    transaction.commit()
space.close()
"""

# This program runs in a separate pid namespace, where it can choose the next pid. It prints the messages that two
# holders of one pid got, and the messages that other processes can get while the second holder lives.
FAMILY = f"""
import subprocess, sys, spool

def holder(pid):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    child = subprocess.Popen([sys.executable, "-c", {HOLDER!r}, sys.argv[1]], stdin=-1, stdout=-1, text=True)
    print(child.stdout.readline().strip())
    return child

with spool.open(sys.argv[1]) as space:  # so that no opener is alone, and recovers
    first = holder(300)
    first.kill()
    first.wait()
    second = holder(300)
    print(*(message.body for message in space.get_many("a", 9)))
    second.communicate("go on\\n")
    try:
        space.get("a")
    except spool.Empty:
        print("empty")
"""


root = path_with("a", messages={"a": ["one", "two"]})


def in_a_pid_namespace(program: str, root: Path) -> list[str]:
    """Return the command that runs the program in a pid namespace; skip the test if pid namespaces are not allowed."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("pid namespaces are not allowed here")
    return [*command, sys.executable, "-c", program, str(root)]


def test_the_claims_of_a_dead_process_are_buried_although_its_pid_lives(root: Path) -> None:
    found = subprocess.run(in_a_pid_namespace(FAMILY, root), capture_output=True, text=True, check=False)
    assert found.stderr == ""
    assert found.stdout.splitlines() == ["300 one 0", "300 one 1", "two", "empty"]


def test_a_live_process_whose_pid_means_another_here_keeps_its_claims(root: Path) -> None:
    command = in_a_pid_namespace(HOLDER, root)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid, body, _ = holder.stdout.readline().split()
        assert (int(pid) < 10, body) == (True, "one"), "it is 1 or so there, which is somebody else here"
        with spool.open(root) as space:
            assert not space.recovery.alone
            assert [message.body for message in space.get_many("a", 9)] == ["two"]
            with pytest.raises(spool.Empty):
                space.get("a")
            holder.kill()
            holder.wait()
            assert (message := space.get("a", timeout=10)).body == "one"
            assert message.attempts == 1
