"""The header of a file of messages, as ``docs/format.md`` says. Pure.

A file is a plain msgpack stream: a header map, then sections. Each section is a table-of-contents map and then the
bodies, one ``bin`` each. The header's checksum covers the length and checksum of every section's table, and a table
holds the length and checksum of every body. So one number, the header's checksum, proves the whole file.

The header starts with fields of fixed width, so that the sequence number can be stamped into a finished file by one
write. The header's checksum does not cover the sequence number, which has a separate checksum.
"""

import struct
import zlib
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import msgpack

from spool.errors import CorruptedFile, NewerFormat
from spool.format.schema import check_branch_id, check_time
from spool.model.checks import whole
from spool.model.layout import MAX_NUMBER, MAX_ORDINAL
from spool.model.xid import BRANCH_ID_BYTES, FORMAT_LOCAL, LOCAL_TEXT, Xid

VERSION = 1

# Limits for all values that are read, so that a damaged length neither fills the memory nor keeps the reader busy
# forever.
MAX_HEADER_BYTES = 16 << 20
MAX_TABLE_BYTES = 64 << 20
# The size of a padded file is a multiple of this number of bytes. So a later commit can overwrite the file without a
# change of size or blocks, and the flush writes only data.
CLASS_BYTES = 4 << 10
SECTION_MESSAGES = 65_536
# A stamp from this number on is the mark of a vote. The rest of the stamp is the origin of the file that the vote
# overwrote (``layout.FreeName``).
VOTE = 1 << 63

_START = b"\xa6format\xa7xaspool\xa7version\xcd"
_NUMBER = struct.Struct(">Q")
_CHECKSUM = struct.Struct(">I")
# A file begins with the first byte of the map, the format and the version (uint 16). Then follow three fields that are
# overwritten later.
_NUMBER_KEY, _NUMBER_CHECK_KEY, _LENGTH_KEY = b"\xa6number\xcf", b"\xacnumber_check\xce", b"\xa6length\xce"
_VERSION_AT = 1 + len(_START)
_NUMBER_AT = _VERSION_AT + 2 + len(_NUMBER_KEY)
_NUMBER_CHECK_AT = _NUMBER_AT + 8 + len(_NUMBER_CHECK_KEY)
_LENGTH_AT = _NUMBER_CHECK_AT + 4 + len(_LENGTH_KEY)
_STAMP_AT, _STAMP = _VERSION_AT + 2, struct.Struct(f">{len(_NUMBER_KEY)}sQ{len(_NUMBER_CHECK_KEY)}sI")
FIXED_BYTES = _LENGTH_AT + 4

# The constant start of every header, up to the length. A fixmap holds at most 15 fields.
_FRONT = (
    bytes([0x80 | 15]) + _START + VERSION.to_bytes(2, "big") + _NUMBER_KEY + bytes(8) + _NUMBER_CHECK_KEY
    + zlib.crc32(bytes(8)).to_bytes(4, "big") + _LENGTH_KEY
)  # fmt: skip
_FRONT_CHECKSUM = zlib.crc32(_NUMBER_CHECK_KEY + _LENGTH_KEY, zlib.crc32(_FRONT[:_NUMBER_AT]))
# Numbers are written in their widest form, so that one ``pack`` writes all fields of fixed width.
_TIME = struct.Struct(">6sd")
_TIME_KEY, _WRITER_KEY, _BRANCHES_KEY = b"\xa4time\xcb", b"\xa6writer", b"\xa8branches"
_ADOPTS_KEY, _SUPERSEDES_KEY, _SECTIONS_KEY = b"\xa6adopts", b"\xaasupersedes", b"\xa8sections"
_LOCAL_TEXT_START = (LOCAL_TEXT % "")[:-1].encode("ascii")
_LOCAL_TEXT_BYTES = len(_LOCAL_TEXT_START) + 4 * BRANCH_ID_BYTES // 3 + 1
_LOCAL_BRANCH = struct.Struct(f">2s{len(_LOCAL_TEXT_START)}s{4 * BRANCH_ID_BYTES // 3}s3s{BRANCH_ID_BYTES}sBIBI")
_LOCAL_START = bytes([0x94, 0xA0 | _LOCAL_TEXT_BYTES]), _LOCAL_TEXT_START
_LOCAL_ID = b".\xc4" + bytes([BRANCH_ID_BYTES])
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_SECTION = struct.Struct(">BBIBIBQBI")
_REST = struct.Struct(">14sQ8sB9sI")
_DURABLE_MARK_KEY, _FLUSHED_KEY, _PADDING_KEY = b"\xacdurable_mark\xcf", b"\xa7flushed", b"\xa7padding\xc6"
_TAIL = b"\xa8checksum\xce"
_AROUND_BYTES = len(_FRONT) + 4 + _REST.size + len(_TAIL) + 4  # the header's bytes without the fields in the middle

