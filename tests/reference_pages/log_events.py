"""docs/reference-log.md: the events of the log at WARNING or above."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.reference_pages.markdown import BACK, GENERATED, code, joined, table, wrapped

ROOT = Path(__file__).parents[2]
PACKAGES = ("spool", "xa", "recovery", "forwarder")
LEVELS = ("CRITICAL", "ERROR", "WARNING")


@dataclass(frozen=True, order=True)
class LogEvent:
    """A call of a logger. ``text``: the text with ``…`` for each value."""

    level: str
    text: str
    logger: str
    module: str


def page() -> str:
    return joined([
        "# Reference: the log",
        wrapped("Every event of the log at WARNING or above, for filters and alarms. [Operations]"
                f"(operations.md#log-lines) has the meaning of each event and the action. {BACK} {GENERATED}"),
        wrapped("`…` stands for names, numbers and reasons. A text without words is the name of an operation and an "
                "error, or an error alone."),
        table(["level", "text", "logger", "module"],
              [[one.level, code(one.text), code(one.logger), code(one.module)] for one in events()]),
    ]) + "\n"  # fmt: skip


def events() -> list[LogEvent]:
    """Return the events, the gravest first."""
    found = {event for package in PACKAGES for path in (ROOT / package).rglob("*.py") for event in _of_module(path)}
    return sorted((one for one in found if one.level in LEVELS), key=lambda one: (LEVELS.index(one.level), one))


def _of_module(path: Path) -> Iterator[LogEvent]:
    text_of_module = path.read_text(encoding="utf-8")
    if "log." not in text_of_module:  # (most modules: they need not be parsed)
        return
    for call in ast.walk(ast.parse(text_of_module)):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == "log"
        ):
            level = {"exception": "ERROR"}.get(call.func.attr, call.func.attr.upper())
            if level in LEVELS:
                text = call.args[0]
                assert isinstance(text, ast.Constant), f"{path}:{call.lineno}: the text of an event is a constant"
                shown = re.sub(r"%[-+.\d]*[a-z]", "…", str(text.value))
                yield LogEvent(level, shown, _logger(path), str(path.relative_to(ROOT)))


@cache
def _logger(path: Path) -> str:
    """Return the name of the logger ``log`` of a module, which may be another module's."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "log":
            assert isinstance(node.value, ast.Call)
            return str(ast.literal_eval(node.value.args[0]))
        if isinstance(node, ast.ImportFrom) and "log" in {one.name for one in node.names}:
            return _logger((ROOT / (node.module or "").replace(".", "/")).with_suffix(".py"))
    raise AssertionError(f"{path} has no logger")
