"""``python -m bench.walk``: what a put, a get and a transaction go through: modules of ``spool``, and calls.

Each step is done on a real space, in a directory of its own, under ``sys.setprofile``, some times over; the median
is shown, so that what happens once in a while (a table that is read anew, a descriptor that is closed) is left out.
Where a step is one more call in a transaction, it is the mean of many, so that what comes once in a few such calls
is counted. Commits take recycled files, as they do in a space that has been in use for a while; nothing is done beside
them. Counted are the calls of the caller's thread alone. Layers are those that pyproject.toml has import-linter prove.
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
_CONSUMED = 400  # messages, whose files wait to be used again: more than the steps need
_FURTHER, _FURTHER_TIMES = 50, 4  # calls that one figure is the mean of, and how often they are made
_FLUSHES = (os.fsync, os.fdatasync)

Step = Callable[[], object]
Ready = Callable[[], AbstractContextManager[Step]]  # what prepares a step, and undoes it if need be


def layers() -> dict[str, int]:
    """By package or module directly under ``spool``: its layer, 0 the lowest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (staircase,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["spool"]]
    return {
        name.strip(): len(staircase) - 1 - place for place, line in enumerate(staircase) for name in line.split("|")
    }


@dataclass
class Walk:
    """What one step's calls came to."""

    frames: int = 0  # of Python, each resumption of a generator too
    c_calls: int = 0
    flush_depth: int = 0  # frames of Python on the stack at a flush, the deepest
    entered: Counter[str] = field(default_factory=Counter)  # modules of spool: how many calls each
    changes: int = 0  # calls of a function of another module of spool than the caller's
    climbs: Counter[str] = field(default_factory=Counter)  # of those, into a higher layer: "module -> module: function"
    calls: list[tuple[int, str]] = field(default_factory=list)  # functions of spool in order, with their depth

    def each(self, times: int) -> "Walk":
        """The mean, of a step that was many calls; the modules are those of all."""
        counts = {name: round(getattr(self, name) / times) for name in ("frames", "c_calls", "changes")}
        return replace(self, **counts, climbs=Counter({name: n // times for name, n in self.climbs.items()}))

    @property
    def packages(self) -> set[str]:
        return {module.partition(".")[0] for module in self.entered}


class Tracer:
    """A profile function. What calls it is the interpreter, so it must see the end of each frame that it saw begin."""

    def __init__(self) -> None:
        self.walk = Walk()
        self._layers = layers()
        self._stack: list[str | None] = []  # of each frame, the module of spool that is at work

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
        generated = frame.f_code.co_filename.startswith("<")  # by a dataclass, say: no code that a reader reads
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
    """The median of some times, the first of which warm up."""
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
    """What is counted, on a space that ``_fill`` filled."""

    def __init__(self, space: spool.Space) -> None:
        self.space = space
        self._manager = xa.ResourceManager(space)
        self._branches = 0

    @property
    def single(self) -> dict[str, Ready]:
        """By name, those that are one step."""
        return {
            "put": lambda: nullcontext(partial(self.space.put, "orders", _BODY)),
            "get": lambda: nullcontext(partial(self.space.get, "orders")),
            "transaction of a get and a put": lambda: nullcontext(self._move),
            "the commit of such a transaction": self._commit_of_a_move,
            "two-phase commit of a put, all five calls": self._two_phase,
        }

    @property
    def further(self) -> dict[str, Ready]:
        """Those that are many calls in a transaction which has had one already."""
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
    """Nothing is done beside the caller: what is counted depends on no other thread."""

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        return False


@contextmanager
def _unflushed(disk: Disk) -> Iterator[None]:
    """Meanwhile it flushes nothing: what the steps find is there sooner."""
    for name in ("flush", "flush_directory", "make_durable"):
        setattr(disk, name, lambda *_, **__: None)
    yield
    for name in ("flush", "flush_directory", "make_durable"):
        delattr(disk, name)


def walks(directory: str, flush: Literal["auto", "ordered", "strict"] = "ordered") -> dict[str, Walk]:
    """By step, on a new space with some messages."""
    path = f"{directory}/space"
    os.mkdir(path)
    with _unflushed(disk := _Alone(path)), spool.create(path, sync_method=flush, disk=disk) as space:
        for queue in ("orders", "replies", "together", "apart"):
            space.create_queue(queue)
        for _ in range(_CONSUMED):
            space.put("orders", _BODY)
        for _ in range(_CONSUMED):
            space.get("orders")
    # They were reclaimed when it was closed. What the steps take is put by the process that takes it.
    with spool.open(path, disk=(disk := _Alone(path))) as space:
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
        space.get("orders")  # from each claim file once, which is opened then
    for _ in range(_FURTHER_TIMES):
        space.put_many("together", [_BODY] * (1 + _FURTHER))
        for _ in range(1 + _FURTHER):
            space.put("apart", _BODY)


def table(found: dict[str, Walk]) -> str:
    """In Markdown, a row a step."""
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
