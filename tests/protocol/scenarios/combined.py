"""Processes that commit together.

A process that finds a leader posts its request in a slot of shared memory and sleeps. The leader takes all posted
requests into its own file. A request is "posted", then "joined" (a leader gathers it), "taken" (with the number of the
file), and "done"; the number 0 leaves a done request to its owner. An "empty" slot keeps the content of its last
request. A slot is "damaged" if its word does not prove its state. A leader may die or fail at any step, and a poster
may give up while its request is only posted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tests.protocol import engine, machine
from tests.protocol.checker import Faults, Process, Steps
from tests.protocol.promises import Commit, Messages, Unnumbered, is_commit, note_delivery, note_publication, note_told
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import PROMISES, begin, putter
from tests.protocol.view import View, catch_up, store_counter


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
    raises: str = ""
    """Processes whose commits may fail between *issued* and *published*; they go on. (No rule.)"""
    finish: Literal["committed", "taken"] = "committed"
    """The requests that a leader marks as done: those of a commit that has ended, not all that it took."""
    damage: Messages = ()
    """Another program stores one of these states in a slot. (No rule.)"""
    proven: bool = True
    """The word of a slot proves its state, so a wrong word is seen as "damaged"."""
    damaged: Literal["unknown", "posted", "empty"] = "unknown"
    """A damaged slot may have a request that stands; its owner cannot know the outcome."""
    own: Literal["asks", "takes", "asks at any time"] = "asks"
    """How a process looks for a slot without an owner: it asks for the owners' bytes, one process at a time."""
    stores: Literal[1, 2] = 1
    """How often a process stores the word of its request: the C library copies a few bytes by two stores."""
    disowns: bool = True
    """A process that gives up a request gives up its slot, too."""


_RIGHT = Together()


class Request(NamedTuple):
    state: str
    puts: Messages
    removes: Messages
    number: int = 0

    @property
    def stands(self) -> bool:
        return self.state not in ("empty", "done")


class _Work(NamedTuple):
    """The work of one process: the messages that it puts and removes, and the callers that wait for the outcome.

    ``slot``: the slot of the process. ``slots``: the slots that it looks at when it leads.
    """

    who: str
    slot: str
    slots: tuple[str, ...]
    puts: Messages = ()
    removes: Messages = ()
    told: tuple[Messages, ...] = ()
    is_only: bool = True  # whether no other process puts the same messages


# -- promises ---------------------------------------------------------------------------------------------------------


def _check_once(record: dict[Any, Any]) -> dict[str, int]:
    """Return the messages that commits put. Each request is committed once, and not at all once it was withdrawn."""
    committed: dict[str, int] = {}
    for key, content in record.items():
        if isinstance(key, tuple) and key[0] == "content" and content:
            for message in content.puts:
                if message in committed:
                    raise machine.Violation(f"{message} was put by two commits, {committed[message]} and {key[1]}")
                committed[message] = key[1]
    for message in committed:
        if ("withdrawn", message) in record:
            raise machine.Violation(f"{message} was withdrawn and is committed")
    return committed


def _note_common(state: machine.State, context: machine.Context, number: int) -> machine.State:
    state = note_publication(state, context, number)
    _check_once(state.noted())
    return state


def _note_told(state: machine.State, context: machine.Context, *promise: str) -> machine.State:
    """A caller was told; a put that no commit has is lost."""
    kind, message = promise
    if kind == "put" and message not in _check_once(state.noted()):
        raise machine.Violation(f"{message} was acknowledged and no commit has it")
    return note_told(state, context, *promise)


def _tell(promises: tuple[Messages, ...]) -> Steps[None]:
    for promise in promises:
        yield machine.Note(_note_told, *promise)


def _note_withdrawal(state: machine.State, context: machine.Context, messages: Messages) -> machine.State:
    for message in messages:
        state = state.note(("withdrawn", message))
    _check_once(state.noted())
    return state


def _at_end(state: machine.State, alive: tuple[bool, ...]) -> None:
    _check_once(state.noted())


_CHECKS = PROMISES._replace(at_end=_at_end)


# -- the slots --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage(machine.Operation):
    """Change the state of a slot that has had a request; nothing else of the slot changes."""

    cell: str
    state: str

    def outcomes(self, state: machine.State, context: machine.Context) -> machine.Outcomes:
        request = state.cell(self.cell)
        if not request or request.state == self.state:
            return [(state, False)]
        memory = {**dict(state.memory), self.cell: request._replace(state=self.state)}
        return [(state._replace(memory=frozenset(memory.items())), True)]


