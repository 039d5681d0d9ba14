"""Rule 13 for votes: a branch overwrites a consumed file and flushes its data alone; its name follows with the journal.

A vote has no number. Once its file has its name in ``prepared/``, it is marked with the name in ``free/`` of the file
that it overwrote. After a power cut, recovery finds a marked file in ``free/`` by this name, and in ``active/`` by its
xid.
"""

from typing import Any, NamedTuple

from tests.protocol import machine, promises
from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import following_number, publish, take_number
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import begin

_CONSUMED = promises.Commit(0)


class Marked(NamedTuple):
    """A branch's file with the mark of a vote. ``origin``: the name in ``free/`` of the file that it overwrote."""

    xid: str
    puts: promises.Messages
    removes: promises.Messages
    origin: str


def votes_by_data(
    rules: Rules,
    ends: tuple[str, ...] = ("committed",),
    found: str = "by origin",
    marks: str = "after rename",
    unmarks: bool = True,
    unlike: bool = True,
) -> Case:
    """A votes with the branch x in a consumed file, and decides it; P puts a into another consumed file meanwhile.

    Args:
        ends: how the branches of A end, one after another; each has the xid x. "voted": it stays in doubt. "refused":
            its check fails, so it never votes. "reclaimed": it is committed, and its file is consumed.
        found: how recovery finds votes: "by origin", "by name" alone, or "by mark", of each marked file.
        marks: when a file is marked: "after rename", or "early", as it is written.
        unmarks: a rollback first removes the mark durably.
        unlike: a branch overwrites no file of an earlier branch with the same xid.
    """

    def program() -> Steps[None]:
        for place, end in enumerate(ends):
            origin = f"free/{4 if place and not unlike else 2 + place}"
            yield from _branch(rules, origin, place, end, marks == "early", unmarks)

    def after_cut(files: dict[str, Any], record: dict[Any, Any]) -> None:
        disk = _recovered(files, found)
        promises.after_power_cut(disk, record)
        _check_branch(disk, record)

    consumed = {f"free/{name}": _CONSUMED for name in (2, 3, 8, 9)}
    putter = Process("P", lambda: _put(rules))
    return Case(
        [Process("A", program), putter],
        begin({"committed/1": promises.Commit(1, ("m",))} | consumed),
        Checks(after_cut=after_cut),
    )


def _branch(rules: Rules, origin: str, place: int, end: str, marks_early: bool, unmarks: bool) -> Steps[None]:
    message = f"n{place}"
    plain, marked = promises.Branch("x", (message,)), Marked("x", (message,), (), origin)
    yield machine.Lock("xid x")
    yield machine.Move(origin, "active/x")
    file = yield machine.Open("active/x")
    yield machine.Write(file, marked if marks_early else plain)
    if end == "refused":
        yield machine.Unlink("active/x")
        yield machine.Unlock("xid x")
        yield machine.Note(promises.note_told, "refused", place)
        return
    yield machine.Lock("list of prepared")
    version = yield machine.Load("version of prepared")
    yield machine.Store("version of prepared", version + 1)
    yield machine.Move("active/x", "prepared/x", new=True)
    yield machine.Unlock("list of prepared")
    yield machine.Write(file, marked)
    yield machine.FlushData(file)
    yield machine.Unlock("xid x")
    yield machine.Note(promises.note_told, "voted in", place)
    if end == "rolled back":
        yield machine.Note(promises.note_told, "decided in", place)
        if unmarks:
            yield machine.Write(file, plain)
            yield machine.FlushData(file)
        yield machine.Unlink("prepared/x")
    elif end in ("committed", "reclaimed"):
        yield machine.Note(promises.note_told, "decided in", place)
        number = yield from _commit_data(rules, "A", "8", promises.Commit(0, adopts=("x",)))
        yield machine.Move("prepared/x", f"committed/{number}-1")
        if end == "reclaimed":
            yield from _reclaim(number, place)


def _reclaim(number: int, place: int) -> Steps[None]:
    """Give the file of the branch to ``free/``, and remove its head."""
    yield machine.Note(_note_reclaims)
    yield machine.Note(promises.note_told, "reclaimed", place)
    yield machine.Move(f"committed/{number}-1", "free/4")
    yield machine.FlushNames()
    yield machine.Unlink(f"committed/{number}")
    yield machine.FlushNames()


