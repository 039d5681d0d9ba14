"""Rule 13: a commit overwrites a consumed file and flushes its data alone; its name follows with the journal.

After a power cut, recovery finds such a commit by its number in ``free/`` or ``active/``, and gives it its name.
"""

from typing import Any

from tests.protocol import machine
from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import commit, following_number, publish, take_number, tell
from tests.protocol.promises import Commit, Messages, Unnumbered, is_commit, number_of
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import begin
from tests.protocol.view import View

_CONSUMED = Commit(0)
_FILL = "fill"  # of a file that is made ahead


def data_flushes(
    rules: Rules,
    processes: str = "put and get",
    by_number: bool = True,
    above_names: bool = True,
    reclaim_flushed: bool = True,
    made_flushed: bool = True,
) -> Case:
    """A puts a, B gets m, each in a consumed file; R reclaims the put and the removal of m, and uses a file again; G
    puts g in a file that it makes ahead, because its queue grows.

    ``by_number``: recovery takes files in ``free/`` and ``active/`` by the number in them.
    ``above_names``: only numbers above the highest name in ``committed/``.
    ``reclaim_flushed``: the name of a reclaimed file in ``free/`` is durable before the file is overwritten.
    ``made_flushed``: the same for the name of a file that is made ahead.
    """
    put = Process("A", lambda: _commit_data(rules, "A", "2", puts=("a",), told=(("put", "a"),)))
    get = Process("B", lambda: _get(rules))
    reclaim = Process("R", lambda: _reclaim_and_use(rules, reclaim_flushed, processes != "all"))
    grow = Process("G", lambda: _grow(rules, made_flushed))
    chosen = {
        "put and get": [put, get],
        "get and reclaim": [get, reclaim],
        "grow and get": [grow, get],
        "all": [get, reclaim, put],
    }[processes]

    def after_cut(files: dict[str, Any], record: dict[Any, Any]) -> None:
        _check(files, record, _recovered(files, by_number, above_names))

    start = begin({"committed/1": Commit(1, ("m",)), "free/2": _CONSUMED, "free/3": _CONSUMED})
    return Case(chosen, start, Checks(after_cut=after_cut))


def _commit_data(
    rules: Rules, who: str, free: str, puts: Messages = (), removes: Messages = (), told: tuple[Messages, ...] = ()
) -> Steps[None]:
    yield machine.Move(f"free/{free}", f"active/{who}")
    file = yield machine.Open(f"active/{who}")
    yield machine.Write(file, Unnumbered(who))
    yield machine.Lock("number lock")
    number = yield from following_number(rules)
    if rules.stamp == "before rename":
        yield machine.Write(file, Commit(number, puts, removes))
    number = yield from take_number(f"active/{who}", number)
    yield machine.Store("issued", number)
    yield machine.Unlock("number lock")
    if rules.stamp != "before rename":
        yield machine.Write(file, Commit(number, puts, removes))
    yield machine.FlushData(file)
    yield from publish(rules, number, who)
    yield from tell(told)


def _get(rules: Rules) -> Steps[None]:
    yield machine.Lock("claim m")
    yield from _commit_data(rules, "B", "3", removes=("m",), told=(("got", "m"),))
    yield machine.Unlock("claim m")


def _grow(rules: Rules, flushed: bool) -> Steps[None]:
    yield machine.Create("free/5.new", _FILL)
    if flushed:
        yield machine.FlushNames()
    yield machine.Move("free/5.new", "free/5")
    yield from _commit_data(rules, "G", "5", puts=("g",), told=(("put", "g"),))


def _got_m(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return ("got", "m") in state.noted()


def _reclaim_and_use(rules: Rules, flushed: bool, removal: bool) -> Steps[None]:
    yield machine.Await(_got_m)
    yield from commit(rules, View(), "R", puts=("digest",))  # says which numbers are reclaimed
    yield machine.Note(_note_reclaims)
    yield machine.Move("committed/1", "free/1")
    if flushed:
        yield machine.FlushNames()
    if removal:
        yield machine.Move("committed/2", "free/4")
        if flushed:
            yield machine.FlushNames()
    yield from _commit_data(rules, "R", "4" if removal else "1", puts=("r",), told=(("put", "r"),))


def _note_reclaims(state: machine.State, context: machine.Context) -> machine.State:
    return state.note("reclaims")


def _recovered(files: dict[str, Any], by_number: bool, above_names: bool) -> dict[int, Commit]:
    """The commits that recovery finds, by number."""
    commits = {content.number: content for name, content in files.items() if is_commit(content, number_of(name))}
    highest = max(commits, default=0)
    for name, content in files.items():
        nameless = isinstance(content, Commit) and name.startswith(("active/", "free/"))
        if by_number and nameless and (content.number > highest or not above_names):
            commits.setdefault(content.number, content)
    return commits


def _check(files: dict[str, Any], record: dict[Any, Any], commits: dict[int, Commit]) -> None:
    removed = {message for commit in commits.values() for message in commit.removes}
    live = {message for commit in commits.values() for message in commit.puts} - removed
    for name, content in files.items():
        number = number_of(name)
        foreign = isinstance(content, Commit) and number is not None and content.number != number
        if foreign and (number == 1 or ("content", number) in record):
            raise machine.Violation(f"commit {number} holds the number {content.number}: it looks like damage")
    for key, value in record.items():
        kind, subject = key if isinstance(key, tuple) else (key, None)
        if kind == "put" and subject not in live | removed:
            raise machine.Violation(f"acknowledged message {subject} lost")
        if kind == "got" and subject in live:
            raise machine.Violation(f"message {subject} is back after an acknowledged get")
        if kind == "content" and value and subject not in commits and "reclaims" not in record:
            raise machine.Violation(f"published number {subject} is not durable")


RECLAIM = {"processes": "get and reclaim"}
GROW = {"processes": "grow and get"}

SCENARIOS = (
    Scenario(
        "data-flushes",
        "commits in consumed files, whose names follow",
        (1, 10, 13),
        data_flushes,
        (
            Setting(2, power=True),
            Setting(1, power=True, options=RECLAIM),
            Setting(1, power=True, options=GROW),
            Setting(1, power=True, options={"processes": "all"}, long=True),
        ),
        {
            "is back after an acknowledged get": {
                "the file is stamped before the rename": Setting(1, power=True, rules=Rules(stamp="before rename")),
                "recovery takes every number, however low": Setting(
                    power=True, options=RECLAIM | {"above_names": False}
                ),
                "a file is overwritten before its name in free/ is durable": Setting(
                    power=True, options=RECLAIM | {"reclaim_flushed": False}
                ),
            },
            "is not durable": {
                "recovery believes names alone": Setting(power=True, options={"by_number": False}),
                "a file that was made ahead is overwritten before its name in free/ is durable": Setting(
                    power=True, options=GROW | {"made_flushed": False}
                ),
            },
        },
    ),
)
