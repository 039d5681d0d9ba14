"""A history, and the contents that are allowed at each moment of it.

Before a call the old contents are allowed, during the call the old or the new ones, after its return the new ones only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import spool
from spool.disk.disk import FlushFailed
from tests import door
from tests.histories.contents import Contents

Effect = Callable[[Contents], Contents]


class Unmet(Exception):
    """A step did less than the rest of the history needs. Only a failure of the disk may cause this."""


def did(much: int) -> None:
    """Expect that a step of the housekeeping found something to do."""
    if not much:
        raise Unmet


@contextmanager
def housekeeping(space: spool.Space) -> Iterator[None]:
    """Work that no caller waits for: a failed flush stops the space, and another failure is only logged."""
    try:
        with door.store(space).guard.step:
            yield
    except FlushFailed:
        door.store(space).stop()
        raise Unmet from None
    except OSError:
        raise Unmet from None


class Options(TypedDict, total=False):
    """How contents become others.

    meanwhile: contents that are also allowed while the block runs. partly: contents that are also allowed after an
    exception that came between two requests of the block. surely: whether only the new contents are allowed
    afterwards.

    The others concern a disk that fails. failing: the contents that are also allowed after a block that returned (an
    attempt that could not be counted). unsure: the block may have had its effect after any error. decides: the block is
    a second phase, which never raises XAER_RMERR, because that code tells the coordinator that the branch was rolled
    back.
    """

    surely: bool
    meanwhile: Iterable[Contents]
    partly: Iterable[Contents]
    failing: Callable[[Contents], Iterable[Contents]]
    unsure: bool
    decides: bool


class Expectation:
    """The contents that are allowed now. ``kept``: those after a kill without a power cut, if they are fewer."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.allowed = frozenset([contents])
        self.kept: frozenset[Contents] | None = None

    @property
    def after_kill(self) -> frozenset[Contents]:
        return self.allowed if self.kept is None else self.kept

    @contextmanager
    def becoming(self, effect: Contents | Effect, **options: Unpack[Options]) -> Iterator[None]:
        """While the block runs, the old and the new contents are allowed; afterwards only the new ones."""
        contents = effect if isinstance(effect, Contents) else effect(self.contents)
        self.allowed = frozenset([self.contents, contents, *options.get("meanwhile", ())])
        yield
        self.contents = contents
        if options.get("surely", True):
            self.allowed = frozenset([contents])


@dataclass(frozen=True)
class History:
    """The calls of one process.

    ``setup`` has ended and is durable when ``run`` begins; ``begin`` are the contents then. ``decided`` maps a decision
    on the branch in doubt to the contents after it; ``outcome``: the decision of the coordinator that finishes a
    history after a failure. ``may_return``: the contents that a power cut may bring back after later ones were visible
    (a branch whose file was removed without a flush). ``finish`` runs in each space that is opened after the
    failure, before the contents are read.
    ``survivors``: the most disks that a default run tries for each cut (long histories have many cuts). ``mirrored``:
    the space has a mirror. ``loses``: a power cut may take visible messages, if the expectation allows it. ``by_task``:
    a task that reads and writes the space itself takes part."""

    name: str
    setup: Callable[[spool.Space], None]
    begin: Contents
    run: Callable[[spool.Space, Expectation], object]
    decided: Mapping[Contents, Mapping[str, Contents]] = field(default_factory=dict)
    may_return: frozenset[Contents] = frozenset()
    finish: Callable[[spool.Space], object] = lambda space: None
    outcome: str = "rollback"
    survivors: int = 3
    mirrored: bool = False
    loses: bool = False
    by_task: bool = False

    def __str__(self) -> str:
        return self.name
