"""Rules 3 and 6: spaces are opened while others work, after kills, after a power cut, and without ``run/``."""

from functools import partial

from tests.protocol import machine
from tests.protocol.checker import Faults, Process, Steps
from tests.protocol.engine import claim, commit, get, last_issued, publish_up_to, release
from tests.protocol.promises import number_of
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import PROMISES, begin, ended
from tests.protocol.view import View, empty_view, read_all

_DURABLE_MARK = 1  # commit 1 is known to be durable: the file says so


def _open_space(rules: Rules, who: str, view: View, locks: str, trust: bool) -> Steps[None]:
    """Open a space: recover it if no other process has it open, then read the files.

    ``locks``: "two" bytes, one for the time of opening and one while the space is open (the rule); "one" byte, which is
    exclusive first and shared then, is a mistake: a second opener can take it between the two.
    ``trust``: publish the files of dead writers without proof, a mistake.
    """
    if locks == "two":
        yield machine.Lock("open")
        first = not (yield machine.IsLocked("alive"))
    else:
        first = yield machine.TryLock("open")
    if first:
        yield from _recover(rules, who, trust)
    if locks == "two":
        yield machine.Lock("alive", shared=True)
        yield machine.Unlock("open")
    else:
        yield machine.Lock("open", shared=True)
    yield from read_all(rules, view)


def _recover(rules: Rules, who: str, trust: bool) -> Steps[None]:
    committed = yield machine.List("committed/")
    quarantined = yield machine.List("quarantine/")
    issued = yield machine.Load("issued")
    numbers = [number for number in map(number_of, committed) if number is not None]
    numbers += [int(name.partition("/")[2]) for name in quarantined]
    last = max(issued, _DURABLE_MARK, *numbers)
    del committed, quarantined, issued, numbers
    yield machine.Store("issued", last)
    if trust:
        yield machine.Store("published", last)
        yield machine.Note(_note_all_published, last)
        return
    published = yield machine.Load("published")
    if published < _DURABLE_MARK:
        yield machine.Store("published", _DURABLE_MARK)
    del published
    yield from publish_up_to(rules, last, who)


def _note_all_published(state: machine.State, context: machine.Context, last: int) -> machine.State:
    for number in range(2, last + 1):
        state = state.note(("content", number), state.content(f"committed/{number}"))
    return state


def _close() -> Steps[None]:
    yield machine.Unlock("open")
    yield machine.Unlock("alive")


def _writer(rules: Rules, who: str, message: str, locks: str = "two") -> Process:
    """Opens the space and puts a message. ``locks="none"``: the space is open already."""

    def program() -> Steps[None]:
        view = empty_view()
        if locks != "none":
            yield from _open_space(rules, who, view, locks, trust=False)
        yield from commit(rules, view, who, puts=(message,), told=(("put", message),))
        if locks != "none":
            yield from _close()

    return Process(who, program)


def _opener(
    rules: Rules, who: str, locks: str = "two", trust: bool = False, when: machine.Condition | None = None
) -> Process:
    """Opens the space, claims a, and puts o if it came later than the others."""

    def program() -> Steps[None]:
        if when is not None:
            yield machine.Await(when)
        view = empty_view()
        yield from _open_space(rules, who, view, locks, trust)
        if (yield from claim(rules, view, who, "a")):
            yield from release("a")
        if when is not None:
            yield from commit(rules, view, who, puts=("o",), told=(("put", "o"),))
        yield from _close()

    return Process(who, program)


def open_beside_commits(rules: Rules, writers: int = 1) -> Case:
    """Writers open the space and put a message each; B opens the space meanwhile and claims a."""
    names = (("A", "a"), ("D", "d"))[:writers]
    processes = [_writer(rules, who, message) for who, message in names]
    return Case([*processes, _opener(rules, "B")], _published_once(), PROMISES)


