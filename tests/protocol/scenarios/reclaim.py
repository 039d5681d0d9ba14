"""Rules 2, 9, 10 and 13: files are read, reclaimed, compacted and used again."""

from typing import Any

from tests.protocol import machine, promises
from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import claim, commit, publish_up_to, release, rename_to_number
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.numbers import note_reclaimed
from tests.protocol.scenarios.parts import PROMISES, begin, committer, exists, putter
from tests.protocol.view import View, catch_up, empty_view, read_all


def late_reader(rules: Rules, head: bool = False, recycle: bool = False, asleep: bool = False) -> Case:
    """Commit 1 put m, and a later commit removed it. R reclaims both, message first; L reads the files meanwhile.

    ``head``: the removal is that of an adopted branch. ``recycle``: a new commit overwrites the file of commit 1.
    ``asleep``: L has applied commit 1 before, and follows now; commit 2, which did nothing, is reclaimed first.
    Otherwise L has just opened the space.
    """
    removal = 3 if asleep else 2
    files: dict[str, Any] = {"committed/1": promises.Commit(1, ("m",)), "committed/2": promises.Commit(2)}
    if head:
        files |= {f"committed/{removal}": promises.Commit(removal, adopts=("x",))}
        files |= {f"committed/{removal}-1": promises.Branch("x", removes=("m",))}
    else:
        files |= {f"committed/{removal}": promises.Commit(removal, removes=("m",))}
    last = removal + 1
    files |= {f"committed/{last}": promises.Commit(last, ("z",))}
    start = begin(files, {"issued": last, "published": last}, {("removed", "m"): removal, "highest published": last})

    def read() -> Steps[None]:
        view = View() if asleep else empty_view()
        if not asleep:
            yield from read_all(rules, view)
        if (yield from claim(rules, view, "L", "m")):
            yield from release("m")

    return Case([Process("R", lambda: _reclaim(removal, head, recycle)), Process("L", read)], start)


def _reclaim(removal: int, head: bool, recycle: bool) -> Steps[None]:
    yield machine.Lock("reclaim")
    if removal == 3:
        yield machine.Unlink("committed/2")
    if recycle:
        yield machine.Move("committed/1", "free/1")
    else:
        yield machine.Unlink("committed/1")
    yield machine.Note(note_reclaimed, 1)
    yield machine.FlushNames()
    if head:
        yield machine.Unlink(f"committed/{removal}-1")
        yield machine.FlushNames()
    yield machine.Unlink(f"committed/{removal}")
    yield machine.Note(note_reclaimed, removal)
    yield machine.Unlock("reclaim")
    if recycle:
        yield from _commit_into_free_file("R", "1", promises.Commit(removal + 2, ("w",)))


def _commit_into_free_file(who: str, free: str, content: promises.Commit) -> Steps[None]:
    """Commit by overwriting a consumed file, under a number that no other commit uses."""
    yield machine.Move(f"free/{free}", f"active/{who}")
    file = yield machine.Open(f"active/{who}")
    yield machine.Write(file, machine.TORN)
    yield machine.Write(file, promises.Unnumbered(who))
    yield from _number(who, file, content)


def _number(who: str, file: int, content: promises.Commit, flush_name: bool = False) -> Steps[None]:
    yield machine.Lock(f"number {content.number}")
    yield from rename_to_number(f"active/{who}", content.number)
    yield machine.Store("issued", content.number)
    yield machine.Write(file, content)
    yield machine.Flush(file)
    if flush_name:
        yield machine.FlushNames()
    yield machine.Store("published", content.number)
    yield machine.Note(promises.note_publication, content.number)
    yield machine.Unlock(f"number {content.number}")


def opener_beside_commit(rules: Rules) -> Case:
    """A puts a. L opens the space and claims a by what it has read, without a second look."""

    def read() -> Steps[None]:
        view = empty_view()
        yield from read_all(rules, view)
        yield machine.Lock("claim a")
        if view.has("a"):
            yield machine.Note(promises.note_delivery, "a")
            yield machine.Note(promises.note_release, "a")
        yield machine.Unlock("claim a")

    return Case([putter(rules, "A", "a"), Process("L", read)], begin(), PROMISES)


def coordinated_reclaim(rules: Rules, order: str = "branch first", flushes: bool = True, move: str = "rename") -> Case:
    """B commits x, gives it its committed name, takes the message of x, and reclaims the three files. Then D the same.

    ``order``: the branch or its head is removed first. ``move``: how the branch gets its committed name where renames
    are not ordered: by a rename, or by a second name, a flush, and the removal of the first one.
    """
    processes = [
        Process(who, lambda who=who: _decide_and_reclaim(rules, who, order, flushes, move))  # type: ignore[misc]
        for who in ("B", "D")
    ]
    files = {"committed/1": promises.Commit(1, ("m",)), "prepared/x": promises.Branch("x", ("r",), ("m",))}
    return Case(processes, begin(files, record={("voted", "x"): True}), PROMISES)


