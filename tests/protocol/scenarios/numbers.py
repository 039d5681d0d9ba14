"""Rules 1 to 4 and 14: numbers are issued, finished and published; a claim is followed by a second look."""

from itertools import permutations

from tests.protocol.checker import Faults, Process, Steps
from tests.protocol.engine import claim, get, release
from tests.protocol.machine import TORN, Await, Context, File, FlushNames, Load, Note, State, Unlink, Violation
from tests.protocol.promises import Commit, number_of, removals
from tests.protocol.rules import WITHOUT_FEED, Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import PROMISES, begin, claimer, ended, follower, getter, putter
from tests.protocol.view import View

READ_ORDERS = tuple(permutations(("version of prepared", "published", "issued")))


def commits(rules: Rules, readers: str = "") -> Case:
    """A puts a, B puts b. C gets m and a, or settles all numbers, if ``readers`` says so."""
    processes = [putter(rules, "A", "a"), putter(rules, "B", "b")]
    if readers == "getter":
        processes.append(getter(rules, "C", ("m", "a")))
    elif readers == "follower":
        processes.append(follower(rules, "C"))
    return Case(processes, begin(), PROMISES)


def removal(rules: Rules, putters: int = 0, removers: int = 1) -> Case:
    """A gets m; C claims m (or gets m, too). B puts b, so that the number of A need not be the next one."""
    processes = [getter(rules, "A")]
    if putters:
        processes.append(putter(rules, "B", "b"))
    processes.append(claimer(rules, "C") if removers == 1 else getter(rules, "C"))
    return Case(processes, begin(), PROMISES)


def dead_remover(rules: Rules) -> Case:
    """A dies somewhere while it gets m. Then C claims m, and has to get it unless m was removed."""

    def late() -> Steps[None]:
        yield Await(ended(0))
        if (yield from claim(rules, View(), "C", "m")):
            yield from release("m")
        else:
            yield Note(_must_be_removed)

    return Case([getter(rules, "A"), Process("C", late)], begin())


def _must_be_removed(state: State, context: Context) -> State:
    if "m" not in removals(state) and ("removed", "m") not in state.noted():
        raise Violation("m is free and was not delivered")
    return state


def finishers(rules: Rules, torn: bool = True, getter_reclaims: bool = False) -> Case:
    """The writer of number 2 died: before its flush, or before its rename. F and G find it, and finish the number.

    ``getter_reclaims``: C gets the message of commit 2, and removes the file.
    """
    if not torn:
        state = begin(memory={"issued": 2})
    else:
        state = begin({"committed/1": Commit(1, ("m",)), "committed/2": Commit(2, ("a",))}, {"issued": 2})
        state = state._replace(files=(state.files[0], File(Commit(2, ("a",)), TORN)))
    processes = [follower(rules, "F"), follower(rules, "G")]
    if getter_reclaims:
        processes.append(Process("C", lambda: _get_and_reclaim(rules)))
    return Case(processes, state, PROMISES._replace(at_end=_no_reclaimed_file))


def _get_and_reclaim(rules: Rules) -> Steps[None]:
    if (yield from get(rules, View(), "C", "a")):
        published = yield Load("published")
        if published >= 3:
            yield Unlink("committed/2")
            yield Note(note_reclaimed, 2)
            yield FlushNames()


def note_reclaimed(state: State, context: Context, number: int) -> State:
    return state.note("reclaims").note(("file reclaimed", number))


def _no_reclaimed_file(state: State, alive: tuple[bool, ...]) -> None:
    for name, _ in state.names:
        if ("file reclaimed", number_of(name)) in state.noted():
            raise Violation(f"reclaimed file {name} is back")


ONLY_A = Faults(killable=("A",))
PUTTER = {"putters": 1}
GETTER = {"readers": "getter"}
FOLLOWER = {"readers": "follower"}
RECLAIMS = {"getter_reclaims": True}
ISSUED_LAST = ("rename", "issued", "byte")

SCENARIOS = (
    Scenario(
        "puts-at-once",
        "two puts at once, and processes that read",
        (1, 2, 3),
        commits,
        (
            Setting(2, power=True),
            Setting(2, rules=Rules(counters="two cells")),
            Setting(1, power=True, options=FOLLOWER),
            Setting(1, power=True, options=FOLLOWER, rules=WITHOUT_FEED, long=True),
            Setting(1, options=GETTER, long=True),
            Setting(1, power=True, options=GETTER, long=True),
        ),
        {
            "is not durable": {
                "the copy of a dead writer's file is not flushed under its name": Setting(
                    1, power=True, rules=Rules(finish=("copy", "flush", "rename"))
                )
            },
            "no history without further faults comes to an end": {
                "a reader of two cells waits until both are equal": Setting(1, rules=Rules(counters="two equal cells"))
            },
            "number 2 published again": {
                "the byte of a number is locked after *issued* is stored": Setting(
                    0, power=True, options=FOLLOWER, rules=Rules(issue=ISSUED_LAST)
                )
            },
        },
    ),
    Scenario(
        "claim-beside-removal",
        "a claim beside a removal",
        (1, 4, 14),
        removal,
        (
            Setting(2),
            Setting(1, power=True),
            Setting(2, power=True, options={"removers": 2}),
            Setting(options=PUTTER),
            Setting(1, options=PUTTER, faults=ONLY_A, long=True),
            Setting(2, options=PUTTER, long=True),
            Setting(2, options=PUTTER, rules=Rules(feed="empty"), long=True),
            Setting(2, options=PUTTER, rules=WITHOUT_FEED, long=True),
            Setting(1, options=PUTTER, rules=Rules(counters="two cells"), long=True),
            *(Setting(1, options=PUTTER, rules=Rules(counters_read=order), long=True) for order in READ_ORDERS),
        ),
        {
            "although commit {2} removes it": {
                "no unpublished number is looked at": Setting(1, rules=Rules(second_look="published")),
                "the file is stamped before *issued* is stored": Setting(1, rules=Rules(stamp="before issued")),
            },
            "although commit {3} removes it": {
                "only the next unpublished number is looked at": Setting(
                    1, options=PUTTER, rules=Rules(second_look="next number"), faults=ONLY_A
                )
            },
        },
    ),
    Scenario(
        "dead-remover",
        "a remover dies, then a process claims its message",
        (4, 14),
        dead_remover,
        (Setting(1, faults=ONLY_A), Setting(1, faults=ONLY_A, rules=Rules(feed="empty"))),
        {
            "free and was not delivered": {
                "the slot of a dead writer is believed": Setting(1, faults=ONLY_A, rules=Rules(settle_addressed=False)),
                "the slot of a number that became an empty commit stays": Setting(
                    1, faults=ONLY_A, rules=Rules(retract=False)
                ),
            }
        },
    ),
    Scenario(
        "two-finishers",
        "two processes finish the number of a dead writer",
        (3,),
        finishers,
        (
            Setting(2, power=True),
            Setting(1, options={"torn": False}),
            Setting(1, options=RECLAIMS),
            Setting(2, options=RECLAIMS, long=True),
        ),
        {
            "published again": {
                "*published* is not read again under the byte": Setting(
                    0, options=RECLAIMS, rules=Rules(published_again=False)
                )
            }
        },
    ),
)