def _damaging(together: Together, slots: tuple[str, ...]) -> Process:
    """Another program stores one wrong word, which has no valid checksum."""
    states = ("damaged",) if together.proven else together.damage

    def program() -> Steps[None]:
        slot = yield machine.Choose(slots)
        state = yield machine.Choose(states)
        yield Damage(f"request {slot}", state)

    return Process("D", program)


def _change(together: Together, slot: str, request: Request, before: str, state: str, number: int = 0) -> Steps[None]:
    """Change the state of a request that this leader has joined, unless its slot is damaged."""
    if together.damage:
        now = yield machine.Load(f"request {slot}")
        if now.state != before:
            return
    yield machine.Store(f"request {slot}", request._replace(state=state, number=number))


def _own(together: Together, slots: tuple[str, ...]) -> Steps[str | None]:
    """Take a slot that has no owner and no standing request."""
    if together.own == "asks" and not (yield machine.TryLock("search")):
        return None
    found = None
    for slot in slots:
        request = yield machine.Load(f"request {slot}")
        if request and request.stands:
            continue
        if together.own == "takes" or not (yield machine.IsLocked(f"owner {slot}")):
            if together.own == "asks":
                request = yield machine.Load(f"request {slot}")
                if request and request.stands:
                    continue
            if (yield machine.TryLock(f"owner {slot}")):
                request = yield machine.Load(f"request {slot}")
                if not (request and request.stands):
                    found = slot
                    break
                yield machine.Unlock(f"owner {slot}")
    del request
    if together.own == "asks":
        yield machine.Unlock("search")
    return found


# -- leading ----------------------------------------------------------------------------------------------------------


def _was_committed(rules: Rules, who: str, request: Request) -> Steps[bool]:
    """Return whether the file of the number that a dead leader noted has the request."""
    last = yield from engine.last_issued(rules)
    if request.number > last:
        return False
    del last
    yield from engine.publish_up_to(rules, request.number, who)
    content = yield machine.Read(f"committed/{request.number}")
    if not is_commit(content, request.number):
        return False
    return {*request.puts} <= {*content.puts} and {*request.removes} <= {*content.removes}


def _gather(rules: Rules, together: Together, work: _Work) -> Steps[tuple[tuple[str, Request], ...]]:
    """Holding the lead: the posted requests, also of dead processes; those of dead leaders are resolved or posted
    again. A damaged slot is emptied."""
    joined: tuple[tuple[str, Request], ...] = ()
    for slot in work.slots:
        request = yield machine.Load(f"request {slot}")
        if not request:
            continue
        if request.state == "posted":
            request = yield from _join(together, slot)
            if request is not None:
                joined = (*joined, (slot, request))
        elif request.state == "damaged":
            yield machine.Store(f"request {slot}", request._replace(state="empty"))
        elif request.state in ("taken", "joined") and together.resolve:
            done = request.state == "taken" and (yield from _was_committed(rules, work.who, request))
            yield machine.Store(f"request {slot}", request._replace(state="done" if done else "posted"))
            del done
    return joined


def _join(together: Together, slot: str) -> Steps[Request | None]:
    if not together.joined:
        request = yield machine.Load(f"request {slot}")
        return request if request.stands else None
    yield machine.Lock(f"slot of {slot}")
    request = yield machine.Load(f"request {slot}")
    if joined := request.state == "posted":
        yield machine.Store(f"request {slot}", request._replace(state="joined"))
    yield machine.Unlock(f"slot of {slot}")
    return request if joined else None


def _lead(rules: Rules, together: Together, work: _Work) -> Steps[None]:
    """Holding the lead: commit the own request and all that others have posted in one file."""
    joined = yield from _gather(rules, together, work)
    puts, removes = work.puts, work.removes
    for _, request in joined:
        puts += request.puts
        removes += request.removes
    file = yield machine.Create(f"active/{work.who}", Unnumbered(work.who))
    yield machine.Lock("number lock")
    number = yield from engine.following_number(rules)
    if together.mark == "before rename":
        for slot, request in joined:
            yield from _change(together, slot, request, "joined", "taken", number)
    number = yield from engine.take_number(f"active/{work.who}", number)
    content = Commit(number, puts, removes)
    yield machine.Store(f"slot {number}", content)
    yield from store_counter(rules, "issued", number)
    committed = yield from _write(rules, together, work.who, file, content, joined)
    if committed:
        yield from _tell(work.told)
    if committed or together.finish == "taken":
        for slot, request in joined:
            yield from _change(together, slot, request, "taken", "done", number)
    if together.raises:  # a request that is not taken is in no commit: its owner commits it
        for slot, request in joined:
            now = yield machine.Load(f"request {slot}")
            if now.state == "joined":
                yield machine.Store(f"request {slot}", request._replace(state="done", number=0))
            del now
    yield machine.Unlock("lead")


