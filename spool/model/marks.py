"""Marks of how full a queue is: ``80%``, ``5000 messages``, ``1 GiB``. Pure.

At the high mark a command runs, once: not again before the low mark was reached.
"""

import re
from typing import NamedTuple

PERCENT, MESSAGES, BYTES = "%", "messages", "bytes"
_MARK = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z%]+)")
_UNITS = {
    "%": (PERCENT, 1), "message": (MESSAGES, 1), "messages": (MESSAGES, 1), "byte": (BYTES, 1), "bytes": (BYTES, 1),
    "B": (BYTES, 1), "kB": (BYTES, 10**3), "MB": (BYTES, 10**6), "GB": (BYTES, 10**9), "TB": (BYTES, 10**12),
    "KiB": (BYTES, 2**10), "MiB": (BYTES, 2**20), "GiB": (BYTES, 2**30), "TiB": (BYTES, 2**40),
}  # fmt: skip


class Mark(NamedTuple):
    """So much of a queue's limit, so many messages, or so many bytes of bodies."""

    amount: float
    unit: str


def parse_mark(text: object) -> Mark:
    """ValueError if it is none."""
    found = _MARK.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2] not in _UNITS:
        raise ValueError(text)
    unit, factor = _UNITS[found[2]]
    amount = float(found[1]) * factor
    if unit == PERCENT and not 0 <= amount <= 100:
        raise ValueError(text)
    return Mark(amount, unit)


def fullness(unit: str, messages: int, size: int, max_messages: int | None, max_bytes: int | None) -> float:
    """How full a queue is, in the unit of a mark; in percent, of the limit that is nearer."""
    if unit == MESSAGES:
        return messages
    if unit == BYTES:
        return size
    shares = [
        100.0 * there / limit if limit else 100.0
        for there, limit in ((messages, max_messages), (size, max_bytes))
        if limit is not None
    ]
    return max(shares, default=0.0)
