"""The steps of a global transaction, and a way to act just before or just after one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from spool.decisions import DecisionLog
from xa.manager import decision_table
from xa.manager.database_connections import _Psycopg
from xa.manager.last_resource import EndedDecisions
from xa.manager.outcomes import Outcomes
from xa.manager.space_branch import SpaceBranch
from xa.manager.two_phase_branch import TwoPhaseBranch


class Step(NamedTuple):
    """A call of one transaction. ``owner``, ``name``: the place of the function."""

    text: str
    owner: Any
    name: str


_BOTH = [
    Step("enlisting the space", SpaceBranch, "__init__"),
    Step("registering a resource", DecisionLog, "register"),
    Step("the vote of the space", SpaceBranch, "prepare"),
]
STEPS = {
    False: [
        *_BOTH,
        Step("the row of the decision", decision_table, "insert"),
        Step("the decision", _Psycopg, "commit"),
        Step("the commit of the space", SpaceBranch, "commit"),
        Step("the commits of the branches", Outcomes, "complete"),
        Step("the end of the decision", EndedDecisions, "add"),
    ],
    True: [
        *_BOTH,
        Step("enlisting the database", TwoPhaseBranch, "__init__"),
        Step("the vote of the database", TwoPhaseBranch, "prepare"),
        Step("the decision", DecisionLog, "record"),
        Step("the commit of the space", SpaceBranch, "commit"),
        Step("the commit of the database", TwoPhaseBranch, "commit"),
        Step("the commits of the branches", Outcomes, "complete"),
        Step("the end of the decision", DecisionLog, "end"),
    ],
}
"""The steps by whether the database takes part with two phases; otherwise it is the last resource."""


@contextmanager
def acting(step: Step, when: str, act: Callable[[], object]) -> Iterator[list[str]]:
    """Act once, ``"before"`` or ``"after"`` the first call of a step. Yields a list that then has an element."""
    done: list[str] = []
    call = getattr(step.owner, step.name)

    def around(*arguments: Any, **options: Any) -> Any:
        if when == "before" and not done:
            done.append(when)
            act()
        result = call(*arguments, **options)
        if when == "after" and not done:
            done.append(when)
            act()
        return result

    with mock.patch.object(step.owner, step.name, around):
        yield done