def _note_reclaims(state: machine.State, context: machine.Context) -> machine.State:
    return state.note("reclaims")


def _put(rules: Rules) -> Steps[None]:
    yield from _commit_data(rules, "P", "9", promises.Commit(0, puts=("a",)))
    yield machine.Note(promises.note_told, "put", "a")


def _commit_data(rules: Rules, who: str, free: str, content: promises.Commit) -> Steps[int]:
    yield machine.Move(f"free/{free}", f"active/{who}")
    file = yield machine.Open(f"active/{who}")
    yield machine.Write(file, promises.Unnumbered(who))
    yield machine.Lock("number lock")
    number = yield from following_number(rules)
    number = yield from take_number(f"active/{who}", number)
    yield machine.Store("issued", number)
    yield machine.Unlock("number lock")
    yield machine.Write(file, content._replace(number=number))
    yield machine.FlushData(file)
    yield from publish(rules, number, who)
    return number


def _recovered(files: dict[str, Any], found: str) -> dict[str, Any]:
    """The files after recovery has restored names: commits by their numbers, and votes by their marks."""
    disk = {name: content for name, content in files.items() if not name.startswith(("free/", "active/"))}
    highest = max(
        (number for name in disk if (number := promises.number_of(name)) and promises.is_commit(disk[name], number)),
        default=0,
    )
    for name, content in sorted(files.items(), reverse=True):  # of two votes with one xid, the first is believed
        if name.startswith(("free/", "active/")):
            if isinstance(content, promises.Commit) and content.number > highest:
                disk[f"committed/{content.number}"] = content
            is_there = isinstance(content, Marked) and (
                name in (content.origin, f"active/{content.xid}") or found == "by mark"
            )
            if is_there and found != "by name":
                disk[f"prepared/{content.xid}"] = content
    return {
        name: promises.Branch(content.xid, content.puts, content.removes) if isinstance(content, Marked) else content
        for name, content in disk.items()
    }


def _check_branch(disk: dict[str, Any], record: dict[Any, Any]) -> None:
    """A branch that voted and was not decided is in doubt; a branch that never voted, or was reclaimed, is not."""
    told: dict[str, set[int]] = {}
    for key in record:
        if isinstance(key, tuple) and isinstance(key[1], int):
            told.setdefault(key[0], set()).add(key[1])
    doubt = promises.recover(disk).in_doubt.get("x")
    found = None if doubt is None else doubt.puts
    for place in told.get("voted in", set()) - told.get("decided in", set()):
        if found != (f"n{place}",):
            raise machine.Violation(f"branch {place} is lost after its vote was told: found {found}")
    for verdict in ("refused", "reclaimed"):
        if found in [(f"n{place}",) for place in told.get(verdict, ())]:
            raise machine.Violation(f"a {verdict} branch is prepared")


_ENDS = (("voted",), ("refused",), ("committed",), ("rolled back", "voted"), ("reclaimed", "voted"))


def _mistake(*ends: str, **options: Any) -> Setting:
    return Setting(power=True, options={"ends": ends, **options})


SCENARIOS = (
    Scenario(
        "votes-by-data",
        "votes in consumed files, whose names follow",
        (3, 5, 13),
        votes_by_data,
        (
            *(Setting(power=True, options={"ends": ends}) for ends in _ENDS),
            *(Setting(1, power=True, options={"ends": ends}) for ends in _ENDS[:3]),
        ),
        {
            "a refused branch is prepared": {"a file is marked as it is written": _mistake("refused", marks="early")},
            "lost after its vote was told": {
                "names alone count": _mistake("voted", found="by name"),
                "a rollback leaves the mark": _mistake("rolled back", "voted", unmarks=False),
            },
            "a reclaimed branch is prepared": {
                "any mark counts": _mistake("reclaimed", found="by mark"),
                "a branch overwrites a file of an earlier one": _mistake("reclaimed", "voted", unlike=False),
            },
        },
    ),
)
