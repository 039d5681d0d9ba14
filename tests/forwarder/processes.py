"""The processes that a program has started by Spark, and those that have a space open."""

import os
import time
from contextlib import suppress
from pathlib import Path


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the program's name of each process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                name, rest = (entry / "stat").read_text().partition("(")[2].rsplit(")", 1)
                state, parent = rest.split()[:2]
                if state != "Z":
                    found[int(entry.name)] = int(parent), name
    return found


def processes_of(program: int, space: Path) -> list[int]:
    """A program and all that it has started, and what holds locks in the space for it: no children of it."""
    tree = processes()
    found = [program]
    for process in found:
        found += [child for child, (parent, _) in tree.items() if parent == process]
    return found + [process for process in tree if process not in found and has_open(process, space)]


def kinds(driver: int) -> dict[str, list[int]]:
    """The processes of a driver by kind: itself, its Java, that of its executors, the Python daemons, their workers.

    With a ``local`` master there are no executors: the driver's Java does what they do, and has the daemon.
    """
    tree = processes()

    def children(parents: list[int], *, of_java: bool) -> list[int]:
        return [child for child, (parent, name) in tree.items() if parent in parents and (name == "java") == of_java]

    java = children([driver], of_java=True)
    executors = children(java, of_java=True)
    daemons = children([*java, *executors], of_java=False)
    workers = children(daemons, of_java=False)
    alive = [driver] if driver in tree else []
    return {"driver": alive, "java": java, "executor": executors, "daemon": daemons, "worker": workers}


def has_open(process: int, space: Path) -> bool:
    with suppress(OSError):
        return (
            any(os.readlink(entry).startswith(str(space)) for entry in Path(f"/proc/{process}/fd").iterdir())
            and process != os.getpid()
        )
    return False


def wait_until_left(space: Path, seconds: float = 60.0) -> None:
    """Wait until no other process has the space open: those of a killed driver end by themselves."""
    end = time.monotonic() + seconds
    while any(has_open(process, space) for process in processes()):
        assert time.monotonic() < end, "a process of a killed driver stays"
        time.sleep(0.05)