def _decide_and_reclaim(rules: Rules, who: str, order: str, flushes: bool, move: str) -> Steps[None]:
    yield machine.Lock("sequence")
    if (yield from _decide_and_get(rules, who, move)):
        yield from _reclaim_all(order, flushes)
    yield machine.Unlock("sequence")


def _decide_and_get(rules: Rules, who: str, move: str) -> Steps[bool]:
    """Commit x and get its message, or go on where the other process died. False: its number is an empty commit."""
    if not (yield machine.Exists("committed/2")) and (yield machine.Exists("prepared/x")):
        yield from _commit_durably(who, promises.Commit(2, adopts=("x",)))
        yield machine.Note(promises.note_verdict, "x", "committed")
    elif not (yield from _finish_own(rules, who, 2)):
        return False
    if move == "rename":
        yield machine.Move("prepared/x", "committed/2-1")
    elif (yield machine.Exists("prepared/x")):
        yield machine.Link("prepared/x", "committed/2-1")
        yield machine.FlushNames()
        yield machine.Unlink("prepared/x")
    if not (yield machine.Exists("committed/3")):
        yield from _commit_durably(who, promises.Commit(3, removes=("r",)))
        yield machine.Note(promises.note_told, "got", "r")
    elif not (yield from _finish_own(rules, who, 3)):
        return False
    return True


def _finish_own(rules: Rules, who: str, number: int) -> Steps[bool]:
    yield from publish_up_to(rules, number, who)
    content = yield machine.Read(f"committed/{number}")
    return bool(content != promises.Commit(number))


def _reclaim_all(order: str, flushes: bool) -> Steps[None]:
    if order == "branch first":
        removals = ["committed/1", "committed/2-1", "committed/2"]
    else:
        removals = ["committed/2", "committed/2-1", "committed/1"]
    for name in removals:
        if name == "committed/2-1":
            yield machine.Note(_note_branch_reclaimed)
        yield machine.Unlink(name)
        if flushes:
            yield machine.FlushNames()


def _commit_durably(who: str, content: promises.Commit) -> Steps[None]:
    """A commit whose name is flushed, too, as where renames are not ordered."""
    file = yield machine.Create(f"active/{who}", promises.Unnumbered(who))
    yield from _number(who, file, content, flush_name=True)


def _note_branch_reclaimed(state: machine.State, context: machine.Context) -> machine.State:
    return state.note("reclaims").note(("branch reclaimed", "x"))


def xid_used_again(rules: Rules, looks: bool = True) -> Case:
    """B commits x, which takes m. R reclaims both files. Then N votes for another branch, whose xid is x, too.

    ``looks``: R does not reclaim a commit while a process holds the byte of its number.
    """

    def reclaim() -> Steps[None]:
        yield machine.Await(_second_is_published)
        if looks and (yield machine.IsLocked("number 2")):
            return
        for name in ("committed/1", "prepared/x", "committed/2-1", "committed/2"):
            yield machine.Unlink(name)

    def vote_again() -> Steps[None]:
        yield machine.Await(_second_is_reclaimed)
        yield machine.Create("active/x", _SECOND)
        yield machine.Move("active/x", "prepared/x", new=True)
        yield machine.Note(_note_second_vote)

    processes = [committer(rules, "B", when=exists("prepared/x")), Process("R", reclaim), Process("N", vote_again)]
    start = begin({"committed/1": promises.Commit(1, ("m",)), "prepared/x": promises.Branch("x", removes=("m",))})
    return Case(processes, start, Checks(at_end=_second_is_prepared))


_SECOND = promises.Branch("x", ("r",))


