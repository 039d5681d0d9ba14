"""``python -m bench.walk``: through which modules of ``spool`` a put, a get and a transaction go.

Each step is done on a real space, in a directory of its own, under ``sys.setprofile``, some times over; the leanest
time is shown, so that what happens once in a while (a table that is read anew, a descriptor that is closed) is left
out. Counted are the calls of the caller's thread alone. Layers are those that pyproject.toml has import-linter prove.
"""

import argparse
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import spool
from spool.model.layout import CLAIM_FILES

ROOT = Path(__file__).parents[1]
_TIMES, _BODY = 20, b"b" * 1024
_FLUSHES = (os.fsync, os.fdatasync)


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


def traced(ready: Callable[[], Callable[[], object]]) -> Walk:
    """The leanest of some times, the first of which warm up. ``ready``, called before each, returns what to trace."""
    walks = []
    for _ in range(_TIMES):
        step, tracer = ready(), Tracer()
        sys.setprofile(tracer)
        try:
            step()
        finally:
            sys.setprofile(None)
        walks.append(tracer.walk)
    return min(walks, key=lambda walk: walk.frames + walk.c_calls)


def steps(space: spool.Space) -> dict[str, Callable[[], Callable[[], object]]]:
    def move() -> None:
        with space.transaction() as transaction:
            transaction.put("replies", transaction.get("orders").body)

    def begun() -> Callable[[], object]:
        transaction = space.transaction()
        transaction.put("replies", transaction.get("orders").body)
        return transaction.commit

    return {
        "put": lambda: partial(space.put, "orders", _BODY),
        "get": lambda: partial(space.get, "orders"),
        "transaction of a get and a put": lambda: move,
        "the commit of such a transaction": begun,
    }


def walks(directory: str, flush: Literal["auto", "ordered", "strict"] = "ordered") -> dict[str, Walk]:
    """By step, on a new space with a few messages."""
    with spool.create(f"{directory}/space", flush=flush) as space:
        for queue in ("orders", "replies"):
            space.create_queue(queue)
        for _ in range(CLAIM_FILES + 4 * _TIMES):
            space.put("orders", _BODY)
        for _ in range(CLAIM_FILES):
            space.get("orders")  # from each claim file once, which is opened then
        return {name: traced(ready) for name, ready in steps(space).items()}


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
