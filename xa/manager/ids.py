"""The identifiers of global transactions: log directory, coordinator, and serial number.

The xid of a branch has the format id ``FORMAT_MANAGED``, and the 32 bytes of the ``TransactionId`` as its gtrid. Its
bqual is the branch's place in the transaction; in a space, the id of the space follows. In a database, the parts are
written in hex.
"""

from typing import NamedTuple, Self

from spool.decisions import COORDINATOR_BYTES
from spool.model.xid import FORMAT_MANAGED, Xid

_SERIAL_BYTES = 8
_PLACE_BYTES = 2


class TransactionId(NamedTuple):
    """The id of a global transaction.

    directory: the id of the log directory, 12 bytes. coordinator: the id of the coordinator, 12 bytes.
    serial: the number of the transaction among the transactions of its coordinator, from 1.
    """

    directory: bytes
    coordinator: bytes
    serial: int

    def branch(self, place: int, space: str = "") -> Xid:
        """Return the xid of a branch.

        ``place``: 0 to 65535. ``space``: the id of the space in which the branch votes; "" for a database.
        """
        gtrid = self.directory + self.coordinator + self.serial.to_bytes(_SERIAL_BYTES, "big")
        return Xid.checked(FORMAT_MANAGED, gtrid, place.to_bytes(_PLACE_BYTES, "big") + bytes.fromhex(space))

    @property
    def decider(self) -> str:
        """The hex ids of the directory and of the coordinator, as a table of decisions has them."""
        return (self.directory + self.coordinator).hex()

    @classmethod
    def of(cls, xid: Xid) -> Self | None:
        """Return the id of the transaction of a branch; None if its coordinator is no manager of ours."""
        gtrid, coordinator_end = xid.gtrid, 2 * COORDINATOR_BYTES
        if xid.format_id != FORMAT_MANAGED or len(gtrid) != coordinator_end + _SERIAL_BYTES:
            return None
        return cls(
            gtrid[:COORDINATOR_BYTES],
            gtrid[COORDINATOR_BYTES:coordinator_end],
            int.from_bytes(gtrid[coordinator_end:], "big"),
        )

    def __str__(self) -> str:
        return f"{self.coordinator.hex()}/{self.serial}"


def space_of(xid: Xid) -> str:
    """Return the id of the space in which a branch voted; "" for a branch in a database."""
    return xid.bqual[_PLACE_BYTES:].hex()
