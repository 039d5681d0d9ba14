"""Another party of a transaction, which acts or fails in one of its steps."""

from collections.abc import Callable

import transaction

import spool
from tests.branches import Mistake
from tests.xa.data_manager.outcomes import work
from xa.zope import join


class Other:
    """Another data manager: it acts in one step, and records its steps. ``key``: its sort key."""

    def __init__(self, key: str = "a", step: str = "", act: Callable[[], object] = lambda: None) -> None:
        self.key = key
        self.step = step
        self.act = act
        self.steps: list[str] = []
        self.transaction_manager = transaction.manager

    def sortKey(self) -> str:
        return self.key

    def __getattr__(self, name: str) -> Callable[[object], None]:
        if name not in ("abort", "tpc_begin", "commit", "tpc_vote", "tpc_finish", "tpc_abort"):
            raise AttributeError(name)

        def step(_: object) -> None:
            self.steps.append(name)
            if name == self.step:
                self.act()

        return step


def fail() -> None:
    raise Mistake


def commit_with(act: Callable[[], object], space: spool.Space, branches: int = 1) -> None:
    """Commit ``work`` in some branches; ``act`` happens after all votes."""
    join(space)
    work(space)
    for _ in range(branches - 1):
        transaction.savepoint()
        space.put("out", "more")
    transaction.get().join(Other("~", "tpc_vote", act))
    transaction.commit()