def _write(
    rules: Rules, together: Together, who: str, file: int, content: Commit, joined: tuple[tuple[str, Request], ...]
) -> Steps[bool]:
    """Stamp, flush and publish an issued number. Return False if a step failed; the number's byte is free then."""
    number = content.number
    fails = yield from _may_fail(together, who)
    if together.mark == "after rename":
        for slot, request in joined:
            if not fails:
                yield from _change(together, slot, request, "joined", "taken", number)
                fails = yield from _may_fail(together, who)
    yield machine.Unlock("number lock")
    if not fails:
        yield machine.Write(file, content)
        if together.mark == "after stamp":
            for slot, request in joined:
                yield from _change(together, slot, request, "joined", "taken", number)
        fails = yield from _may_fail(together, who)
    if not fails:
        yield machine.Flush(file)
        if number > 1:
            yield from engine.publish_up_to(rules, number - 1, who)
        yield from store_counter(rules, "published", number)
        yield machine.Note(_note_common, number)
    yield machine.Unlock(f"number {number}")
    return not fails


def _may_fail(together: Together, who: str) -> Steps[bool]:
    return who in together.raises and bool((yield machine.Choose((False, True))))


# -- the owner of a request -------------------------------------------------------------------------------------------


def _answered_or_no_leader(slot: str) -> machine.Condition:
    def condition(state: machine.State, alive: tuple[bool, ...]) -> bool:
        answered = state.cell(f"request {slot}").state in ("done", "damaged", "empty")
        return answered or not any(lock == "lead" for lock, _, _ in state.locks)

    condition.__name__ = f"request {slot} answered, or no leader"
    return condition


def _commit_together(rules: Rules, together: Together, work: _Work) -> Steps[None]:
    if (yield machine.TryLock("lead")):
        yield from _lead(rules, together, work)
        return
    yield from _post(rules, together, work)


def _post(rules: Rules, together: Together, work: _Work) -> Steps[None]:
    for _ in range(together.stores):
        yield machine.Store(f"request {work.slot}", Request("posted", work.puts, work.removes))
    while True:
        if together.patient or not (yield machine.Choose((True, False))):
            yield machine.Await(_answered_or_no_leader(work.slot))
        elif (yield from _give_up(together, work)):
            return
        request = yield machine.Load(f"request {work.slot}")
        if request.stands and (request.state != "damaged" or together.damaged == "posted"):
            if not (yield machine.TryLock("lead")):
                continue
            request = yield machine.Load(f"request {work.slot}")
            taken = request.state == "taken" and together.resolve
            if taken and (yield from _was_committed(rules, work.who, request)):
                request = request._replace(state="done")
            del taken
            if request.state in ("posted", "joined", "taken") or together.damaged == "posted":
                yield machine.Store(f"request {work.slot}", request._replace(state="empty"))
                yield from _lead(rules, together, work)
                return
            yield machine.Unlock("lead")
        if request.state != "done":  # damaged, or a leader has found it damaged: the outcome is unknown
            return
        yield machine.Store(f"request {work.slot}", request._replace(state="empty"))
        if request.number:
            yield from _tell(work.told)
        else:
            yield machine.Lock("lead")
            yield from _lead(rules, together, work)
        return


def _give_up(together: Together, work: _Work) -> Steps[bool]:
    """The deadline of the call: withdraw the request if no leader has joined it, else the outcome is unknown."""
    if together.joined:
        yield machine.Lock(f"slot of {work.slot}")
    request = yield machine.Load(f"request {work.slot}")
    if request.state == "posted":
        yield machine.Store(f"request {work.slot}", request._replace(state="empty"))
        yield machine.Note(_note_withdrawal, work.puts if work.is_only else ())
    yield machine.Unlock(f"slot of {work.slot}")
    return bool(request.state != "done")


# -- processes that meet the request of a dead one ---------------------------------------------------------------------


def _settle(rules: Rules, who: str, slot: str, conflicts: Callable[[Request], bool]) -> Steps[None]:
    """Find out what became of a request of a dead process, or cancel it."""
    yield machine.Lock("lead")
    request = yield machine.Load(f"request {slot}")
    if request and request.state == "taken":
        yield from _was_committed(rules, who, request)
    if request and request.stands and conflicts(request):
        yield machine.Store(f"request {slot}", request._replace(state="empty"))
    yield machine.Unlock("lead")


