"""Ways to damage a file, each with a description and a function that changes a closed space."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from spool.model import layout

_SMALL_BYTES = 4 << 10
_JUNK = (b"\0", b"\xc4\x02hi", b"\0" * 5000)


class Damage(NamedTuple):
    """``kind``: the name under which the damage is counted. ``names``: the damaged files."""

    kind: str
    detail: str
    names: tuple[str, ...]
    do: Callable[[Path], object]

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}: {', '.join(self.names)}"


def _rewritten(kind: str, detail: object, name: str, data: bytes) -> Damage:
    return Damage(kind, str(detail), (name,), lambda root: (root / name).write_bytes(data))


def flips(name: str, data: bytes, bits: int, rng: random.Random) -> Iterator[Damage]:
    """``bits`` bits of each byte of a small file, one at a time; of a large one 256 bytes anywhere."""
    places = range(len(data)) if len(data) <= _SMALL_BYTES else sorted(rng.sample(range(len(data)), 256))
    for offset in places:
        for bit in rng.sample(range(8), bits):
            flipped = data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]
            yield _rewritten("flip", f"bit {bit} of byte {offset}", name, flipped)


def cuts(name: str, data: bytes, rng: random.Random) -> Iterator[Damage]:
    """Every shorter length of a small file."""
    lengths = range(len(data)) if len(data) <= _SMALL_BYTES else sorted(rng.sample(range(len(data)), 64))
    for length in lengths:
        yield _rewritten("cut", f"to {length}", name, data[:length])


def extensions(name: str, data: bytes) -> Iterator[Damage]:
    """Longer than it should be: junk, and itself again."""
    for junk in (*_JUNK, data):
        yield _rewritten("extend", f"by {len(junk)}", name, data + junk)


def blocks(name: str, data: bytes, rng: random.Random) -> Iterator[Damage]:
    """Zeros or noise for a piece of it: a block, half of it, all of it."""
    for size in sorted({len(data), len(data) // 2, 64, 512, 4096}):
        for start in range(0, len(data), max(size, 1)) if size else ():
            piece = len(data[start : start + size])
            for kind, new in (("zero", bytes(piece)), ("noise", rng.randbytes(piece))):
                yield _rewritten(kind, f"{start} to {start + piece}", name, data[:start] + new + data[start + piece :])


def replacements(name: str) -> Iterator[Damage]:
    """Something else under its name, or nothing."""

    def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
        def do(root: Path) -> None:
            (root / name).unlink()
            make(root / name)

        return do

    def full_directory(path: Path) -> None:
        path.mkdir()
        (path / "inside").write_bytes(b"x")

    makers: dict[str, Callable[[Path], object]] = {
        "nothing": lambda path: None,
        "empty file": lambda path: path.touch(),
        "directory": lambda path: path.mkdir(),
        "full directory": full_directory,
        "dangling symlink": lambda path: path.symlink_to("nowhere"),
        "symlink to the settings": lambda path: path.symlink_to(path.parents[name.count("/")] / layout.SETTINGS),
        "fifo": os.mkfifo,
    }
    for kind, make in makers.items():
        yield Damage("replace", f"by {kind}", (name,), instead(make))


def swaps(name: str, others: list[str]) -> Iterator[Damage]:
    """Two files' names."""

    def swap(other: str) -> Callable[[Path], object]:
        def do(root: Path) -> None:
            (root / name).rename(root / "swapping")
            (root / other).rename(root / name)
            (root / "swapping").rename(root / other)

        return do

    for other in others:
        yield Damage("swap", "", (name, other), swap(other))


def copies(name: str, targets: list[str]) -> Iterator[Damage]:
    """The file under a second name, or over another file."""
    for target in targets:
        yield Damage(
            "duplicate",
            f"of {name}",
            (target,),
            lambda root, target=target: shutil.copyfile(root / name, root / target),
        )
