"""The tar stream of an export: its compression, its members, and the checksum of each member.

This module does not use ``tarfile``. ``tarfile`` follows headers that refer to headers, allocates the size that a
header declares, and accepts a compressed stream that ends early. In this format each member is a plain file, after at
most one long name (as in GNU tar). ``header`` builds the only header that a member can have. So a reader only compares
headers, and detects every wrong bit.
"""

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from spool.errors import CorruptedFile, InvalidArgument
from spool.model.text import shown
from spool.runtime.call_guard import outside_of_calls

PIECE_BYTES = 1 << 20

_MOST_MEMORY_BYTES = 1 << 28  # the strongest level of xz needs a quarter of this size, but a stream can demand 4 GiB
_COMPRESSIONS: dict[str, tuple[bytes, Callable[[], Any], Callable[[], Any]]] = {
    "gz": (b"\x1f\x8b", lambda: zlib.compressobj(wbits=31), lambda: zlib.decompressobj(wbits=31)),
    "bz2": (b"BZh", bz2.BZ2Compressor, bz2.BZ2Decompressor),
    "xz": (b"\xfd7zXZ\0", lzma.LZMACompressor, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY_BYTES)),
}  # for the name of each compression: the first bytes, the compressor, the decompressor
COMPRESSIONS = tuple(_COMPRESSIONS)

_BLOCK_BYTES, _RECORD_BYTES = 512, 10_240
_NAME_BYTES, _SIZE_AT, _KIND_AT = 100, 124, 156
_FILE, _LONG_NAME, _LONG_LINK = b"0", b"L", b"././@LongLink"
_MAX_NAME_BYTES = 1 << 10
_MAX_FILE_BYTES = 1 << 40


class Member(NamedTuple):
    """A file of an archive: its name, its size in bytes, and the SHA-256 of its bytes in hexadecimal digits."""

    name: str
    size: int
    checksum: str


