"""Makes the golden files: one of each kind of file, byte for byte the same each time.

Run it only when the format gets a new version: ``python -m tests.golden.make``. Keep the files of released versions:
they must stay readable.
"""

import zlib
from array import array
from pathlib import Path
from unittest import mock

from spool.disk import Disk
from spool.format.header import VOTE, Adoption, Header, stamp
from spool.format.table import CompactedTable, Origins
from spool.index.lookup import correlation_hash
from spool.index.segment import pack_correlations, pack_ids
from spool.log.commit_file import CommitFileWriter
from spool.log.write_set import WriteSet
from spool.model.xid import FORMAT_LOCAL, Xid

HERE = Path(__file__).parent
WRITER = {"pid": 4711, "program": "golden"}
OWN_ID, BRANCH_ID = bytes(range(12)), bytes(range(12, 24))
BRANCH_XID = Xid(7, b"global", b"branch")


def commit_batch() -> WriteSet:
    """Several queues, all control fields, kinds of body, commands on messages, a taken file and facts."""
    batch = batch_of_own()
    batch.put("orders", [b"", b"two", b"x" * 300], {})
    batch.put("orders", ["text \N{SNOWMAN}".encode()], {"codec": "text", "content_type": "text/plain; charset=utf-8"})
    batch.put(
        "urgent",
        [b'{"a": 1}'],
        {
            "priority": 90, "delay": 2.5, "correlation_id": "c-1", "reply_queue": "answers",
            "failure_queue": "failures", "user_code": -5, "client_id": "me", "application_key": "key",
            "headers": {"tenant": "acme"}, "codec": "json", "content_type": "application/json",
        },
    )  # fmt: skip
    batch.put("orders", [b"top"], {"top": True, "time_to_live": 60.0})
    place = [7, 3, 50, 1790000000.25, False, 42, 0]
    batch.put("orders", [b"before", b"another"], {"before": place, "expires_at": 1800000000.5, "group": "g"})
    batch.remove(3, 0, 4, "dequeued")
    batch.update(5, 2, 1, {"attempts": 2, "not_before": 1800000000.5})
    changes = {"queue": "errors", "attempts": 0, "not_before": None, "expires_at": None, "origin_queue": "orders"}
    batch.update(7, 4, 2, {**changes, "why": "expired"})
    batch.update(7, 6, 1, {**changes, "origin_attempts": 3, "failure_reason": "no such article"})
    batch.record_captured_file("drop.orders.0123456789abcdef", b"caf\xe9.txt")
    batch.fact("heuristic:7.Zw.Yg", "committed")
    batch.fact("deduplication:orders:k", f"{OWN_ID.hex()}00000000", 1790000304.0)
    batch.fact("capacity:orders", "high")
    return batch


def branch_batch() -> WriteSet:
    batch = WriteSet()
    batch.begin_branch(BRANCH_XID, BRANCH_ID)
    batch.put("answers", [b"\x82\xa1a\x01\xa1b\xc0"], {"codec": "msgpack", "content_type": "application/msgpack"})
    batch.remove(42, 0, 1, "dequeued")
    return batch


def compacted_section() -> tuple[CompactedTable, list[bytes]]:
    """Two messages of one commit and one of another, which has a correlation id."""
    first, second = bytes(range(12)), bytes(range(24, 36))
    bodies = [b"one", b"two", b"three"]
    table = CompactedTable(
        queues=["orders"],
        attributes=[{}, {"correlation_id": "c-1"}],
        runs=[[0, 0, 2], [0, 1, 1]],
        lengths=array("I", map(len, bodies)),
        checksums=array("I", map(zlib.crc32, bodies)),
        origins=Origins([7, 9], [3, 0], [1790000000.25, 1790000000.5], [first, second], [3, 0]),
        ids=pack_ids([(first, 3, 0), (second, 0, 1)]),
        correlations=pack_correlations([(correlation_hash("c-1"), 1)]),
    )
    return table, bodies


def write(
    directory: Path, name: str, batch: WriteSet, time: float, durable_mark: int, number: int, *, padded: bool = False
) -> Header:
    """A finished file, stamped if it has a number, under a golden name. ``padded``: as if it may overwrite a file."""
    (directory / "active").mkdir(exist_ok=True)
    file = CommitFileWriter(Disk(str(directory)), Xid(FORMAT_LOCAL, b"golden", b""))
    with mock.patch("spool.log.commit_file.writer_name", return_value=WRITER):
        file.complete(batch, time, durable_mark, pool=mock.Mock(take=mock.Mock(return_value=None)) if padded else None)
    if number:
        assert file.handle is not None
        file.disk.write_at(file.handle, *stamp(number))
    file.close()
    (directory / file.name).rename(directory / name)
    (directory / "active").rmdir()
    return file.contents(0).header


def batch_of_own(supersedes: tuple[int, ...] = ()) -> WriteSet:
    """A batch with one branch."""
    batch = WriteSet(supersedes)
    batch.begin_branch(Xid(FORMAT_LOCAL, OWN_ID, b""), OWN_ID)
    return batch


def make(directory: Path) -> None:
    write(directory, "commit.msgpack", commit_batch(), 1790000000.25, 41, 42)
    voted = write(directory, "branch.msgpack", branch_batch(), 1790000001.0, 42, 0)
    head = batch_of_own()
    head.adopts.append(Adoption(BRANCH_XID, voted.size, voted.checksum, 0, 1))
    write(directory, "head.msgpack", head, 1790000002.0, 42, 43)
    compacted = batch_of_own(supersedes=(7, 9))
    compacted.add_section(*compacted_section())
    compacted.leave(1, 1)
    write(directory, "compaction.msgpack", compacted, 1790000003.0, 43, 44)
    write(directory, "vote.msgpack", branch_batch(), 1790000004.0, 44, VOTE | 7 << 24, padded=True)


if __name__ == "__main__":
    make(HERE)
