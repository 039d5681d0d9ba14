"""Makes the golden files: one of each kind of file, byte for byte the same each time.

Run it only when the format gets a new version: ``python -m tests.golden.make``. After the first release the files of
each version stay, because they must stay readable.
"""

import zlib
from array import array
from pathlib import Path

from spool.disk import Disk
from spool.format.batch import CommitBatch, Section, section_of
from spool.format.header import Adoption, BranchEntry, Header, stamp
from spool.format.table import CompactedTable, Origins
from spool.format.writer import CommitFileWriter
from spool.index.lookup import correlation_hash
from spool.index.segment import pack_correlations, pack_ids
from spool.model.xid import FORMAT_LOCAL, Xid

HERE = Path(__file__).parent
WRITER = {"pid": 4711, "program": "golden"}
OWN_ID, BRANCH_ID = bytes(range(12)), bytes(range(12, 24))
BRANCH_XID = Xid(7, b"global", b"branch")


def commit_draft() -> CommitBatch:
    """Several queues, all control fields, kinds of body, commands on messages, a taken file and facts."""
    batch = CommitBatch()
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


def branch_draft() -> CommitBatch:
    batch = CommitBatch()
    batch.put("answers", [b"\x82\xa1a\x01\xa1b\xc0"], {"codec": "msgpack", "content_type": "application/msgpack"})
    batch.remove(42, 0, 1, "dequeued")
    return batch


def compacted_section() -> Section:
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
    return section_of(table, bodies)


def write(directory: Path, name: str, header: Header, batch: CommitBatch, number: int) -> Header:
    """A finished file, stamped if it has a number, under a golden name."""
    (directory / "active").mkdir(exist_ok=True)
    file = CommitFileWriter(Disk(str(directory)), Xid(FORMAT_LOCAL, b"golden", b""))
    done = file.complete(header, batch)
    if number:
        assert file.handle is not None
        file.disk.write_at(file.handle, *stamp(number))
    file.close()
    (directory / file.name).rename(directory / name)
    (directory / "active").rmdir()
    return done


def make(directory: Path) -> None:
    own = BranchEntry(Xid(FORMAT_LOCAL, OWN_ID, b""), OWN_ID, 0, 8)
    header = Header(number=0, time=1790000000.25, writer=WRITER, branches=(own,), durable_mark=41)
    write(directory, "commit.msgpack", header, commit_draft(), 42)
    entry = BranchEntry(BRANCH_XID, BRANCH_ID, 0, 1)
    header = Header(number=0, time=1790000001.0, writer=WRITER, branches=(entry,), durable_mark=42)
    voted = write(directory, "branch.msgpack", header, branch_draft(), 0)
    adoption = Adoption(BRANCH_XID, voted.size, voted.checksum, 0, 1)
    head = BranchEntry(Xid(FORMAT_LOCAL, OWN_ID, b""), OWN_ID, 0, 0)
    header = Header(number=0, time=1790000002.0, writer=WRITER, branches=(head,), adopts=(adoption,), durable_mark=42)
    write(directory, "head.msgpack", header, CommitBatch(), 43)
    batch = CommitBatch(messages=3, sections=[compacted_section()])
    batch.leave(1, 1)
    own = BranchEntry(Xid(FORMAT_LOCAL, OWN_ID, b""), OWN_ID, 0, 3)
    header = Header(number=0, time=1790000003.0, writer=WRITER, branches=(own,), supersedes=(7, 9), durable_mark=43)
    write(directory, "compaction.msgpack", header, batch, 44)


if __name__ == "__main__":
    make(HERE)
