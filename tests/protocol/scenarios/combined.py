"""Processes that commit together.

A process that finds a leader posts its request in a slot of shared memory and sleeps. The leader takes all posted
requests into its own file. A request is "posted", then "joined" (a leader gathers it), "taken" (with the number of the
file), and "done". A leader may die at any step, and a poster may give up while its request is only posted.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tests.protocol.checker import Faults, Process, Steps
from tests.protocol.engine import (
    last_issued,
    lock_free_number,
    next_number,
    publish_up_to,
    release,
    rename_to_number,
    second_look,
    tell,
)
from tests.protocol.machine import (
    Await,
    Choose,
    Condition,
    Context,
    Create,
    Flush,
    Load,
    LoadAll,
    Lock,
    Note,
    Read,
    State,
    Store,
    TryLock,
    Unlock,
    Violation,
    Write,
)
from tests.protocol.promises import Commit, Messages, Unnumbered, is_commit, note_delivery, note_publication
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Mistake, Scenario, Setting
from tests.protocol.scenarios.parts import PROMISES, begin, putter
from tests.protocol.view import View, store_counter


@dataclass(frozen=True)
class Together:
    """The rules of a common commit; each default is right."""

    patient: bool = True
    """No process gives up. (No rule: with False the checker tries both.)"""
    joined: bool = True
    """A leader marks a request as joined, under the byte of its slot, before it reads it for good."""
    mark: Literal["before rename", "after rename", "after stamp"] = "after rename"
    """When a leader stores its number in the requests that it takes. Both before the stamp are right."""
    resolve: bool = True
    """A request that a dead leader took is looked for in the file of its number before it is posted again."""
    look_at_requests: Literal["first", "last", "no"] = "first"
    """A claim looks for requests of dead processes before the second look."""


_RIGHT = Together()


class Request(NamedTuple):
    state: str
    puts: Messages
    removes: Messages
    number: int = 0


class _Work(NamedTuple):
    """The work of one process: the messages that it puts and removes, and the callers that wait for the outcome."""

    who: str
    others: tuple[str, ...]
    puts: Messages = ()
    removes: Messages = ()
    told: tuple[Messages, ...] = ()


def _note_common(state: State, context: Context, number: int) -> State:
    """Each request is committed once, whatever leaders die, and not at all once it was withdrawn."""
    state = note_publication(state, context, number)
    record = state.noted()
    committed: dict[str, int] = {}
    for key, content in record.items():
        if isinstance(key, tuple) and key[0] == "content" and content:
            for message in content.puts:
                if message in committed:
                    raise Violation(f"{message} was put by two commits, {committed[message]} and {key[1]}")
                committed[message] = key[1]
    for message in committed:
        if ("withdrawn", message) in record:
            raise Violation(f"{message} was withdrawn and is committed")
    return state


def _note_withdrawal(state: State, context: Context, messages: Messages) -> State:
    for key, content in state.record:
        if isinstance(key, tuple) and key[0] == "content" and content and set(content.puts) & set(messages):
            raise Violation(f"{messages[0]} was withdrawn and is committed")
    for message in messages:
        state = state.note(("withdrawn", message))
    return state


def _was_committed(rules: Rules, who: str, request: Request) -> Steps[bool]:
    """Return whether the file of the number that a dead leader noted has the request."""
    last = yield from last_issued(rules)
    if request.number > last:
        return False
    del last
    yield from publish_up_to(rules, request.number, who)
    content = yield Read(f"committed/{request.number}")
    if not is_commit(content, request.number):
        return False
    return {*request.puts} <= {*content.puts} and {*request.removes} <= {*content.removes}


def _gather(rules: Rules, together: Together, work: _Work) -> Steps[tuple[tuple[str, Request], ...]]:
    """Holding the lead: the posted requests, also of dead processes; those of dead leaders are resolved or posted
    again."""
    taken: tuple[tuple[str, Request], ...] = ()
    for other in work.others:
        request = yield Load(f"request {other}")
        if not request:
            continue
        if request.state == "posted":
            request = yield from _join(together, other)
            if request is not None:
                taken = (*taken, (other, request))
        elif request.state in ("taken", "joined") and together.resolve:
            done = request.state == "taken" and (yield from _was_committed(rules, work.who, request))
            yield Store(f"request {other}", request._replace(state="done" if done else "posted"))
            del done
    return taken


def _join(together: Together, other: str) -> Steps[Request | None]:
    if not together.joined:
        request = yield Load(f"request {other}")
        return request or None
    yield Lock(f"slot of {other}")
    request = yield Load(f"request {other}")
    joined = bool(request) and request.state == "posted"
    if joined:
        yield Store(f"request {other}", request._replace(state="joined"))
    yield Unlock(f"slot of {other}")
    return request if joined else None


def _lead(rules: Rules, together: Together, work: _Work) -> Steps[None]:
    """Holding the lead: commit the own request and all that others have posted in one file."""
    taken = yield from _gather(rules, together, work)
    puts, removes = work.puts, work.removes
    for _, request in taken:
        puts += request.puts
        removes += request.removes
    file = yield Create(f"active/{work.who}", Unnumbered(work.who))
    yield Lock("number lock")
    number = yield from next_number(rules)
    number = yield from lock_free_number(number)
    content = Commit(number, puts, removes)
    if together.mark == "before rename":
        yield from _mark(taken, "taken", number)
    yield Store(f"slot {number}", content)
    yield from rename_to_number(f"active/{work.who}", number)
    yield from store_counter(rules, "issued", number)
    if together.mark == "after rename":
        yield from _mark(taken, "taken", number)
    yield Unlock("number lock")
    yield Write(file, content)
    if together.mark == "after stamp":
        yield from _mark(taken, "taken", number)
    yield Flush(file)
    if number > 1:
        yield from publish_up_to(rules, number - 1, work.who)
    yield from store_counter(rules, "published", number)
    yield Note(_note_common, number)
    yield Unlock(f"number {number}")
    yield from tell(work.told)
    yield from _mark(taken, "done", number)
    yield Unlock("lead")


def _mark(taken: tuple[tuple[str, Request], ...], state: str, number: int) -> Steps[None]:
    for other, request in taken:
        yield Store(f"request {other}", request._replace(state=state, number=number))


def _done_or_no_leader(who: str) -> Condition:
    def condition(state: State, alive: tuple[bool, ...]) -> bool:
        request = state.cell(f"request {who}")
        done = bool(request) and request.state == "done"
        return done or not any(lock == "lead" for lock, _, _ in state.locks)

    condition.__name__ = f"request {who} done, or no leader"
    return condition


def _commit_together(rules: Rules, together: Together, work: _Work) -> Steps[None]:
    if (yield TryLock("lead")):
        yield from _lead(rules, together, work)
        return
    yield Store(f"request {work.who}", Request("posted", work.puts, work.removes))
    while True:
        if together.patient or not (yield Choose((True, False))):
            yield Await(_done_or_no_leader(work.who))
        elif (yield from _give_up(together, work)):
            return
        request = yield Load(f"request {work.who}")
        if request.state != "done":
            if not (yield TryLock("lead")):
                continue
            request = yield Load(f"request {work.who}")
            taken = request.state == "taken" and together.resolve
            if taken and (yield from _was_committed(rules, work.who, request)):
                request = request._replace(state="done")
            del taken
            if request.state != "done":
                yield Store(f"request {work.who}", 0)
                yield from _lead(rules, together, work)
                return
            yield Unlock("lead")
        yield Store(f"request {work.who}", 0)
        yield from tell(work.told)
        return


def _give_up(together: Together, work: _Work) -> Steps[bool]:
    """The deadline of the call: withdraw the request if no leader has joined it, else the outcome is unknown."""
    if together.joined:
        yield Lock(f"slot of {work.who}")
    request = yield Load(f"request {work.who}")
    if request.state == "posted":
        yield Store(f"request {work.who}", 0)
        yield Note(_note_withdrawal, work.puts)
    yield Unlock(f"slot of {work.who}")
    return bool(request.state != "done")


def _look_at_requests(rules: Rules, who: str, others: tuple[str, ...], message: str) -> Steps[None]:
    """A request that removes the claimed message is one of a dead process: resolve it or remove it."""
    for other in others:
        request = yield Load(f"request {other}")
        if not request or request.state == "done" or message not in request.removes:
            continue
        yield Lock("lead")
        request = yield Load(f"request {other}")
        if request and request.state == "taken":
            yield from _was_committed(rules, who, request)
        if request and request.state != "done" and message in request.removes:
            yield Store(f"request {other}", 0)
        yield Unlock("lead")


def _claim(
    rules: Rules, together: Together, view: View, who: str, others: tuple[str, ...], message: str
) -> Steps[bool]:
    yield Lock(f"claim {message}")
    if together.look_at_requests == "first":
        yield from _look_at_requests(rules, who, others, message)
    page = yield LoadAll(("version of prepared", "published", "issued"))
    yield from second_look(rules, view, who, message, page)
    del page
    if together.look_at_requests == "last":
        yield from _look_at_requests(rules, who, others, message)
    if not view.has(message):
        yield Unlock(f"claim {message}")
        return False
    yield Note(note_delivery, message)
    return True


def _put(rules: Rules, together: Together, who: str, others: str) -> Process:
    work = _Work(who, tuple(others), puts=(who.lower(),), told=(("put", who.lower()),))
    return Process(who, lambda: _commit_together(rules, together, work))


def _get(rules: Rules, together: Together, who: str, others: str, commits: bool = True) -> Process:
    work = _Work(who, tuple(others), removes=("m",), told=(("got", "m"),))

    def program() -> Steps[None]:
        view = View()
        if (yield from _claim(rules, together, view, who, tuple(others), "m")):
            if commits:
                yield from _commit_together(rules, together, work)
            yield from release("m")

    return Process(who, program)


def puts_together(
    rules: Rules,
    together: Together = _RIGHT,
    putters: str = "AB",
    impatient: str = "",
    alone: bool = False,
) -> Case:
    """Each process puts a message; ``impatient`` ones may give up. ``alone``: C commits in a file of its own."""
    processes = [
        _put(rules, replace(together, patient=who not in impatient), who, putters.replace(who, "")) for who in putters
    ]
    if alone:
        processes.append(putter(rules, "C", "c"))
    return Case(processes, begin(), PROMISES)


def get_together(rules: Rules, together: Together = _RIGHT, getters: int = 1) -> Case:
    """A gets m and B puts b, in one commit if they meet. C claims m, or gets m, too."""
    c = _get(rules, together, "C", "AB", commits=getters == 2)
    a = _get(rules, together, "A", "BC" if getters == 2 else "B")
    b = _put(rules, together, "B", "AC" if getters == 2 else "A")
    return Case([a, b, c], begin(), PROMISES)


ONLY_A = Faults(killable=("A",))
A_AND_B = Faults(killable=("A", "B"))


def _options(**options: Any) -> dict[str, Any]:
    return options


SCENARIOS = (
    Scenario(
        "puts-together",
        "processes put together",
        (1, 2, 3, 14, 18, 19, 22),
        puts_together,
        (
            Setting(2),
            Setting(1, power=True),
            Setting(2, options=_options(impatient="AB")),
            Setting(2, options=_options(together=Together(mark="before rename"))),
            Setting(0, options=_options(putters="ABC")),
            Setting(0, options=_options(putters="ABC", impatient="A"), long=True),
            Setting(1, options=_options(putters="ABC"), long=True),
            Setting(1, options=_options(alone=True), long=True),
        ),
        (
            Mistake(
                "a request is withdrawn that a leader may have read",
                "was withdrawn and is committed",
                Setting(options=_options(impatient="AB", together=Together(joined=False))),
            ),
            Mistake(
                "requests are marked as taken after the stamp",
                "put by two commits",
                Setting(2, options=_options(together=Together(mark="after stamp"))),
            ),
            Mistake(
                "a taken request is posted again without a look at its number",
                "put by two commits",
                Setting(2, options=_options(together=Together(resolve=False))),
            ),
        ),
    ),
    Scenario(
        "get-together",
        "a get and a put in one commit, beside a claim",
        (4, 14, 18, 19, 20),
        get_together,
        (
            Setting(0),
            Setting(1, long=True),
            Setting(2, long=True),
            Setting(1, power=True, long=True),
            Setting(1, faults=ONLY_A, options=_options(getters=2), long=True),
        ),
        (
            Mistake(
                "a claim does not look at requests",
                "removed by two commits",
                Setting(1, faults=ONLY_A, options=_options(getters=2, together=Together(look_at_requests="no"))),
            ),
            Mistake(
                "a claim looks at requests after the second look",
                "although commit",
                Setting(
                    2, faults=Faults(killable=("A", "B")), options=_options(together=Together(look_at_requests="last"))
                ),
            ),
        ),
    ),
)
