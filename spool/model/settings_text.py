"""The text of a ``space.toml`` with thousands of queues. Only the changed queues are read or edited.

In most files, each queue is a table ``[queues.NAME]`` without further tables, and all these tables come last. A text of
this form is *plain*: it has a head, and then one block for each queue. So one block can be read and edited without the
others. ``settings_file`` reads and edits any other text as a whole. The settings and errors are the same for both kinds
of text.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from spool.errors import InvalidArgument, NewerFormat
from spool.model.settings import QueueConfig, SpaceConfig, check_queue_name, named, queue_config, with_queues
from spool.model.settings_file import MAX_LINE, parse, set_options, values_of

_BEGIN = "\n[queues."
_QUEUE = re.compile(r'^\[queues\.(?:"([^"\\\n]{1,200})"|([A-Za-z0-9_-]{1,200}))\][ \t]*(?:#.*)?$', re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[.*$", re.MULTILINE)
_SEVERAL_LINES = ('"""', "'''")  # a value of several lines may have lines that look like table headers


class _Block(NamedTuple):
    """The lines of one queue: ``text[begin:end]``. ``body``: the lines after the header."""

    name: str
    begin: int
    body: int
    end: int


def _blocks(text: str, begin: int = 0) -> list[_Block] | None:
    """Return the blocks of the queues in a text, from ``begin`` on; None if the text has other tables after
    ``begin``."""
    found: list[_Block] = []
    for table in _TABLE.finditer(text, begin):
        queue = _QUEUE.match(text, table.start())
        if queue is None or queue.end() != table.end():
            return None
        if found:
            found[-1] = found[-1]._replace(end=table.start())
        found.append(_Block(queue[1] or queue[2], table.start(), table.end(), len(text)))
    return found


class _Read(NamedTuple):
    """A text, and its settings. ``is_plain``: whether the text is plain."""

    text: str
    config: SpaceConfig
    is_plain: bool


class SettingsParser:
    """Parses successive versions of one file's text. Equal queues share the values of their options. Unchanged queues
    keep their ``QueueConfig``. Any thread may parse."""

    def __init__(self) -> None:
        self._read: _Read | None = None

    def parse(self, text: str, name: str) -> SpaceConfig:
        """Return the settings in a text, with the errors of ``settings_file.parse``."""
        read = self._read
        if read is None or text != read.text:
            try:
                read = (read and _followed(read, text)) or _whole(text, name)
            except (InvalidArgument, NewerFormat, ValueError, RecursionError):
                read = None  # a parse of the whole text raises the exact error
            read = read or _Read(text, parse(text, name), is_plain=False)
            self._read = read
        return read.config


def _whole(text: str, name: str) -> _Read | None:
    """Read a plain text block by block; return None for any other text."""
    first = _QUEUE.search(text)
    if first is None or any(quotes in text for quotes in _SEVERAL_LINES):
        return None
    blocks = _blocks(text, first.start())
    head = parse(text[: first.start()], name)
    queues = None if blocks is None or head.queues else _queues(text, blocks, head, name)
    return None if queues is None else _Read(text, replace(head, queues=queues), is_plain=True)


def _followed(read: _Read, text: str) -> _Read | None:
    """Read the blocks that have changed since the last read. Return None if the whole text must be read."""
    old = read.text
    if not read.is_plain:
        return None
    same = _same_length(old, text)
    if not (begin := old.rfind(_BEGIN, 0, same) + 1):
        return None
    end_of_both = _same_length(old[begin:], text[begin:], from_end=True)
    after = text.find(_BEGIN, len(text) - end_of_both)
    end = len(text) if after < 0 else after + 1
    was, now = old[begin : len(old) - (len(text) - end)], text[begin:end]
    if any(quotes in now for quotes in _SEVERAL_LINES):
        return None
    blocks, before = _blocks(now), {block.name for block in _blocks(was) or ()}
    queues = None if blocks is None else _queues(now, blocks, read.config, "")
    if queues is None or any(name in read.config.queues and name not in before for name in queues):
        return None
    return _Read(text, with_queues(read.config, queues, before.difference(queues)), is_plain=True)