# Errors that parsing can raise even if the checksum is right, because a value can have the wrong type.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, msgpack.UnpackException)


@dataclass(slots=True)
class BranchEntry:
    """A branch whose messages lie in this file: ordinals ``first`` to ``first + count - 1`` of the commit."""

    xid: Xid
    id: bytes
    first: int
    count: int


@dataclass(slots=True)
class Adoption:
    """A prepared branch that this numbered file commits. The file's size ``size`` and the header's ``checksum``
    identify the branch's bytes."""

    xid: Xid
    size: int
    checksum: int
    first: int
    count: int


class SectionEntry(NamedTuple):
    """The place of a section (byte offsets in the file), and the checksum and counts that its table must have."""

    offset: int
    table_bytes: int
    table_checksum: int
    bodies_bytes: int
    messages: int

    @property
    def size(self) -> int:
        return self.table_bytes + self.bodies_bytes


class Header(NamedTuple):
    """The header of one file. ``number``: 0 before a number is issued, and in a prepared branch, unless its vote has a
    mark (`VOTE`). ``time``: seconds since the epoch."""

    number: int
    time: float
    writer: Mapping[str, Any]
    branches: tuple[BranchEntry, ...] = ()
    adopts: tuple[Adoption, ...] = ()
    supersedes: tuple[int, ...] = ()
    sections: tuple[SectionEntry, ...] = ()
    durable_mark: int = 0
    flushed: bool = True
    length: int = 0
    size: int = 0
    checksum: int = 0

    @property
    def is_numbered(self) -> bool:
        """Whether the stamp is no mark of a vote and not 0. A damaged number (-1) counts."""
        return self.number != 0 and self.number < VOTE

    @property
    def messages(self) -> int:
        total = 0
        for section in self.sections:
            total += section.messages
        return total


