"""A block device that logs every write and flush with its time, and the contents of the device after a power cut.

nbdkit runs this file as its Python plugin (``serves=IMAGE log=LOG``): the device is an image, and the log is a separate
file. A write before the last flush survives. Of the writes after the last flush, any blocks of 4 KiB may survive.
"""

import builtins
import os
import random
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

API_VERSION = 2
_RECORD = struct.Struct("<cQQI?")  # kind, time in ns, offset, length, must it be durable at once (FUA)
_WRITE, _FLUSH = b"w", b"f"
_BLOCK = 4096

# -- the plugin -------------------------------------------------------------------------------------------------------

_settings: dict[str, str] = {}
_files: dict[str, int] = {}


def config(key: str, value: str) -> None:
    _settings[key] = value


def get_ready() -> None:
    _files["image"] = os.open(_settings["serves"], os.O_RDWR)
    _files["log"] = os.open(_settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def thread_model() -> int:
    import nbdkit  # type: ignore[import-not-found]

    return int(nbdkit.THREAD_MODEL_SERIALIZE_ALL_REQUESTS)


def open(readonly: bool) -> int:
    return 1


def get_size(handle: int) -> int:
    return os.fstat(_files["image"]).st_size


def can_fua(handle: int) -> int:
    import nbdkit

    return int(nbdkit.FUA_NATIVE)


def pread(handle: int, buffer: Any, offset: int, flags: int) -> None:
    os.preadv(_files["image"], [buffer], offset)


def pwrite(handle: int, buffer: Any, offset: int, flags: int) -> None:
    import nbdkit

    data = bytes(buffer)
    os.pwrite(_files["image"], data, offset)
    durable = bool(flags & nbdkit.FLAG_FUA)
    os.write(_files["log"], _RECORD.pack(_WRITE, time.monotonic_ns(), offset, len(data), durable) + data)


def flush(handle: int, flags: int) -> None:
    os.write(_files["log"], _RECORD.pack(_FLUSH, time.monotonic_ns(), 0, 0, True))


# -- the device after a power cut -------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """A write, or a flush (``data`` is None), that was done at ``at``."""

    at: int
    offset: int
    data: bytes | None
    durable: bool


def read(log: Path) -> list[Operation]:
    """All operations in their order."""
    return list(_operations(log.read_bytes()))


def _operations(data: bytes) -> Iterator[Operation]:
    place = 0
    while place < len(data):
        kind, at, offset, length, durable = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        yield Operation(at, offset, data[place : place + length] if kind == _WRITE else None, durable)
        place += length


def choose_cut(operations: Sequence[Operation], first: int, rng: random.Random) -> int:
    """Choose any operation from ``first`` on; half of the time one just before a flush, when the cut can lose most."""
    if rng.random() < 0.5:
        return rng.randrange(first, len(operations))
    return rng.choice([n - 1 for n in range(first + 1, len(operations)) if operations[n].data is None])


def survivor(image: Path, operations: Sequence[Operation], cut: int, rng: random.Random) -> int:
    """Change ``image``, a copy of the device before all operations, to the contents after a power cut after operation
    ``cut``.

    Return the number of writes that were lost or torn.
    """
    last_flush = max((n for n in range(cut + 1) if operations[n].data is None), default=-1)
    kept_odds = rng.choice((0.0, 0.3, 0.7, 1.0))
    damaged = 0
    with builtins.open(image, "r+b") as file:
        for n, operation in enumerate(operations[: cut + 1]):
            if operation.data is None:
                continue
            blocks = range(0, len(operation.data), _BLOCK)
            safe = n < last_flush or operation.durable
            kept = [block for block in blocks if safe or rng.random() < kept_odds]
            damaged += len(kept) < len(blocks)
            for block in kept:
                os.pwrite(file.fileno(), operation.data[block : block + _BLOCK], operation.offset + block)
    return damaged
