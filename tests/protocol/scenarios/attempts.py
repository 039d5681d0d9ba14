"""Rules 4 and 6: the journal of attempts. A dead process's journal is counted once, by any other process.

m is a message without a failed attempt, m1 the same message after one, m2 after two. The claim of all three is m's.
"""

from tests.protocol import machine
from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import claim, commit, last_issued, prepare, publish_up_to, release
from tests.protocol.promises import note_release, note_told, recover
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import begin, ended
from tests.protocol.view import View, catch_up, list_prepared


def attempt(rules: Rules, ends: str = "rolled back", mistake: str = "") -> Case:
    """A gets m in a transaction, and ends the transaction. B and C count the attempts of A, once A has died. If A only
    releases m, D takes m instead of C."""

    def work() -> Steps[None]:
        view = View()
        yield machine.Lock("owner")
        yield machine.Lock("journal of A")
        journal = yield machine.Create("active/journal", ())
        if not (yield from claim(rules, view, "A", "m")):
            return
        yield machine.Write(journal, ("m",))
        yield machine.Note(note_told, "begun", "m")
        if ends == "rolled back":
            yield from commit(rules, view, "A", puts=("m1",), removes=("m",))
        elif ends == "committed":
            yield from commit(rules, view, "A", removes=("m",))
        elif ends == "voted":
            yield from prepare(rules, "A", "x", removes=("m",))
        if mistake == "released first":
            yield from release("m")
        if ends != "committed":  # a slot of a removed message is left as it is
            yield machine.Write(journal, ())
            yield machine.Note(note_told, "ended", "m")
        if mistake != "released first":
            yield from release("m")

    def count(view: View, who: str) -> Steps[None]:
        if (yield machine.IsLocked("owner")):
            return
        yield machine.Lock("journal of A")
        if mistake != "no votes":
            yield from list_prepared(rules, view)
        last = yield from last_issued(rules)
        yield from publish_up_to(rules, last, who)
        del last
        yield from catch_up(rules, view)
        slots = yield machine.Read("active/journal")
        if slots and view.has("m"):
            yield machine.Note(_counted)
            yield from commit(rules, view, who, puts=("m1",), removes=("m",))
        elif slots and mistake == "no state" and view.has("m1"):
            yield from commit(rules, view, who, puts=("m2",), removes=("m1",))
        yield machine.Unlink("active/journal")
        yield machine.Unlock("journal of A")

    def counter(who: str) -> Process:
        def program() -> Steps[None]:
            yield machine.Await(ended(0))
            yield from count(View(), who)

        return Process(who, program)

    def take() -> Steps[None]:
        yield machine.Await(_has_begun)
        view = View()
        yield machine.Lock("claim m")
        if mistake != "delivered first":
            yield from count(view, "D")
        yield from list_prepared(rules, view)
        yield from catch_up(rules, view)
        if view.has("m"):
            yield machine.Note(_delivered)
            yield machine.Load("the work of D")
        yield machine.Note(note_release, "m")
        yield machine.Unlock("claim m")

    def is_right(state: machine.State, alive: tuple[bool, ...]) -> None:
        disk, told = recover({name: state.files[file].content for name, file in state.names}), state.noted()
        ended = {"committed": not disk.live, "voted": "x" in disk.in_doubt, "released": ("ended", "m") in told}
        works = ("begun", "m") in told and not ended.get(ends)
        if disk.live != ({"m1"} if works else disk.live - {"m1", "m2"}):
            raise machine.Violation(f"A was at work: {works}; at the end there is {disk.live}")

    others = [counter("B"), Process("D", take) if ends == "released" else counter("C")]
    return Case([Process("A", work), *others], begin(), Checks(at_end=is_right))


def _has_begun(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return ("begun", "m") in state.noted()


def _delivered(state: machine.State, context: machine.Context) -> machine.State:
    return state.note(("holds", context.process, "m"))


def _counted(state: machine.State, context: machine.Context) -> machine.State:
    if any(key[0] == "holds" and context.alive[key[1]] for key in state.noted() if isinstance(key, tuple)):
        raise machine.Violation("an attempt is counted while a live process holds the message")
    return state


def _mistake(mistake: str, ends: str = "released", kills: int = 1) -> Setting:
    return Setting(kills, options={"ends": ends, "mistake": mistake})


SCENARIOS = (
    Scenario(
        "attempts",
        "a process dies while it works on a message, and others count the attempt",
        (4, 6),
        attempt,
        tuple(Setting(2, options={"ends": ends}) for ends in ("rolled back", "committed", "voted", "released")),
        {
            "there is {'m2'}": {"a slot has no number of failed attempts": _mistake("no state", "rolled back", 2)},
            "there is {'m1'}": {"a message that a vote holds is counted": _mistake("no votes", "voted")},
            "while a live process holds the message": {
                "a message is released before its slot ends": _mistake("released first"),
                "a message is delivered before the attempt of a dead owner is counted": _mistake("delivered first"),
            },
        },
    ),
)