def header(name: bytes, size: int, kind: bytes = _FILE) -> bytes:
    """Return the block before a member's bytes, in the form of GNU tar (see tar(5)), with mode 0600, no owner and no
    time."""
    octal = b"%011o\0" % size
    block = b"".join((
        name[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"), b"0000600\0", b"0000000\0", b"0000000\0",
        octal if len(octal) == 12 else b"\x80" + size.to_bytes(11, "big"),
        b"00000000000\0", b"        ", kind, bytes(100), b"ustar  \0",
    )).ljust(_BLOCK_BYTES, b"\0")  # fmt: skip
    return block[:148] + b"%06o\0 " % sum(block) + block[_KIND_AT:]


class Writer:
    """Writes an archive to a stream that need not be seekable. ``members``: the files so far, in their order."""

    def __init__(self, stream: BinaryIO, compression: str | None) -> None:
        self.members: list[Member] = []
        self._stream = stream
        self._compressor = None if compression is None else _COMPRESSIONS[compression][1]()
        self._length = 0

    def add(self, name: str, size: int, read: Callable[[int, int], bytes]) -> bool:
        """Add a file of ``size`` bytes. The function ``read(offset, length)`` returns bytes of the file.

        Return False if the file has become shorter. Then the member has zeros in place of the missing bytes.
        """
        encoded = name.encode("utf-8", "surrogateescape")
        if len(encoded) > _NAME_BYTES:
            self._write(header(_LONG_LINK, len(encoded) + 1, _LONG_NAME))
            self._write(encoded + b"\0")
            self._pad(_BLOCK_BYTES)
        self._write(header(encoded, size))
        checksum, offset, whole = hashlib.sha256(), 0, True
        while offset < size:
            if not (data := read(offset, min(PIECE_BYTES, size - offset))):
                data, whole = bytes(min(PIECE_BYTES, size - offset)), False
            checksum.update(data)
            self._write(data)
            offset += len(data)
        self._pad(_BLOCK_BYTES)
        self.members.append(Member(name, size, checksum.hexdigest()))
        return whole

    def add_bytes(self, name: str, data: bytes) -> None:
        self.add(name, len(data), lambda offset, length: data[offset : offset + length])

    def finish(self) -> None:
        """Write the end mark, which is two blocks of zeros, and more zeros up to the end of the record."""
        self._write(bytes(2 * _BLOCK_BYTES))
        self._pad(_RECORD_BYTES)
        if self._compressor is not None:
            self._put(self._compressor.flush())

    def _pad(self, unit: int) -> None:
        self._write(bytes(-self._length % unit))

    def _write(self, data: bytes) -> None:
        self._length += len(data)
        self._put(data if self._compressor is None else self._compressor.compress(data))

    def _put(self, data: bytes) -> None:
        with outside_of_calls():
            self._stream.write(data)


class Reader:
    """Reads the members of an archive in their order, each to its end. The reader recognises the compression.

    Each method raises CorruptedFile if no ``Writer`` could have written the archive. The stream need not be seekable.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._source = _decompressed(_pieces(stream))
        self._buffer, self._at = b"", 0
        self._offset = 0

    def next(self) -> tuple[str, int] | None:
        """Return the name and the size of the next member, or None at the end mark. Next, the caller reads the member's
        ``pieces``."""
        block = self._exactly(_BLOCK_BYTES)
        if not block.strip(b"\0"):
            return None
        name = None
        if block[_KIND_AT : _KIND_AT + 1] == _LONG_NAME:
            name = self._long_name(block)
            block = self._exactly(_BLOCK_BYTES)
        encoded = block[:_NAME_BYTES].rstrip(b"\0") if name is None else name
        size = _size(block)
        if size is None or b"\0" in encoded or block != header(encoded, size):
            raise CorruptedFile(f"a header is damaged at byte {self._offset - _BLOCK_BYTES:,}, or is not an export's")
        if size > _MAX_FILE_BYTES:
            raise CorruptedFile(f"a file of {size:,} bytes is in it, and {_MAX_FILE_BYTES:,} is the most")
        return encoded.decode("utf-8", "surrogateescape"), size

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the bytes of the member that ``next`` returned. Then read the padding after the bytes."""
        left = size
        while left:
            if not (piece := self._upto(left)):
                raise _ended()
            left -= len(piece)
            yield piece
        self._zeros(-size % _BLOCK_BYTES)

    def check_end(self) -> None:
        """Read from the first block of the end mark to the end of the stream."""
        self._zeros(_BLOCK_BYTES)
        self._zeros(-self._offset % _RECORD_BYTES)
        if self._upto(1):
            raise CorruptedFile("more bytes follow its end")

    def _long_name(self, block: bytes) -> bytes:
        size = _size(block)
        if size is None or not _NAME_BYTES + 1 < size <= _MAX_NAME_BYTES:
            raise CorruptedFile("a name in it is damaged, or too long")
        content = b"".join(self.pieces(size))
        if block != header(_LONG_LINK, size, _LONG_NAME) or content.find(b"\0") != size - 1:
            raise CorruptedFile("a name in it is damaged")
        return content[:-1]

    def _zeros(self, length: int) -> None:
        if self._exactly(length).strip(b"\0"):
            raise CorruptedFile(f"its padding is damaged before byte {self._offset:,}")

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            if not (piece := self._upto(length - len(data))):
                raise _ended()
            data += piece
        return data

    def _upto(self, length: int) -> bytes:
        """Return the next bytes, at least one and at most ``length``. At the end of the stream, return no bytes."""
        if self._at == len(self._buffer):
            self._buffer, self._at = next(self._source, b""), 0
        data = self._buffer[self._at : self._at + length]
        self._at += len(data)
        self._offset += len(data)
        return data


def _ended() -> CorruptedFile:
    return CorruptedFile("its end is missing")


def _size(block: bytes) -> int | None:
    field = block[_SIZE_AT : _SIZE_AT + 12]
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        size = int(field[:11], 8)
    except ValueError:
        return None
    return size if size >= 0 else None


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while data := stream.read(PIECE_BYTES):
        if not isinstance(data, bytes):
            raise InvalidArgument(f"an export is read from a file that is open for bytes, not from {shown(stream)}")
        yield data


def _decompressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the uncompressed bytes of an archive. The first bytes of the stream identify its compression."""
    most = max(len(magic) for magic, _, _ in _COMPRESSIONS.values())
    start = b""
    for piece in pieces:
        start += piece
        if len(start) >= most:
            break
    decoder = next((decoder for magic, _, decoder in _COMPRESSIONS.values() if start.startswith(magic)), None)
    everything = chain((start,), pieces) if start else ()
    yield from everything if decoder is None else _decoded(everything, decoder())


def _decoded(pieces: Iterable[bytes], decoder: Any) -> Iterator[bytes]:
    """Yield the content of one compressed stream, at most ``PIECE_BYTES`` at once. The stream must end after the last
    piece."""
    for piece in pieces:
        left, full = piece, True
        while not decoder.eof and (left or full):
            try:
                data = decoder.decompress(left, PIECE_BYTES)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
                raise CorruptedFile(f"its compressed bytes are damaged ({error})") from None
            left, full = getattr(decoder, "unconsumed_tail", b""), len(data) == PIECE_BYTES
            if data:
                yield data
        if decoder.unused_data or (decoder.eof and left):
            raise CorruptedFile("more bytes follow its end")
    if not decoder.eof:
        raise _ended()
