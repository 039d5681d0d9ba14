"""The identity of a space's directory, by which a cluster's worker checks whether it sees the space."""

from typing import NamedTuple, Self

from spool.engine.remote import boot_id, identity_of


class Place(NamedTuple):
    """A directory. ``identity``: its device and inode. ``boot_id``: the boot id of its machine."""

    path: str
    identity: tuple[int, int] | None
    boot_id: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the place of a directory of this machine."""
        return cls(path, identity_of(path), boot_id())

    def is_seen(self) -> bool:
        """Return whether this process runs on the directory's machine, and finds the directory at the same path."""
        try:
            return boot_id() == self.boot_id and identity_of(self.path) == self.identity
        except OSError:  # e.g. a directory of another user
            return False
