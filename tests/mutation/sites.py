"""Every call of the engine that flushes, locks, verifies or looks again, found in the syntax tree; and the source
without it.

A call is *left out* by the value that it would return: True for a lock, the old counters for a read.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("spool", "xa", "recovery", "forwarder")

# The value that replaces a call, by the called name: the result of a call that found nothing.
# {receiver} is the text before the dot, {first}, {second} and {last} are arguments.
_NOTHING = "None"
_COUNTERS = "{first}.shared.counters.read()"
_HELD = "(not {receiver}._held.setdefault({first}))"
_STAND_INS = {
    name: value
    for value, names in (
        # flushes, verifications, and looks again
        (_NOTHING, "flush flush_directory make_durable flush_commit flush_vote flush_arrivals"),
        (_NOTHING, "verify _verify _prove _check_coordinator"),
        (_NOTHING, "revalidate catch_up apply_up_to retract refresh look_at_standing cancel_of_dead settle"),
        (_COUNTERS, "settle_all settle_to list_prepared"),
        # locks, and looks at locks
        (_HELD, "lock try_lock"),
        ("__import__('contextlib').nullcontext()", "number_locked holding"),
        ("__import__('contextlib').nullcontext(True)", "trying exclusively"),
        # results of verifications and looks
        ("True", "flush_all flock lock_xid_now is_free is_branch_file same_file"),
        ("False", "is_owner_dead has_writer _has_writer _is_captured defers_removal may_address"),
    )
    for name in names.split()
} | {
    "with_number_lock": "{first}._held.setdefault(0)",
    "check_usable": "{receiver}.shared.counters.read()",
    "prove": "__import__('spool.format.reader').format.reader.read_contents({first}, {second})",
    "bad_bodies": "()",
    "highest_number": "{second}.issued",
    "finish_dead_writers": "{second}",
    "current": "{receiver}.known",  # settings
    "taken_numbers": "[]",
}
# The values that replace comparisons which verify a content or its file's name, and comparisons of counters that are
# read again.
_PROOFS = ("crc", "checksum", "_word(", ".links", "header.number", "found == number")
_COMPARED = {ast.Eq: "True", ast.NotEq: "False"}
_COUNTED = {ast.GtE: "False", ast.Lt: "False"}


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
    """Return all sites in the order of files and lines."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return [site for path in paths for site in sites_of(path.read_text(), path.relative_to(root).as_posix())]


def sites_of(source: str, path: str) -> list[Site]:
    starts = _line_starts(source)
    seen: Counter[str] = Counter()
    found = []
    for call, where in _calls(ast.parse(source), ""):
        stand_in = _stand_in(call) if isinstance(call, ast.Call) else _without_comparison(call)
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


def _calls(node: ast.AST, where: str) -> Iterator[tuple[ast.Call | ast.Compare, str]]:
    """(call or comparison, the function and class around it)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _calls(child, f"{where}.{child.name}" if where else child.name)
        else:
            if isinstance(child, (ast.Call, ast.Compare)):
                yield child, where
            yield from _calls(child, where)


def _stand_in(call: ast.Call) -> str | None:
    value = _value_without(call)
    if value is not None and any(isinstance(n, ast.Call) and _name(n)[0] in _STAND_INS for n in _inside(call)):
        return f"(({', '.join(map(ast.unparse, call.args))},), {value})[1]"  # calls in its arguments are still made
    return value


def _name(call: ast.Call) -> tuple[str, str]:
    """The called name, and the receiver before the dot."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, ast.unparse(call.func.value)
    return (call.func.id if isinstance(call.func, ast.Name) else ""), ""


def _inside(call: ast.Call) -> Iterator[ast.AST]:
    for argument in call.args:
        yield from ast.walk(argument)


def _value_without(call: ast.Call) -> str | None:
    """The value that a caller gets for a call that is left out."""
    name, receiver = _name(call)
    if name == "check" and ("counters.read()" in receiver or receiver == "page"):
        return f"({receiver})"  # of the flag that says that a flush failed
    if name in ("is_held_elsewhere", "claims_elsewhere"):
        return "False" if call.args else "[]"
    if name in ("_still_needed", "_still_there"):
        return ast.unparse(call.args[-1]) if name == "_still_there" else "True"  # the locked messages
    pattern = _STAND_INS.get(name)
    if pattern is None or (name == "lock" and receiver.endswith("_mutex")):
        return None
    if name == "lock" and receiver.endswith("disk"):
        return "True"  # the seam's own call says whether it got the range
    if receiver == "kernel":
        return None  # below the seam: the seam's own calls are looked at
    if "{second}" in pattern and len(call.args) < 2:
        return None  # something else of that name
    first, second = [*map(ast.unparse, call.args), "", ""][:2]
    return pattern.format(receiver=receiver, first=first, second=second)


def _without_comparison(one: ast.Compare) -> str | None:
    if len(one.ops) != 1:
        return None
    text, kind = ast.unparse(one), type(one.ops[0])
    stand_in = _COMPARED.get(kind) if any(proof in text for proof in _PROOFS) else None
    if text.endswith("header.number == -1"):
        stand_in = "False"  # the number that says that the number is damaged
    if stand_in is None and "counters.read()" in text:
        stand_in = _COUNTED.get(kind)
    return stand_in and f"(({ast.unparse(one.left)}, {ast.unparse(one.comparators[0])}), {stand_in})[1]"
