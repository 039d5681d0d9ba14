"""Exports of small spaces, and exports that no space wrote."""

import io
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import spool
import xa
from spool.admin import manifest, tar_stream
from spool.admin.manifest import ExportReport
from spool.admin.tar_stream import Reader, Writer
from spool.maintenance.compaction import Compactor
from tests import door
from tests.branches import voting
from tests.compaction import small_compactions

XID = xa.Xid(1, b"global" * 10, b"branch" * 10)  # of which a file has a long name
SETTINGS = b"format = 1\n\n[queues]\n[queues.q]\n"
Contents = dict[str, list[Any]]


def exported(space: spool.Space, compress: bool | str = False) -> bytes:
    file = io.BytesIO()
    space.export(file, compress=compress)
    return file.getvalue()


def _few(space: spool.Space) -> None:
    for number in range(4):
        space.put("q", f"order number {number}")


def _many_commits(space: spool.Space) -> None:
    for number in range(200):
        space.put("q", number)


def _compacted(space: spool.Space) -> None:
    space.put_many("q", [{"number": number} for number in range(40)])
    for number in range(30):
        space.put("q", number)
    space.get_many("q", 20)
    with small_compactions():
        sum(Compactor(door.store(space)).steps())


def _of_everything(space: spool.Space) -> None:
    _few(space)
    for name in ("order.txt", "n" * 150):
        Path(space.path, "drop", "q", name).write_bytes(b"dropped")
        os.utime(Path(space.path, "drop", "q", name), (1e9, 1e9))
    captured = Path(space.path, "active", "drop.q.0123456789abcdef")
    captured.mkdir(mode=0o700)
    (captured / "captured.txt").write_bytes(b"captured")
    with voting(xa.ResourceManager(space), XID):
        space.put("q", "in doubt")


SPACES: dict[str, tuple[Callable[[spool.Space], None], bool | str]] = {
    "plain": (_few, False),
    "compressed": (_few, "gz"),
    "200 commits": (_many_commits, "xz"),
    "compacted": (_compacted, "bz2"),
    "drop and branches in doubt": (_of_everything, False),
}


def export_of(name: str, directory: Path) -> tuple[bytes, Contents]:
    """Return the export of one of ``SPACES``, and its messages."""
    furnish, compress = SPACES[name]
    with spool.create(directory) as space:
        space.create_queue("q", durability="none")
        furnish(space)
        return exported(space, compress), contents(space)


def contents(space: spool.Space) -> Contents:
    found = {queue: [message.body for message in space.browse(queue)] for queue in space.queues()}
    root = Path(space.path)
    files = [*root.glob("drop/*/*"), *root.glob("active/drop.*/*")]
    xids = xa.ResourceManager(space).recover(xa.TMSTARTRSCAN | xa.TMENDRSCAN)
    return {**found, "files": sorted(str(file.relative_to(root)) for file in files), "xids": xids}


def imported(data: bytes, directory: Path) -> Contents | None:
    """The messages of a space that is made of these bytes; None if nothing is made of them."""
    try:
        space = spool.import_space(directory, io.BytesIO(data))
    except spool.CorruptedFile:
        assert not directory.exists()
        return None
    with space:
        found = contents(space)
    shutil.rmtree(directory)
    return found


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    """The members of an export, the manifest included."""
    reader, found = Reader(io.BytesIO(data)), []
    while (member := reader.next()) is not None:
        found.append((member[0], b"".join(reader.pieces(member[1]))))
    return found


def tar(members: Iterable[tuple[str, bytes]], compression: str | None = None) -> bytes:
    file = io.BytesIO()
    writer = Writer(file, compression)
    for name, content in members:
        writer.add_bytes(name, content)
    writer.finish()
    return file.getvalue()


def consistent(members: Iterable[tuple[str, bytes]], report: ExportReport | None = None, **changes: Any) -> bytes:
    """An export with these members, between a first one and a manifest that fits them."""
    file = io.BytesIO()
    writer = Writer(file, None)
    writer.add_bytes(manifest.BEGIN, manifest.begin(5))
    names = []
    for name, content in members:
        writer.add_bytes(name, content)
        names.append(name)
    dropped = dict.fromkeys((name for name in names if name.startswith(("drop/", "active/"))), 5)
    fields = {"files": len(names), "newest": 0, "messages": {}, "dropped": dropped, "left_out": {}, **changes}
    writer.add_bytes(manifest.MANIFEST, manifest.manifest(report or ExportReport(**fields), writer.members))
    writer.finish()
    return file.getvalue()


def edges(data: bytes) -> list[int]:
    """Return the offsets of the headers and of the end mark in an uncompressed tar."""
    reader, found = Reader(io.BytesIO(data)), [0]
    while (member := reader.next()) is not None:
        for _ in reader.pieces(member[1]):
            pass
        found.append(reader._offset)
    return found


def plain(data: bytes) -> bytes:
    """The tar in a compressed stream."""
    return b"".join(tar_stream._decompressed(iter((data,))))