def _second_is_published(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return bool(state.cell("published") >= 2)


def _second_is_reclaimed(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return not alive[1] and not state.has("committed/2")


def _note_second_vote(state: machine.State, context: machine.Context) -> machine.State:
    return state.note("second vote")


def _second_is_prepared(state: machine.State, alive: tuple[bool, ...]) -> None:
    if "second vote" in state.noted() and state.content("prepared/x") != _SECOND:
        raise machine.Violation("the vote of the second branch x is lost")


def recycled(rules: Rules, flushed: bool = True) -> Case:
    """The file of commit 1 is overwritten by commit 4. ``flushed``: its name in ``free/`` is durable before."""

    def program() -> Steps[None]:
        yield machine.Move("committed/1", "free/1")
        if flushed:
            yield machine.FlushNames()
        yield from _commit_into_free_file("R", "1", promises.Commit(4, ("w",)))

    old = {
        "committed/1": promises.Commit(1, ("m",)),
        "committed/2": promises.Commit(2, removes=("m",)),
        "committed/3": promises.Commit(3, ("z",)),
    }
    start = begin(old, {"issued": 3, "published": 3}, {("removed", "m"): 2, "highest published": 3, "reclaims": True})
    return Case([Process("R", program)], start, Checks(after_cut=_no_false_damage))


def _no_false_damage(files: dict[str, Any], record: dict[Any, Any]) -> None:
    if files.get("committed/1", promises.Commit(1, ("m",))) != promises.Commit(1, ("m",)):
        raise machine.Violation("commit 1 is torn or foreign below durable commits: it looks like damage")
    promises.after_power_cut(files, record)


def compaction(rules: Rules, keep: bool = True) -> Case:
    """S moves m from commit 1 into a compacted file, as of the commits that it has applied; A gets m; L opens.

    ``keep``: S keeps commits that came after those it has applied: their removals concern the compacted file.
    """
    files = {"committed/1": promises.Commit(1, ("m", "q"))}

    def read() -> Steps[None]:
        view = empty_view()
        yield from read_all(rules, view)
        if (yield from claim(rules, view, "L", "m")):
            yield from release("m")

    def remove() -> Steps[None]:
        yield machine.Lock("claim m")
        yield from commit(rules, View(), "A", removes=("m",), told=(("got", "m"),))
        yield machine.Unlock("claim m")

    processes = [Process("S", lambda: _compact(rules, keep)), Process("A", remove), Process("L", read)]
    return Case(processes, begin(files, record={("initial", "q"): True}))


def _compact(rules: Rules, keep: bool) -> Steps[None]:
    view = View(live={"m": 1, "q": 1})
    yield machine.Lock("reclaim")
    yield from catch_up(rules, view)
    applied = view.applied
    number = yield from commit(rules, view, "S", puts=tuple(sorted(view.live)))
    assert number is not None
    yield machine.Unlink("committed/1")
    yield machine.Note(note_reclaimed, 1)
    yield machine.FlushNames()
    yield from catch_up(rules, view)
    published = yield machine.Load("published")
    for other in range(2, published):
        if other != number and (other <= applied or not keep):
            yield machine.Unlink(f"committed/{other}")
            yield machine.Note(note_reclaimed, other)


READERS = tuple(
    Setting(1, rules=Rules(feed="empty", listing=listing), options={"head": head, "recycle": recycle, "asleep": asleep})
    for listing in ("ascending", "descending")
    for head in (False, True)
    for recycle in (False, True)
    for asleep in (False, True)
)

SCENARIOS = (
    Scenario(
        "late-reader",
        "a late reader beside reclaim",
        (2, 9, 10),
        late_reader,
        READERS,
        {
            "although commit 3 removes it": {
                "the files are listed once": Setting(
                    rules=Rules(feed="empty", listing="ascending", lists=1), options={"asleep": True}
                )
            },
            "although commit 2 removes it": {
                "a listed file that was removed meanwhile is passed over": Setting(
                    rules=Rules(feed="empty", listing="ascending", read_again=False)
                )
            },
        },
    ),
    Scenario(
        "file-used-again",
        "the file of a reclaimed commit is used again",
        (10, 13),
        recycled,
        (Setting(power=True),),
        {
            "it looks like damage": {
                "a file is overwritten before its name in free/ is durable": Setting(
                    power=True, options={"flushed": False}
                )
            }
        },
    ),
    Scenario(
        "reclaim-order",
        "messages, branches and heads are reclaimed in this order",
        (9,),
        coordinated_reclaim,
        (
            Setting(1, power=True),
            Setting(1, power=True, options={"flushes": False}),
            Setting(power=True, journal=False, options={"move": "link"}),
        ),
        {
            "message m is back after its removal was visible": {
                "a head is removed before its branch": Setting(
                    1, power=True, options={"order": "head first", "flushes": False}
                )
            },
            "its content is lost": {
                "where renames are not ordered, a branch is renamed without a flush": Setting(power=True, journal=False)
            },
            "is back after": {
                "where renames are not ordered, removals are not flushed one by one": Setting(
                    power=True, journal=False, options={"move": "link", "flushes": False}
                )
            },
        },
    ),
    Scenario(
        "xid-used-again",
        "a branch with the xid of a reclaimed one",
        (9,),
        xid_used_again,
        (Setting(1),),
        {
            "the vote of the second branch x is lost": {
                "the byte of a number is free before its branch is moved": Setting(rules=Rules(held_until_moved=False)),
                "reclaim does not look at the byte of a number": Setting(options={"looks": False}),
            }
        },
    ),
    Scenario(
        "compaction",
        "a compaction beside a removal and a late reader",
        (2, 9),
        compaction,
        (Setting(long=True), Setting(1, long=True)),
        {
            "although commit 2 removes it": {
                "removals after the compaction's view are reclaimed with it": Setting(options={"keep": False})
            }
        },
    ),
    Scenario(
        "opener-beside-commit",
        "an opener reads beside a commit",
        (2,),
        opener_beside_commit,
        (Setting(1, power=True),),
        {
            "its commit is not published": {
                "an opener reads listed files above *published*": Setting(
                    1, power=True, rules=Rules(read_published_only=False)
                )
            }
        },
    ),
)
