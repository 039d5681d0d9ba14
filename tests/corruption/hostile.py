"""Valid bytes made hostile: any value inside replaced, left out or doubled, and every checksum made right again."""

import copy
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import strategies as st

from spool.format.header import SectionEntry, header_checksum, stamp
from tests.golden import make

GOLDEN = {path.name: path.read_bytes() for path in sorted(Path(make.__file__).parent.glob("*.msgpack"))}
_FIXED_BYTES = 73  # docs/format.md, "Header": the fields after these have no fixed place

# Values that claim more than they hold, or nest without end.
BOMBS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "bin": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x05",
    "arrays in arrays": b"\x91" * 100_000,
    "maps in maps": b"\x81\xa0" * 100_000,
    "long arrays in arrays": b"\xdd\x00\x0f\xff\xff" * 500,
    "long maps in maps": b"\xdf\x00\x0f\xff\xff\xa0" * 500,
    "array that ends early": b"\xdd\x7f\xff\xff\xff" + bytes(1000),
}

EDGES: list[Any] = [
    0, 1, -1, 2**16, 2**24, 2**24 + 1, 2**32, 2**36, 2**39, 2**63, 2**64 - 1, -(2**63), 1e300, float("nan"),
    float("inf"), None, True, "", "remove", b"", b"twelve bytes", [], {}, [[]], {0: 0}, msgpack.ExtType(5, b"x"),
]  # fmt: skip
_keys = st.integers(-5, 5) | st.text(max_size=4) | st.binary(max_size=4) | st.none()
_scalars = (
    _keys
    | st.sampled_from(EDGES[:12])
    | st.booleans()
    | st.floats()
    | st.sampled_from(["remove", "update", "take", "totals", "queue", "..", "1.Zw.Yg", "drop.q.1"])
    | st.binary(max_size=14)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12))
)
values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_keys, inner, max_size=4), max_leaves=8
)


@st.composite
def changed(draw: st.DrawFn, original: Any) -> Any:
    """The value with one to three places in it changed."""
    root = [copy.deepcopy(original)]
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(list(_places(root))))
        match draw(st.sampled_from(("replace", "replace", "leave out", "double"))):
            case "leave out" if holder is not root:
                del holder[key]
            case "double" if isinstance(holder, list) and holder is not root:
                holder.insert(key, copy.deepcopy(holder[key]))
            case _:
                holder[key] = draw(values)
    return root[0]


def each_changed(original: Any) -> Iterator[Any]:
    """The value with each place in it replaced by each edge, left out, and doubled."""
    for at in range(len(list(_places([original])))):
        for edge in EDGES:
            root = [copy.deepcopy(original)]
            holder, key = list(_places(root))[at]
            holder[key] = edge
            yield root[0]
        for double in (False, True):
            root = [copy.deepcopy(original)]
            holder, key = list(_places(root))[at]
            if holder is root or (double and isinstance(holder, dict)):
                continue
            if double:
                holder.insert(key, holder[key])
            else:
                del holder[key]
            yield root[0]


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def header_bytes(number: int, rest: bytes, fields: int = 15) -> bytes:
    """A header of these packed fields after the fixed ones, with its length and its checksums right."""
    start = bytearray(GOLDEN["head.msgpack"][:_FIXED_BYTES])
    start[0] = 0x80 | fields
    offset, stamped = stamp(number)
    start[offset : offset + len(stamped)] = stamped
    length = _FIXED_BYTES + len(rest) + len(b"\xa8checksum\xce") + 4
    start[_FIXED_BYTES - 4 :] = length.to_bytes(4, "big")
    data = bytes(start) + rest + b"\xa8checksum\xce"
    return data + header_checksum(data).to_bytes(4, "big")


def header_fields(name: str) -> dict[str, Any]:
    """The fields of a golden header that have no fixed place."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(GOLDEN[name])
    found = unpacker.unpack()
    return {key: found[key] for key in list(found)[5:-1]} | {"supersedes": [3]}


def packed_fields(fields: dict[Any, Any]) -> bytes:
    return b"".join(pack(part) for pair in fields.items() for part in pair)


def pack(value: Any) -> bytes:
    return msgpack.packb(value)


def vouched(data: bytes, like: SectionEntry) -> SectionEntry:
    """A header's entry that vouches for this table."""
    return like._replace(table_bytes=len(data), table_checksum=zlib.crc32(data))


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes with some of them flipped, zeroed, left out, doubled or put in."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(data) - 1)))
        stop = start + draw(st.integers(1, 40))
        match draw(st.sampled_from(("flip", "zero", "leave out", "double", "put in", "cut"))):
            case "flip" if data:
                data[start] ^= 1 << draw(st.integers(0, 7))
            case "zero":
                data[start:stop] = bytes(len(data[start:stop]))
            case "leave out":
                del data[start:stop]
            case "double":
                data[start:start] = data[start:stop]
            case "put in":
                claim = st.sampled_from([*BOMBS.values()]).map(lambda bomb: bomb[:64])
                data[start:start] = draw(claim | st.binary(max_size=9))
            case "cut":
                del data[start:]
    return bytes(data)
