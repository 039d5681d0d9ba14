"""X/Open transaction identifiers, and the file names made from them.

Source: X/Open CAE Specification "Distributed Transaction Processing: The XA Specification", section 4.2.

An xid has three parts. The format id is a signed 32-bit number; -1 is the null xid. The global transaction id has 1 to
64 bytes, and the branch qualifier has 0 to 64 bytes.
"""

import base64
import binascii
import os
import re
from binascii import b2a_base64
from functools import lru_cache
from typing import NamedTuple

MAX_GTRID_BYTES = 64
MAX_BQUAL_BYTES = 64

# This library uses three format ids. For the first two format ids, the coordinator holds a lock in run/ while it lives.
# So a process that finds the lock free rolls back the undecided branch. Any other format id belongs to a foreign
# coordinator. ``xa.TransactionManager`` is also foreign, because it keeps its decisions outside the space.
BRANCH_ID_BYTES = 12
FORMAT_LOCAL = 0x58500001  # for a transaction of one process; no coordinator gets the xid
LOCAL_TEXT = f"{FORMAT_LOCAL}.%s."  # % the gtrid in base64url; a local xid has no bqual
FORMAT_ROUND = 0x58500002  # gtrid = id of a forwarding round or a Spark write, bqual = partition and attempt
FORMAT_MANAGED = 0x58500003  # a transaction of ``xa.TransactionManager``
FORMATS_USED_ONCE = frozenset({FORMAT_LOCAL, FORMAT_ROUND, FORMAT_MANAGED})  # xids with random gtrids
FORMATS_BOUND_TO_A_LIFE = frozenset({FORMAT_LOCAL, FORMAT_ROUND})

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\.([A-Za-z0-9_-]{2,86})\.([A-Za-z0-9_-]{0,86})")


class Xid(NamedTuple):
    """The identifier of a transaction branch.

    ``format_id`` is 0 to 2**31-1, ``gtrid`` has 1 to 64 bytes, and ``bqual`` has 0 to 64 bytes. An xid unpacks as a
    3-tuple. ``str(xid)`` is ``format.gtrid.bqual``, a file name of at most 184 characters. ``gtrid`` and ``bqual`` are
    in unpadded base64url, which contains no dot. So :meth:`parse` can split the text again.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes

    @lru_cache(maxsize=256)  # noqa: B019 (one commit asks a dozen times for the text of its branch)
    def __str__(self) -> str:
        text = b"%d.%s.%s" % (self[0], b2a_base64(self[1], newline=False), b2a_base64(self[2], newline=False))
        return text.translate(_URL_SAFE, b"=").decode("ascii")

    def __repr__(self) -> str:
        """Return the text form, which ``spool-admin transaction`` prints and accepts."""
        try:
            return f"Xid.parse({str(self)!r})"
        except TypeError:  # the caller gave parts of other types
            return tuple.__repr__(self)

    @classmethod
    def checked(cls, format_id: int, gtrid: bytes, bqual: bytes) -> "Xid":
        """Return the xid of these parts. Raises ValueError if a part exceeds X/Open's limits."""
        if not isinstance(format_id, int) or not 0 <= format_id < 2**31:
            raise ValueError(f"an xid's format id is 0 to 2147483647, not {format_id!r}")
        if not isinstance(gtrid, bytes) or not 1 <= len(gtrid) <= MAX_GTRID_BYTES:
            raise ValueError(f"an xid's gtrid is 1 to {MAX_GTRID_BYTES} bytes, not {gtrid!r}")
        if not isinstance(bqual, bytes) or len(bqual) > MAX_BQUAL_BYTES:
            raise ValueError(f"an xid's bqual is at most {MAX_BQUAL_BYTES} bytes, not {bqual!r}")
        return tuple.__new__(cls, (format_id, gtrid, bqual))  # (NamedTuple's ``__new__`` would run Python code)

    @classmethod
    def parse(cls, text: str) -> "Xid":
        """Return the xid whose ``str()`` is this text. Raises ValueError if no xid has this text."""
        if (match := _NAME.fullmatch(text)) is None:
            raise ValueError(f"{text!r} is not an xid, which is written format.gtrid.bqual, e.g. 0.b3JkZXI.MQ")
        try:
            xid = cls.checked(int(match[1]), _decode(match[2]), _decode(match[3]))
        except binascii.Error:
            raise ValueError(f"{text!r} is not an xid, whose parts are unpadded base64url") from None
        # Base64 has unused bits, so several texts decode to one xid. Only one of these texts may name a branch.
        if str(xid) != text:
            raise ValueError(f"{text!r} is not an xid in its one written form, which is {xid}")
        return xid


def new_local_xid() -> Xid:
    """Return a new xid for a transaction of this process. No coordinator gets the xid."""
    return Xid(FORMAT_LOCAL, os.urandom(12), b"")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
