"""A branch of a global transaction, and the error for a branch that an administrator decided differently."""

from collections.abc import Iterable
from typing import Protocol

from spool.errors import SystemFailure
from spool.model.xid import Xid
from xa.manager.ids import space_of


class ResourceBranch(Protocol):
    """The part of a global transaction in one resource that has two phases.

    name: the name under which a log registers the resource.
    """

    xid: Xid
    name: str

    def leave(self) -> None:
        """End the caller's work in the branch."""

    def prepare(self) -> bool:
        """Vote. Returns True once the vote is durable, or False if the branch was empty and has ended.

        After an exception the branch is still to be rolled back.
        """

    def commit_one_phase(self) -> None:
        """Commit the branch, which was not prepared."""

    def commit(self) -> None:
        """Commit the prepared branch. May be called again after an exception."""

    def rollback(self, reason: str) -> None:
        """Roll back the branch, prepared or not. Does nothing if the branch has ended."""


def spaces_of(branches: Iterable[ResourceBranch]) -> set[str]:
    """Return the ids of the spaces in which these branches voted."""
    return {space_of(branch.xid) for branch in branches} - {""}


class HeuristicMismatch(SystemFailure):
    """An administrator has decided a branch, and the decision of the branch's coordinator is different."""

    def __init__(self, xid: Xid, found: str, wanted: str) -> None:
        super().__init__(
            f"an administrator has {found} the branch {xid}, but its transaction was {wanted}: repair the data by hand"
        )
