"""What one number did, as it was read: the numbered file and the branches that it adopted, their tables, no bodies."""

from dataclasses import dataclass, field
from typing import NamedTuple

from spool.format.reader import FileContents
from spool.model.xid import Xid


class Source(NamedTuple):
    """The file in which messages lie, and the checksum of its header, which tells it from whatever else gets its name.

    ``adoption`` 0 is the numbered file itself, k its k-th adopted branch, whose xid it then has.
    """

    number: int
    adoption: int
    xid: Xid | None
    checksum: int


@dataclass(slots=True)
class Part:
    """One file of a commit. ``first``: the ordinal in the commit of its first message."""

    adoption: int
    xid: Xid | None
    first: int
    image: FileContents

    def source(self, number: int) -> Source:
        return Source(number, self.adoption, self.xid, self.image.header.checksum)


@dataclass(slots=True)
class Commit:
    """Everything that one number did. ``damage``: (file, what is wrong with it), for what could not be read."""

    number: int
    parts: list[Part]
    damage: list[tuple[str, str]] = field(default_factory=list)

    @property
    def time(self) -> float:
        return self.parts[0].image.header.time

    @property
    def adopted(self) -> list[Xid]:
        adopts = self.parts[0].image.header.adopts
        return [adoption.xid for adoption in adopts] if adopts else []