def run_deleted(rules: Rules, locks: str = "two", trust: bool = False) -> Case:
    """A puts a, and may die. Then ``run/`` is deleted, and O opens the space, claims a and puts o."""
    deleter = Process("admin", partial(_delete_run, ended(0)))
    opener = _opener(rules, "O", locks, trust, when=ended(0, 1))
    return Case([_writer(rules, "A", "a", "none"), deleter, opener], _published_once(), PROMISES)


def empty_number(rules: Rules) -> Case:
    """A dies when its number has been issued; L finishes the number. Then ``run/`` is deleted, and O commits."""

    def finish() -> Steps[None]:
        yield machine.Await(_issued_2)
        last = yield from last_issued(rules)
        yield from publish_up_to(rules, last, "L")

    processes = [
        _writer(rules, "A", "a", "none"),
        Process("L", finish),
        Process("admin", partial(_delete_run, ended(0, 1))),
        _opener(rules, "O", when=ended(0, 1, 2)),
    ]
    return Case(processes, _published_once())


def _delete_run(when: machine.Condition) -> Steps[None]:
    yield machine.Await(when)
    yield machine.Store("issued", 0)
    yield machine.Store("published", 0)
    yield machine.Note(_note_counters_lost)


def _note_counters_lost(state: machine.State, context: machine.Context) -> machine.State:
    return state.note("counters lost")


def _issued_2(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return bool(state.cell("issued") > 1)


def _published_once() -> machine.State:
    return begin(record={"highest published": 1})


def power_cut(rules: Rules, locks: str = "two") -> Case:
    """A opens the space and puts a; the power fails; O and P open the space at once, and get a."""

    def reopen(who: str) -> Steps[None]:
        yield machine.Await(_power_failed)
        view = empty_view()
        yield from _open_space(rules, who, view, locks, trust=False)
        yield machine.Note(_must_see, frozenset(view.live) | view.removed)
        yield from get(rules, view, who, "a")
        yield from _close()

    processes = [_writer(rules, "A", "a", locks), *(Process(who, partial(reopen, who)) for who in ("O", "P"))]
    return Case(processes, _published_once(), PROMISES)


def _power_failed(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return "power cut" in state.noted()


def _must_see(state: machine.State, context: machine.Context, known: frozenset[str]) -> machine.State:
    if ("put", "a") in state.noted() and "a" not in known:
        raise machine.Violation("an opener does not see the acknowledged message a")
    return state


WRITERS = Faults(killable=("A", "O"))
CUT = Faults(cuts=1, after_cut=("O", "P"))
ONE = {"locks": "one"}
TRUST = {"trust": True}

SCENARIOS = (
    Scenario(
        "openers-beside-commits",
        "processes open a space beside commits",
        (3, 6),
        open_beside_commits,
        (Setting(2, power=True), Setting(1, options={"writers": 2}, long=True)),
    ),
    Scenario(
        "run-deleted",
        "run/ is deleted after all processes have died",
        (3, 6),
        run_deleted,
        (Setting(2, power=True, faults=WRITERS),),
        {
            "is not durable": {
                "an opener publishes the file of a dead writer without a flush": Setting(
                    2, power=True, faults=WRITERS, options=TRUST
                )
            }
        },
    ),
    Scenario(
        "empty-number",
        "an empty commit keeps its number",
        (3,),
        empty_number,
        (Setting(1, faults=Faults(killable=("A",))),),
        {
            "no history without further faults comes to an end": {
                "a number without a whole file gets no empty commit": Setting(
                    1, faults=Faults(killable=("A",)), rules=Rules(empty_commit=False)
                )
            }
        },
    ),
    Scenario(
        "open-after-power-cut",
        "two processes open a space after a power cut",
        (6,),
        power_cut,
        (Setting(power=True, faults=CUT), Setting(1, power=True, faults=CUT, long=True)),
        {
            "does not see the acknowledged message a": {
                "one byte is exclusive while a process recovers, and shared afterwards": Setting(
                    1, power=True, faults=CUT, options=ONE
                )
            }
        },
    ),
)
