"""Beginnings and processes that several scenarios use."""

from collections.abc import Mapping
from typing import Any

from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import claim, commit, get, last_issued, prepare, publish_up_to, release, roll_back
from tests.protocol.machine import Await, Condition, State, start
from tests.protocol.promises import Branch, Commit, Messages, after_power_cut
from tests.protocol.rules import Rules
from tests.protocol.view import View

PROMISES = Checks(after_cut=after_power_cut)


def begin(
    files: Mapping[str, Any] | None = None,
    memory: Mapping[str, Any] | None = None,
    record: Mapping[Any, Any] | None = None,
) -> State:
    """Commit 1 put the message m, if nothing else is said; it is published and durable."""
    cells = {"version of prepared": 0}
    for suffix in ("", " A", " B"):
        cells |= {f"issued{suffix}": 1, f"published{suffix}": 1}
    return start(
        {"committed/1": Commit(1, ("m",))} if files is None else files,
        cells | dict(memory or {}),
        {("initial", "m"): True} | dict(record or {}),
    )


def begin_prepared(files: Mapping[str, Any] | None = None) -> State:
    """Besides, branch x has voted: it removes m and puts r."""
    return begin(
        {"committed/1": Commit(1, ("m",)), "prepared/x": Branch("x", ("r",), ("m",))} | dict(files or {}),
        record={("voted", "x"): True},
    )


def exists(name: str) -> Condition:
    def condition(state: State, alive: tuple[bool, ...]) -> bool:
        return state.has(name)

    condition.__name__ = f"{name} exists"
    return condition


def voted(xid: str) -> Condition:
    """The branch is prepared, and its coordinator knows."""

    def condition(state: State, alive: tuple[bool, ...]) -> bool:
        return state.has(f"prepared/{xid}") and ("voted", xid) in state.noted()

    condition.__name__ = f"{xid} has voted"
    return condition


def ended(*processes: int) -> Condition:
    def condition(state: State, alive: tuple[bool, ...]) -> bool:
        return not any(alive[process] for process in processes)

    condition.__name__ = f"processes {processes} have ended"
    return condition


def putter(rules: Rules, who: str, message: str) -> Process:
    def program() -> Steps[None]:
        yield from commit(rules, View(), who, puts=(message,), told=(("put", message),))

    return Process(who, program)


def getter(rules: Rules, who: str, messages: Messages = ("m",)) -> Process:
    """Gets each message that it can get."""

    def program() -> Steps[None]:
        view = View()
        for message in messages:
            yield from get(rules, view, who, message)

    return Process(who, program)


def claimer(rules: Rules, who: str, messages: Messages = ("m",), view: View | None = None) -> Process:
    """Claims each message, and releases it without a commit."""
    first = view or View()

    def program() -> Steps[None]:
        view = View(live=first.live)
        for message in messages:
            if (yield from claim(rules, view, who, message)):
                yield from release(message)

    return Process(who, program)


def follower(rules: Rules, who: str) -> Process:
    """Settles every issued number, as a process does before it decides."""

    def program() -> Steps[None]:
        last = yield from last_issued(rules)
        yield from publish_up_to(rules, last, who)

    return Process(who, program)


def preparer(rules: Rules, who: str, xid: str = "x") -> Process:
    """Claims m, and votes for a branch that removes m and puts r."""

    def program() -> Steps[None]:
        if (yield from claim(rules, View(), who, "m")):
            yield from prepare(rules, who, xid, puts=("r",), removes=("m",))
            yield from release("m")

    return Process(who, program)


def committer(rules: Rules, who: str, xid: str = "x", when: Condition | None = None) -> Process:
    """Commits branch x, once it has voted."""

    def program() -> Steps[None]:
        yield Await(when or voted(xid))
        yield from commit(rules, View(), who, adopts=(xid,), told=(("put", "r"),))

    return Process(who, program)


def roller_back(rules: Rules, who: str, xid: str = "x", when: Condition | None = None) -> Process:
    def program() -> Steps[None]:
        yield Await(when or voted(xid))
        yield from roll_back(rules, View(), who, xid)

    return Process(who, program)