def _look_at_requests(rules: Rules, who: str, slots: tuple[str, ...], message: str) -> Steps[None]:
    """A request that removes the claimed message is one of a dead process. A damaged one may remove it."""

    def conflicts(request: Request) -> bool:
        return message in request.removes or request.state == "damaged"

    for slot in slots:
        request = yield machine.Load(f"request {slot}")
        if request and request.stands and conflicts(request):
            yield from _settle(rules, who, slot, conflicts)


def _look_at_dead(rules: Rules, together: Together, who: str, slots: tuple[str, ...]) -> Steps[None]:
    """A request without an owner may have the key that this process has locked."""
    for slot in slots:
        request = yield machine.Load(f"request {slot}")
        if request and request.state == "damaged" and together.damaged == "empty":
            continue
        if request and request.stands and not (yield machine.IsLocked(f"owner {slot}")):
            yield from _settle(rules, who, slot, lambda request: True)


def _was_put(rules: Rules, together: Together, who: str, slots: tuple[str, ...]) -> Steps[bool]:
    """Return whether a commit has put the message with the key that this process has locked."""
    view = View()
    yield from _look_at_dead(rules, together, who, slots)
    last = yield from engine.last_issued(rules)
    yield from engine.publish_up_to(rules, last, who)
    yield from catch_up(rules, view)
    return view.has("k")


def _claim(rules: Rules, together: Together, view: View, who: str, slots: tuple[str, ...], message: str) -> Steps[bool]:
    yield machine.Lock(f"claim {message}")
    if together.look_at_requests == "first":
        yield from _look_at_requests(rules, who, slots, message)
    page = yield machine.LoadAll(("version of prepared", "published", "issued"))
    yield from engine.second_look(rules, view, who, message, page)
    del page
    if together.look_at_requests == "last":
        yield from _look_at_requests(rules, who, slots, message)
    if not view.has(message):
        yield machine.Unlock(f"claim {message}")
        return False
    yield machine.Note(note_delivery, message)
    return True


# -- scenarios --------------------------------------------------------------------------------------------------------


def _put(rules: Rules, together: Together, who: str, others: str) -> Process:
    work = _Work(who, who, tuple(others), puts=(who.lower(),), told=(("put", who.lower()),))
    return Process(who, lambda: _commit_together(rules, together, work))


def _get(rules: Rules, together: Together, who: str, others: str, commits: bool = True) -> Process:
    work = _Work(who, who, tuple(others), removes=("m",), told=(("got", "m"),))

    def program() -> Steps[None]:
        view = View()
        if (yield from _claim(rules, together, view, who, tuple(others), "m")):
            if commits:
                yield from _commit_together(rules, together, work)
            yield from engine.release("m")

    return Process(who, program)


def puts_together(
    rules: Rules, together: Together = _RIGHT, putters: str = "AB", impatient: str = "", alone: bool = False
) -> Case:
    """Each process puts a message; ``impatient`` ones may give up. ``alone``: C commits in a file of its own."""
    processes = [
        _put(rules, replace(together, patient=who not in impatient), who, putters.replace(who, "")) for who in putters
    ]
    if alone:
        processes.append(putter(rules, "C", "c"))
    if together.damage:
        processes.append(_damaging(together, tuple(putters)))
    return Case(processes, begin(), _CHECKS)


def get_together(rules: Rules, together: Together = _RIGHT, getters: int = 1) -> Case:
    """A gets m and B puts b, in one commit if they meet. C claims m, or gets m, too."""
    c = _get(rules, together, "C", "AB", commits=getters == 2)
    a = _get(rules, together, "A", "BC" if getters == 2 else "B")
    b = _put(rules, together, "B", "AC" if getters == 2 else "A")
    processes = [a, b, c]
    if together.damage:
        processes.append(_damaging(together, ("A", "B")))
    return Case(processes, begin(), _CHECKS)


