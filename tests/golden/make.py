"""Makes the golden files: one of each kind of file, byte for byte the same each time.

Run it only when the format gets a new version: ``python -m tests.golden.make``. Keep the files of released versions:
they must stay readable.
"""

import zlib
from array import array
from pathlib import Path
from typing import Any
from unittest import mock

from spool.format.header import VOTE, Adoption
from spool.format.table import Origins
from spool.index.lookup import correlation_hash
from spool.index.segment import pack_correlations, pack_ids
from spool.model.xid import FORMAT_LOCAL, Xid
from tests import door

HERE = Path(__file__).parent
WRITER = {"pid": 4711, "program": "golden"}
OWN_ID, BRANCH_ID = bytes(range(12)), bytes(range(12, 24))
BRANCH_XID = Xid(7, b"global", b"branch")


OWN = ("begin_branch", Xid(FORMAT_LOCAL, OWN_ID, b""), OWN_ID)
MOVED = {"queue": "errors", "attempts": 0, "not_before": None, "expires_at": None, "origin_queue": "orders"}
COMMIT = (  # several queues, all control fields, kinds of body, commands on messages, a taken file and facts
    OWN,
    ("put", "orders", [b"", b"two", b"x" * 300], {}),
    ("put", "orders", ["text \N{SNOWMAN}".encode()], {"codec": "text", "content_type": "text/plain; charset=utf-8"}),
    ("put", "urgent", [b'{"a": 1}'], {
        "priority": 90, "delay": 2.5, "correlation_id": "c-1", "reply_queue": "answers",
        "failure_queue": "failures", "user_code": -5, "client_id": "me", "application_key": "key",
        "headers": {"tenant": "acme"}, "codec": "json", "content_type": "application/json",
    }),
    ("put", "orders", [b"top"], {"top": True, "time_to_live": 60.0}),
    ("put", "orders", [b"before", b"another"],
     {"before": [7, 3, 50, 1790000000.25, False, 42, 0], "expires_at": 1800000000.5, "group": "g"}),
    ("remove", 3, 0, 4, "dequeued"),
    ("update", 5, 2, 1, {"attempts": 2, "not_before": 1800000000.5}),
    ("update", 7, 4, 2, {**MOVED, "why": "expired"}),
    ("update", 7, 6, 1, {**MOVED, "origin_attempts": 3, "failure_reason": "no such article"}),
    ("record_captured_file", "drop.orders.0123456789abcdef", b"caf\xe9.txt"),
    ("fact", "heuristic:7.Zw.Yg", "committed"),
    ("fact", "deduplication:orders:k", f"{OWN_ID.hex()}00000000", 1790000304.0),
    ("fact", "capacity:orders", "high"),
)  # fmt: skip
BRANCH = (
    ("begin_branch", BRANCH_XID, BRANCH_ID),
    ("put", "answers", [b"\x82\xa1a\x01\xa1b\xc0"], {"codec": "msgpack", "content_type": "application/msgpack"}),
    ("remove", 42, 0, 1, "dequeued"),
)


def compacted_section() -> tuple[Any, list[bytes]]:
    """Two messages of one commit and one of another, which has a correlation id."""
    first, second = bytes(range(12)), bytes(range(24, 36))
    bodies = [b"one", b"two", b"three"]
    table = door.compacted_table(
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


def make(directory: Path) -> None:
    with mock.patch("spool.log.commit_file.writer_name", return_value=WRITER):
        door.write_file(directory / "commit.msgpack", COMMIT, 1790000000.25, 41, 42)
        voted = door.write_file(directory / "branch.msgpack", BRANCH, 1790000001.0, 42, 0)
        adopts = [Adoption(BRANCH_XID, voted.size, voted.checksum, 0, 1)]
        door.write_file(directory / "head.msgpack", [OWN], 1790000002.0, 42, 43, adopts=adopts)
        compacted = OWN, ("add_section", *compacted_section()), ("leave", 1, 1)
        door.write_file(directory / "compaction.msgpack", compacted, 1790000003.0, 43, 44, supersedes=(7, 9))
        door.write_file(directory / "vote.msgpack", BRANCH, 1790000004.0, 44, VOTE | 7 << 24, padded=True)


if __name__ == "__main__":
    make(HERE)