def _queues(text: str, blocks: Collection[_Block], head: SpaceConfig, where: str) -> dict[str, QueueConfig] | None:
    """Return the queues of these blocks; None if two blocks have the same name. ``head``: the settings of the space."""
    queues: dict[str, QueueConfig] = {}
    alike: dict[str, QueueConfig] = {}
    for name, _, begin, end in blocks:
        body = text[begin:end]
        known = alike.get(body)
        if known is not None and name not in (known.error_queue, head.defaults.get("error_queue")):
            queues[name] = named(known, check_queue_name(name))
            continue
        if len(body) > MAX_LINE and any(len(line) > MAX_LINE for line in body.splitlines()):
            return None
        queues[name] = queue_config(name, values_of(tomllib.loads(body)), where, head.defaults)
        if queues[name].error_queue is not None or "error_queue" not in head.defaults:
            alike.setdefault(body, queues[name])
    return queues if len(queues) == len(blocks) else None


def _same_length(one: str, other: str, *, from_end: bool = False) -> int:
    """Return how many characters two texts have in common at the beginning, or at the end."""
    low, high = 0, min(len(one), len(other))
    if not from_end and other.startswith(one):  # most often, a queue was added at the end
        return high
    while low < high:
        middle = (low + high + 1) // 2
        same = one.endswith(other[len(other) - middle :]) if from_end else one.startswith(other[:middle])
        low, high = (middle, high) if same else (low, middle - 1)
    return low


# -- edits -------------------------------------------------------------------------------------------------------------


def edited(
    text: str, known: SpaceConfig, changed: Mapping[str, QueueConfig], removed: Collection[str] = ()
) -> str | None:
    """Return the text with some queues added, changed or removed. Comments are kept.

    The result is right only if the text is plain. So the caller parses the result, compares the settings, and for any
    other text uses ``settings_file.edited``. Return None if the text is certainly not plain.

    Args:
        known: the settings in the text.
    """
    found: str | None = text
    for name, config in changed.items():
        if found is not None and name in known.queues:
            found = _changed_block(found, config, known.defaults)
    for name in removed:
        found = None if found is None else _without_block(found, name)
    new = {name: config for name, config in changed.items() if name not in known.queues}
    return _with_blocks(found, new, known.defaults) if found is not None and new else found


def _with_blocks(text: str, configs: Mapping[str, QueueConfig], defaults: Mapping[str, Any]) -> str:
    """Return the text with these queues added at its end."""
    bodies: dict[str, str] = {}
    parts = [text, "" if text.endswith("\n") else "\n"]
    for name, config in configs.items():
        alike = repr(named(config, ""))
        if alike not in bodies:
            bodies[alike] = _body(config, defaults)
        quoted = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
        parts += [f"\n[queues.{quoted}]\n", bodies[alike]]
    return "".join(parts)


def _changed_block(text: str, config: QueueConfig, defaults: Mapping[str, Any]) -> str | None:
    """Return the text with the changed options of one queue, or None if the queue has no block. Comments are kept."""
    import tomlkit

    if (block := _find(text, config.name)) is None:
        return None
    table = tomlkit.parse(text[block.body : block.end])
    set_options(table, config, defaults)
    body = tomlkit.dumps(table)
    return text[: block.body] + ("" if body.startswith("\n") else "\n") + body + text[block.end :]


def _without_block(text: str, name: str) -> str | None:
    """Return the text without a queue's block, or None if the queue has no block. Comments after the queue's options
    are kept, because they may belong to the next queue."""
    if (block := _find(text, name)) is None:
        return None
    lines = text[block.body : block.end].splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()
    return text[: block.begin] + text[block.body + sum(map(len, lines)) :].removeprefix("\n")


def _find(text: str, name: str) -> _Block | None:
    """Return the block of a queue. The end of the block is right only if the text is plain; the caller checks the
    edited text."""
    begin = 0
    for header in (f"[queues.{name}]", f'[queues."{name}"]'):
        while (begin := text.find(f"\n{header}", begin) + 1) > 0:
            if (queue := _QUEUE.match(text, begin)) is not None:
                after = _TABLE.search(text, queue.end())
                return _Block(name, begin, queue.end(), len(text) if after is None else after.start())
    return None


def _body(config: QueueConfig, defaults: Mapping[str, Any]) -> str:
    import tomlkit

    table = tomlkit.document()
    set_options(table, config, defaults)
    return tomlkit.dumps(table)