def one_key(rules: Rules, together: Together = _RIGHT) -> Case:
    """A posts a put with a key in the only slot, B puts with the same key, and C looks for a slot and leads."""
    slots = ("S",)
    work = _Work("A", "S", (), puts=("k",), told=(("put", "k"),), is_only=False)

    def first() -> Steps[None]:
        yield machine.Lock("key k")
        if not (yield from _was_put(rules, together, "A", slots)) and (yield from _own(together, slots)) is not None:
            yield from _post(rules, together, work)
            if together.disowns:
                yield machine.Unlock("owner S")
        yield machine.Unlock("key k")

    def second() -> Steps[None]:
        yield machine.Lock("key k")
        if not (yield from _was_put(rules, together, "B", slots)):
            yield from engine.commit(rules, View(), "B", puts=("k",), told=(("put", "k"),))
        yield machine.Unlock("key k")

    def leader() -> Steps[None]:
        yield from _own(together, slots)
        yield machine.Lock("lead")
        yield from _lead(rules, together, _Work("C", "", slots, puts=("c",), told=(("put", "c"),)))

    processes = [Process("A", first), Process("B", second), Process("C", leader)]
    if together.damage:
        processes.append(_damaging(together, slots))
    return Case(processes, begin(), _CHECKS)


_WRONG = ("damaged",)
ONLY_A = Faults(killable=("A",))


def _options(**options: Any) -> dict[str, Any]:
    return options


SCENARIOS = (
    Scenario(
        "puts-together",
        "processes put together",
        (1, 2, 3, 14, 18, 19, 22, 23),
        puts_together,
        (
            Setting(2),
            Setting(1, power=True),
            Setting(2, options=_options(impatient="AB")),
            Setting(2, options=_options(together=Together(mark="before rename"))),
            Setting(0, options=_options(putters="ABC")),
            Setting(1, options=_options(together=Together(raises="AB"))),
            Setting(1, options=_options(together=Together(damage=_WRONG))),
            Setting(2, options=_options(together=Together(damage=_WRONG, raises="AB"), impatient="AB"), long=True),
            Setting(0, options=_options(putters="ABC", together=Together(raises="A")), long=True),
            Setting(0, options=_options(putters="ABC", impatient="A"), long=True),
            Setting(1, options=_options(putters="ABC"), long=True),
            Setting(1, options=_options(alone=True), long=True),
        ),
        {
            "was withdrawn and is committed": {
                "a request is withdrawn that a leader may have read": Setting(
                    options=_options(impatient="AB", together=Together(joined=False))
                )
            },
            "put by two commits": {
                "requests are marked as taken after the stamp": Setting(
                    2, options=_options(together=Together(mark="after stamp"))
                ),
                "the word of a posted request is stored twice": Setting(options=_options(together=Together(stores=2))),
                "a taken request is posted again without a look at its number": Setting(
                    2, options=_options(together=Together(resolve=False))
                ),
                "a word of a slot that another program stored is believed: a request is posted": Setting(
                    options=_options(together=Together(damage=("posted",), proven=False))
                ),
                "the owner of a damaged slot commits its request": Setting(
                    options=_options(together=Together(damage=_WRONG, damaged="posted"))
                ),
            },
            "was acknowledged and no commit has it": {
                "a leader whose commit failed marks the requests that it took as done": Setting(
                    options=_options(together=Together(raises="A", finish="taken"))
                ),
                "a word of a slot that another program stored is believed: a request is done": Setting(
                    options=_options(together=Together(damage=("done",), proven=False))
                ),
            },
        },
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
            Setting(1, faults=ONLY_A, options=_options(together=Together(damage=_WRONG)), long=True),
        ),
        {
            "removed by two commits": {
                "a claim does not look at requests": Setting(
                    1, faults=ONLY_A, options=_options(getters=2, together=Together(look_at_requests="no"))
                )
            },
            "although commit": {
                "a claim looks at requests after the second look": Setting(
                    2, faults=Faults(killable=("A", "B")), options=_options(together=Together(look_at_requests="last"))
                )
            },
        },
    ),
    Scenario(
        "one-key",
        "two puts with one deduplication key, beside a process that looks for a slot",
        (4, 20, 23),
        one_key,
        (
            Setting(1, faults=ONLY_A),
            Setting(1, faults=ONLY_A, options=_options(together=Together(patient=False))),
            Setting(2, long=True),
            Setting(1, faults=ONLY_A, options=_options(together=Together(damage=_WRONG)), long=True),
        ),
        {
            "put by two commits": {
                "a process takes the byte of a slot while it looks for a free one": Setting(
                    1, faults=ONLY_A, options=_options(together=Together(own="takes"))
                ),
                "two processes look for a slot at once": Setting(
                    1, faults=ONLY_A, options=_options(together=Together(own="asks at any time"))
                ),
                "a damaged slot counts as one without a request": Setting(
                    1, faults=ONLY_A, options=_options(together=Together(damage=_WRONG, damaged="empty")), long=True
                ),
                "a process that gives up a request keeps its slot": Setting(
                    0, options=_options(together=Together(patient=False, disowns=False))
                ),
            }
        },
    ),
)
