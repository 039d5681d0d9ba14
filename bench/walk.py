"""``python -m bench.walk``: count the modules of ``spool`` and the calls in a put, a get and a transaction.

Each step runs several times on a real space in a separate directory, under ``sys.setprofile``. The table shows the
median, which leaves out occasional work, e.g. a table that is read again, or a descriptor that is closed. For a further
call in a transaction, the table shows the mean of many calls, which includes work that only some calls do. Commits use
recycled files, as in a space that has been in use for a while. Only the calls of the caller's thread are counted, and
no other thread works. pyproject.toml defines the layers, for import-linter.
"""

import argparse
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import spool
import xa
from spool.disk import Disk
from spool.model.layout import CLAIM_FILES

ROOT = Path(__file__).parents[1]
_TIMES, _BODY = 20, b"b" * 1024
_CONSUMED = 400  # the number of consumed messages, whose files can be used again: more than the steps need
_FURTHER, _FURTHER_TIMES = 50, 4  # the number of calls in one mean, and the repetitions
_FLUSHES = (os.fsync, os.fdatasync)

Step = Callable[[], object]
Ready = Callable[[], AbstractContextManager[Step]]  # prepares a step, and undoes it if necessary


def layers() -> dict[str, int]:
    """Return the layer of each package or module directly under ``spool``. The lowest layer is 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (staircase,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["spool"]]
    return {
        name.strip(): len(staircase) - 1 - place for place, line in enumerate(staircase) for name in line.split("|")
    }


@dataclass
class Walk:
    """The counts of one step."""

    frames: int = 0  # Python frames, including each resumption of a generator
    c_calls: int = 0
    flush_depth: int = 0  # the most Python frames on the stack at a flush
    entered: Counter[str] = field(default_factory=Counter)  # the number of calls into each module of spool
    changes: int = 0  # calls from one module of spool into another
    climbs: Counter[str] = field(default_factory=Counter)  # such calls to a higher layer: "module -> module: function"
    calls: list[tuple[int, str]] = field(default_factory=list)  # the functions of spool in order, each with its depth

    def each(self, times: int) -> "Walk":
        """Return the mean of a step with many calls. The modules are the modules of all calls."""
        counts = {name: round(getattr(self, name) / times) for name in ("frames", "c_calls", "changes")}
        return replace(self, **counts, climbs=Counter({name: n // times for name, n in self.climbs.items()}))

    @property
    def packages(self) -> set[str]:
        return {module.partition(".")[0] for module in self.entered}


class Tracer:
    """A profile function, which the interpreter calls at the beginning and at the end of each frame."""

    def __init__(self) -> None:
        self.walk = Walk()
        self._layers = layers()
        self._stack: list[str | None] = []  # for each frame, the module of spool to which it belongs

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._enter(frame)
        elif event == "return" and self._stack:
            self._stack.pop()
        elif event == "c_call" and self._stack:
            self.walk.c_calls += 1
            if argument in _FLUSHES:
                self.walk.flush_depth = max(self.walk.flush_depth, len(self._stack))

    def _enter(self, frame: FrameType) -> None:
        walk, caller = self.walk, self._stack[-1] if self._stack else None
        generated = frame.f_code.co_filename.startswith("<")  # e.g. by a dataclass, without source code
        name = "" if generated else frame.f_globals.get("__name__", "")
        module = name.removeprefix("spool.") if name.startswith("spool.") else None
        self._stack.append(module or caller)
        walk.frames += 1
        if module is None:
            return
        function = f"{module}: {frame.f_code.co_qualname}"
        walk.entered[module] += 1
        walk.calls.append((len(self._stack), function))
        if caller is not None and caller != module:
            walk.changes += 1
            if self._layer(module) > self._layer(caller):
                walk.climbs[f"{caller} -> {function}"] += 1

    def _layer(self, module: str) -> int:
        return self._layers[module.partition(".")[0]]


def traced(ready: Ready, times: int = _TIMES) -> Walk:
    """Return the median of several runs; the first runs warm up."""
    walks = []
    for _ in range(times):
        with ready() as step:
            tracer = Tracer()
            sys.setprofile(tracer)
            try:
                step()
            finally:
                sys.setprofile(None)
        walks.append(tracer.walk)
    return sorted(walks, key=lambda walk: walk.frames + walk.c_calls)[times // 2]


class Steps:
    """The counted steps, on a space with messages."""

    def __init__(self, space: spool.Space) -> None:
        self.space = space
        self._manager = xa.ResourceManager(space)
        self._branches = 0

    @property
    def single(self) -> dict[str, Ready]:
        """The single steps, by name."""
        return {
            "put": lambda: nullcontext(partial(self.space.put, "orders", _BODY)),
            "get": lambda: nullcontext(partial(self.space.get, "orders")),
            "transaction of a get and a put": lambda: nullcontext(self._move),
            "the commit of such a transaction": self._commit_of_a_move,
            "two-phase commit of a put, all five calls": self._two_phase,
        }

    @property
    def further(self) -> dict[str, Ready]:
        """The steps with many calls in a transaction, which has already had one call."""
        return {
            "each further put of a transaction": self._puts,
            "each further get of a transaction, of messages of one commit": partial(self._gets, "together"),
            "each further get of a transaction, of messages of a commit each": partial(self._gets, "apart"),
        }

    def _move(self) -> None:
        with self.space.transaction() as transaction:
            transaction.put("replies", transaction.get("orders").body)

    @contextmanager
    def _commit_of_a_move(self) -> Iterator[Step]:
        transaction = self.space.transaction()
        transaction.put("replies", transaction.get("orders").body)
        yield transaction.commit

    @contextmanager
    def _two_phase(self) -> Iterator[Step]:
        self._branches += 1
        manager, xid = self._manager, xa.Xid(7, b"%d" % self._branches, b"")

        def calls() -> None:
            manager.start(xid)
            self.space.put("orders", _BODY)
            manager.end(xid)
            manager.prepare(xid)
            manager.commit(xid)

        yield calls

    @contextmanager
    def _puts(self) -> Iterator[Step]:
        transaction = self.space.transaction()
        transaction.put("orders", _BODY)
        yield lambda: [transaction.put("orders", _BODY) for _ in range(_FURTHER)]
        transaction.rollback()

    @contextmanager
    def _gets(self, queue: str) -> Iterator[Step]:
        transaction = self.space.transaction()
        transaction.get(queue)
        yield lambda: [transaction.get(queue) for _ in range(_FURTHER)]
        transaction.commit()


class _Alone(Disk):
    """A disk without work in other threads, so the counts depend on no other thread."""

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        return False


@contextmanager
def _unflushed(disk: Disk) -> Iterator[None]:
    """Let the disk flush nothing during the block, so that the preparation takes less time."""
    for name in ("flush", "flush_directory", "make_durable"):
        setattr(disk, name, lambda *_, **__: None)
    yield
    for name in ("flush", "flush_directory", "make_durable"):
        delattr(disk, name)


def walks(directory: str, flush: Literal["auto", "ordered", "strict"] = "ordered") -> dict[str, Walk]:
    """Return the counts of each step, on a new space with some messages."""
    path = f"{directory}/space"
    os.mkdir(path)
    with _unflushed(disk := _Alone(path)), spool.create(disk, sync_method=flush) as space:
        for queue in ("orders", "replies", "together", "apart"):
            space.create_queue(queue)
        for _ in range(_CONSUMED):
            space.put("orders", _BODY)
        for _ in range(_CONSUMED):
            space.get("orders")
    # The close has reclaimed the consumed messages. This process itself puts the messages that the steps take.
    with spool.open(disk := _Alone(path)) as space:
        with _unflushed(disk):
            _fill(space)
        steps = Steps(space)
        found = {name: traced(ready) for name, ready in steps.single.items()}
        further = {name: traced(ready, _FURTHER_TIMES).each(_FURTHER) for name, ready in steps.further.items()}
    return found | further


def _fill(space: spool.Space) -> None:
    for _ in range(CLAIM_FILES + 4 * _TIMES):
        space.put("orders", _BODY)
    for _ in range(CLAIM_FILES):
        space.get("orders")  # take once from each claim file, which opens the file
    for _ in range(_FURTHER_TIMES):
        space.put_many("together", [_BODY] * (1 + _FURTHER))
        for _ in range(1 + _FURTHER):
            space.put("apart", _BODY)


def table(found: dict[str, Walk]) -> str:
    """Return a Markdown table with a row for each step."""
    lines = [
        "| step | modules entered | in packages | calls into another module | of those, up a layer | Python frames"
        " | C calls | frames at the flush |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, walk in found.items():
        numbers = [len(walk.entered), len(walk.packages), walk.changes, walk.climbs.total()]
        numbers += [walk.frames, walk.c_calls, walk.flush_depth]
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("--directory", help="on the disk to use; default: where temporary files go")
    parser.add_argument(
        "--flush", default="ordered", choices=["auto", "ordered", "strict"], help="as spool.create takes it (ordered)"
    )
    parser.add_argument("--modules", action="store_true", help="name the modules, and the calls up a layer")
    parser.add_argument("--calls", action="store_true", help="name every call of a function of spool, in order")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="xaspool-walk-", dir=asked.directory) as directory:
        found = walks(directory, asked.flush)
    print(table(found))
    for name, walk in found.items():
        if asked.modules:
            print(f"\n{name}: modules, and how many calls of each")
            print("".join(f"  {count:4}  {module}\n" for module, count in walk.entered.most_common()))
            print(f"{name}: calls up a layer")
            print("".join(f"  {count:4}  {call}\n" for call, count in walk.climbs.most_common()), end="")
        if asked.calls:
            print(f"\n{name}: calls")
            print("".join(f"{'  ' * depth}{call}\n" for depth, call in walk.calls), end="")


if __name__ == "__main__":
    main()