def encode_header(header: Header, *, room: int = 0, beside: int | None = None) -> bytes:
    """Return the header's bytes with number 0.

    Args:
        room: the least length of the header. A caller that has already written the sections gives ``room``.
        beside: the total size of the sections after the header. The header is padded so that the size of the
            file is a multiple of ``CLASS_BYTES``.
    """
    branches: list[bytes] = []
    for branch in header.branches:
        if branch.xid == (FORMAT_LOCAL, branch.id, b"") and len(branch.id) == BRANCH_ID_BYTES:  # as for most branches
            text = b2a_base64(branch.id, newline=False).translate(_URL_SAFE)
            branches += (
                _LOCAL_BRANCH.pack(*_LOCAL_START, text, _LOCAL_ID, branch.id, 0xCE, branch.first, 0xCE, branch.count),
            )
        else:
            branches += (msgpack.Packer().pack([str(branch.xid), branch.id, branch.first, branch.count]),)
    adopts: list[bytes] = []
    for one in header.adopts:
        adopts += (msgpack.Packer().pack((str(one.xid), one.size, one.checksum, one.first, one.count)),)
    sections: list[bytes] = []
    for _, table_bytes, checksum, bodies_bytes, messages in header.sections:
        sections += (_SECTION.pack(0x94, 0xCE, table_bytes, 0xCE, checksum, 0xCF, bodies_bytes, 0xCE, messages),)
    known_writer, writer = _last_writer
    if known_writer is not header.writer:
        writer = _pack_writer(header.writer)
    fields = [
        _TIME.pack(_TIME_KEY, header.time),
        _WRITER_KEY, writer,
        _BRANCHES_KEY, _array_head(len(branches)) if branches else b"\x90", *branches,
        _ADOPTS_KEY, _array_head(len(adopts)) if adopts else b"\x90", *adopts,
        _SUPERSEDES_KEY, msgpack.packb(header.supersedes) if header.supersedes else b"\x90",
        _SECTIONS_KEY, _array_head(len(sections)) if sections else b"\x90", *sections,
    ]  # fmt: skip
    packed = b"".join(fields)
    length = _AROUND_BYTES + len(packed)
    padding = max(room - length, 0) if beside is None else -(length + beside) % CLASS_BYTES
    rest = _REST.pack(
        _DURABLE_MARK_KEY, header.durable_mark, _FLUSHED_KEY, 0xC3 if header.flushed else 0xC2, _PADDING_KEY, padding
    )
    behind = _CHECKSUM.pack(length + padding) + packed + rest + bytes(padding) + _TAIL
    return _FRONT + behind + _CHECKSUM.pack(zlib.crc32(behind, _FRONT_CHECKSUM))


def header_checksum(encoded: bytes) -> int:
    """Return the CRC-32 of the header's bytes before the checksum, without the sequence number and the number's
    checksum."""
    crc = zlib.crc32(encoded[:_NUMBER_AT])
    crc = zlib.crc32(encoded[_NUMBER_AT + 8 : _NUMBER_CHECK_AT], crc)
    return zlib.crc32(encoded[_NUMBER_CHECK_AT + 4 :], crc)


def stamp(number: int) -> tuple[int, bytes]:
    """Return the (offset, bytes) of the write that stamps a number with its checksum into a finished file."""
    checksum = zlib.crc32(number.to_bytes(8, "big"))
    return _STAMP_AT, _STAMP.pack(_NUMBER_KEY, number, _NUMBER_CHECK_KEY, checksum)


def header_length(start: bytes) -> int:
    """Return the length of a file's header. ``start``: at least the first ``FIXED_BYTES`` bytes of the file.

    Raises CorruptedFile if the file is no commit file."""
    if len(start) < FIXED_BYTES or start[0] & 0xF0 != 0x80 or start[1:_VERSION_AT] != _START:
        raise CorruptedFile("it does not begin with a header")
    length = int.from_bytes(start[_LENGTH_AT : _LENGTH_AT + 4], "big")
    if not FIXED_BYTES < length <= MAX_HEADER_BYTES:
        raise CorruptedFile(f"its header claims {length} bytes")
    return length


def decode_header(data: bytes, file_size: int) -> Header:
    """Return the header from a file's first bytes. Raises CorruptedFile if the header does not match its checksum.

    A sequence number that does not match its own checksum is returned as -1. In this case the rest of the header is
    still valid.
    """
    length = header_length(data)
    if len(data) < length:
        raise CorruptedFile("it ends within its header")
    data = data[:length]
    checksum = int.from_bytes(data[-4:], "big")
    if header_checksum(data[:-4]) != checksum:
        raise CorruptedFile("its header does not match its checksum")
    version = int.from_bytes(data[_VERSION_AT : _VERSION_AT + 2], "big")
    if version > VERSION:  # checked only now, when the checksum has excluded a flipped bit
        raise NewerFormat(f"a commit has format version {version}; this program reads {VERSION}: use a later version")
    if version < VERSION:
        raise CorruptedFile(f"it has format version {version}, which no program writes")
    number = _NUMBER.unpack_from(data, _NUMBER_AT)[0]
    if zlib.crc32(data[_NUMBER_AT : _NUMBER_AT + 8]) != _CHECKSUM.unpack_from(data, _NUMBER_CHECK_AT)[0]:
        number = -1
    try:
        found = msgpack.unpackb(data, strict_map_key=True)
        header = _header(found, number, length, checksum)
    except UNREADABLE as error:
        raise CorruptedFile(f"its header cannot be read: {error}") from None
    if header.size > file_size:
        raise CorruptedFile(f"it has {file_size} of its {header.size} bytes")
    return header


