"""Every call of the engine that flushes, locks, verifies or looks again, found in the syntax tree; and the source
without it.

A call is *left out* by what its caller would see if it had been made: a lock that was taken, counters that were read.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("spool", "xa", "recovery", "forwarder")

# What stands for a call, by the called name; {receiver} is what stands before the dot, {first} the first argument.
_NOTHING = "None"
_COUNTERS = "{first}.counters.read()"
_HELD = "(not {receiver}._held.add({first}))"
_STAND_INS = {
    "flush": _NOTHING,
    "flush_directory": _NOTHING,
    "make_durable": _NOTHING,
    "verify": _NOTHING,
    "_verify": _NOTHING,
    "look_again": _NOTHING,
    "catch_up": _NOTHING,
    "_lock_xid": _NOTHING,
    "settle_all": _COUNTERS,
    "settle_to": _COUNTERS,
    "list_prepared": _COUNTERS,
    "lock": _HELD,
    "try_lock": _HELD,
    "hold": "True",
    "lock_xid_now": "True",
    "with_number_lock": "{first}.control._held.add(0)",
}


class Site(NamedTuple):
    """One call. ``name`` says where it is in words that survive edits elsewhere in the file."""

    name: str
    path: str
    line: int
    start: int
    end: int
    stand_in: str

    def left_out(self, source: str) -> str:
        """The file's source without the call."""
        raw = source.encode()
        return (raw[: self.start] + self.stand_in.encode() + raw[self.end :]).decode()


def all_sites(root: Path) -> list[Site]:
    """In the order of the files and the lines."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return [site for path in paths for site in sites_of(path.read_text(), path.relative_to(root).as_posix())]


def sites_of(source: str, path: str) -> list[Site]:
    starts = _line_starts(source)
    seen: Counter[str] = Counter()
    found = []
    for call, where in _calls(ast.parse(source), ""):
        stand_in = _stand_in(call)
        if stand_in is None:
            continue
        name = f"{path} {where}: {ast.unparse(call)}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" #{seen[name]}"
        start = starts[call.lineno - 1] + call.col_offset
        assert call.end_lineno is not None
        assert call.end_col_offset is not None
        end = starts[call.end_lineno - 1] + call.end_col_offset
        found.append(Site(name, path, call.lineno, start, end, stand_in))
    return found


def _line_starts(source: str) -> list[int]:
    """The offset of each line in bytes, which is how the syntax tree counts columns."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _calls(node: ast.AST, where: str) -> Iterator[tuple[ast.Call, str]]:
    """(call, the function and class around it)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _calls(child, f"{where}.{child.name}" if where else child.name)
        else:
            if isinstance(child, ast.Call):
                yield child, where
            yield from _calls(child, where)


def _stand_in(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        name, receiver = call.func.attr, ast.unparse(call.func.value)
    elif isinstance(call.func, ast.Name):
        name, receiver = call.func.id, ""
    else:
        return None
    pattern = _STAND_INS.get(name)
    if pattern is None or (name == "lock" and receiver.endswith("_mutex")):
        return None
    if name == "lock" and receiver.endswith("disk"):
        return "True"  # the seam's own call says whether it got the range
    first = ast.unparse(call.args[0]) if call.args else ""
    return pattern.format(receiver=receiver, first=first)