def _header(found: dict[str, Any], number: int, length: int, checksum: int) -> Header:
    sections: list[SectionEntry] = []
    offset, messages = length, 0
    for table_bytes, table_checksum, bodies_bytes, count in found["sections"]:
        if not (
            type(table_bytes) is type(bodies_bytes) is type(count) is int
            and 0 <= table_bytes <= MAX_TABLE_BYTES
            and 0 <= bodies_bytes <= 2**63
            and 0 <= count <= SECTION_MESSAGES
        ):
            raise ValueError("a section is longer than allowed")
        sections += (tuple.__new__(SectionEntry, (offset, table_bytes, table_checksum, bodies_bytes, count)),)
        offset += table_bytes + bodies_bytes
        messages += count
    branches: list[BranchEntry] = []
    end = 0
    for text, branch_id, first, count in found["branches"]:
        end = _following(first, count, end)
        branches += (BranchEntry(_branch_xid(text, branch_id), branch_id, first, count),)
    if MAX_NUMBER < number < VOTE or messages != end:
        raise ValueError("its branches do not add up to its sections")
    adopts = []
    for text, size, branch_checksum, first, count in found["adopts"]:
        end = _following(first, count, end)
        whole(size, 2**63), whole(branch_checksum, 2**32 - 1)
        adopts.append(Adoption(Xid.parse(text), size, branch_checksum, first, count))
    supersedes = tuple(map(whole, found["supersedes"], repeat(MAX_NUMBER)))
    durable_mark, flushed = whole(found["durable_mark"], MAX_NUMBER), bool(found["flushed"])
    time, writer = check_time(found["time"]), dict(found["writer"])
    fields = (number, time, writer, tuple(branches), tuple(adopts), supersedes, tuple(sections), durable_mark, flushed)
    return tuple.__new__(Header, (*fields, length, offset, checksum))


_last_writer: tuple[object, bytes] = (None, b"")


def _pack_writer(writer: Mapping[str, Any]) -> bytes:
    """Encode a writer, and cache the result, because a process names the same writer in all of its files."""
    global _last_writer
    _last_writer = writer, msgpack.packb(writer)
    return _last_writer[1]


@lru_cache(maxsize=64)
def _array_head(count: int) -> bytes:
    """Return the bytes with which msgpack begins an array."""
    return bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4, "big")


def _following(first: Any, count: Any, end: int) -> int:
    """Return the end of the range of ``count`` ordinals from ``first`` on. Raises ValueError unless the range begins at
    ``end``, the end of the previous range."""
    if first != end:
        raise ValueError("its ordinals do not follow each other")
    if type(count) is not int or not 0 <= count <= MAX_ORDINAL + 1 - end:
        raise ValueError("it has more messages than allowed")
    return end + count


def _branch_xid(text: str, branch_id: Any) -> Xid:
    """Parse a branch's xid. Nearly all xids are local, so the text is first compared with the local xid that belongs to
    the branch id.

    Raises ValueError if no branch can have this id.
    """
    if text == LOCAL_TEXT % b2a_base64(check_branch_id(branch_id), newline=False).translate(_URL_SAFE).decode("ascii"):
        return tuple.__new__(Xid, (FORMAT_LOCAL, branch_id, b""))
    return Xid.parse(text)
