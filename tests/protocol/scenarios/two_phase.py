"""Rules 4 and 5: prepared branches, their decision, and processes that die between the two."""

from typing import Any

from tests.protocol import machine
from tests.protocol.checker import Checks, Process, Steps
from tests.protocol.engine import claim, commit, prepare, release, roll_back
from tests.protocol.promises import Branch, Commit, LogRecord, after_power_cut
from tests.protocol.rules import WITHOUT_FEED, Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios import parts
from tests.protocol.view import View


def vote(rules: Rules, decision: str = "commit", taker: bool = True) -> Case:
    """A claims m and votes for x; B commits x or rolls it back; C claims another message, then m."""
    end = parts.committer if decision == "commit" else parts.roller_back
    processes = [parts.preparer(rules, "A"), end(rules, "B")]
    if decision == "none":
        processes = [parts.preparer(rules, "A")]
    if taker:
        processes.append(parts.claimer(rules, "C", ("m0", "m"), View(live={"m": 1, "m0": 1})))
    start = parts.begin({"committed/1": Commit(1, ("m", "m0"))}, record={("initial", "m0"): True})
    return Case(processes, start, parts.PROMISES)


def listed_early(rules: Rules) -> Case:
    """R rolls back x, which holds m. C claims m0 meanwhile, and m afterwards: m must be free."""
    start = parts.begin(
        {"committed/1": Commit(1, ("m", "m0")), "prepared/x": Branch("x", ("r",), ("m",))},
        record={("voted", "x"): True, ("initial", "m0"): True},
    )

    def rolled_back(state: machine.State, alive: tuple[bool, ...]) -> bool:
        return not state.has("prepared/x")

    def must_be_free(state: machine.State, context: machine.Context, claimed: bool) -> machine.State:
        if not claimed:
            raise machine.Violation("m is not delivered: C believes that the rolled-back branch holds it")
        return state

    def program() -> Steps[None]:
        view = View(live={"m": 1, "m0": 1})
        if (yield from claim(rules, view, "C", "m0")):
            yield from release("m0")
        yield machine.Await(rolled_back)
        claimed = yield from claim(rules, view, "C", "m")
        yield machine.Note(must_be_free, claimed)

    return Case(
        [parts.roller_back(rules, "R", when=parts.exists("prepared/x")), Process("C", program)], start, parts.PROMISES
    )


def race(rules: Rules, commits: int = 1) -> Case:
    """One or two processes commit x while another one rolls it back."""
    there = parts.exists("prepared/x")
    processes = [parts.committer(rules, who, when=there) for who in ("B", "D")[:commits]]
    return Case([*processes, parts.roller_back(rules, "R", when=there)], parts.begin_prepared(), parts.PROMISES)


def unflushed_vote(rules: Rules, copied: bool = True) -> Case:
    """A dies between the rename of its vote and the flush; B commits the branch that it finds.

    ``copied``: B gives the branch a durable copy first, because its vote was not acknowledged.
    """

    def adopt() -> Steps[None]:
        yield machine.Await(parts.exists("prepared/x"))
        if copied:
            yield from _make_vote_durable()
        yield from commit(rules, View(), "B", adopts=("x",), told=(("put", "r"),))

    return Case([parts.preparer(rules, "A"), Process("B", adopt)], parts.begin(), parts.PROMISES)


def _make_vote_durable() -> Steps[None]:
    yield machine.Lock("xid x")
    yield machine.Lock("number lock")
    branch = yield machine.Read("prepared/x")
    if branch is not None:
        copy = yield machine.Create("copies/B", branch)
        yield machine.Flush(copy)
        yield machine.Move("copies/B", "prepared/x")
        yield machine.Flush(copy)
    yield machine.Unlock("number lock")
    yield machine.Unlock("xid x")


def log_of_coordinator(rules: Rules, first: str = "lock", flush_log: bool = True) -> Case:
    """TM writes its decision into a log and commits x. Z resolves x: by the lock of TM, then by the log.

    ``flush_log``: Z flushes the record of a dead TM before it acts by it.
    """

    def coordinate() -> Steps[None]:
        yield machine.Lock("coordinator")
        record = yield machine.Create("log/x", LogRecord("x", "commit"))
        yield machine.Flush(record)
        yield from commit(rules, View(), "TM", adopts=("x",))
        yield machine.Unlock("coordinator")

    def resolve() -> Steps[None]:
        yield machine.Await(parts.exists("prepared/x"))
        if first == "lock":
            alive = yield machine.IsLocked("coordinator")
            record = yield machine.Open("log/x")
        else:
            record = yield machine.Open("log/x")
            alive = yield machine.IsLocked("coordinator")
        if alive:
            return
        if record is None:
            yield from roll_back(rules, View(), "Z", "x")
        else:
            if flush_log:
                yield machine.Flush(record)
            yield from commit(rules, View(), "Z", adopts=("x",))

    start = parts.begin_prepared()._replace(locks=frozenset({("coordinator", 0, False)}))
    checks = Checks(after_cut=_log_is_durable, at_end=_log_and_branch_agree)
    return Case([Process("TM", coordinate), Process("Z", resolve)], start, checks)


def _log_is_durable(files: dict[str, Any], record: dict[Any, Any]) -> None:
    decided = ("committed", "x") in record or ("decided", "x") in record
    if decided and not isinstance(files.get("log/x"), LogRecord):
        raise machine.Violation("x is committed and the record of the coordinator is lost: other resources roll back")
    after_power_cut(files, record)


def _log_and_branch_agree(state: machine.State, alive: tuple[bool, ...]) -> None:
    if ("rolled back", "x") in state.noted() and state.has("log/x"):
        raise machine.Violation("x is rolled back although the log of the coordinator says commit")


def early_move(rules: Rules, before_publication: bool = True, orphans_back: bool = True) -> Case:
    """B commits x; R, a recovery, gives x its committed name before the head is durable.

    ``orphans_back``: recovery makes an adopted branch without its head a prepared one again.
    """

    def move() -> Steps[None]:
        yield machine.Await(parts.exists("committed/2"))
        if not before_publication:
            yield machine.Await(_published_2)
        yield machine.Move("prepared/x", "committed/2-1")

    def after_cut(files: dict[str, Any], record: dict[Any, Any]) -> None:
        after_power_cut(files, record, orphans_back)

    processes = [parts.committer(rules, "B", when=parts.exists("prepared/x")), Process("R", move)]
    return Case(processes, parts.begin_prepared(), Checks(after_cut=after_cut))


def _published_2(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return bool(state.cell("published") >= 2)


def round_of_tasks(rules: Rules, third: str = "cleaner") -> Case:
    """D drives a round: it claims m; T, its task, votes for y1 with the reply r1; D commits both.

    ``cleaner``: Z rolls back y1 if D is dead. ``driver``: N claims m for a round of its own, with y2 and r2.
    """
    processes = [Process("D", lambda: _drive(rules, "D", "y1", "r1", inline=False))]
    processes.append(Process("T", lambda: prepare(rules, "T", "y1", puts=("r1",))))
    if third == "cleaner":
        processes.append(Process("Z", lambda: _clean(rules)))
    else:
        processes.append(Process("N", lambda: _drive(rules, "N", "y2", "r2", inline=True)))
    start = parts.begin()._replace(locks=frozenset({("round of D", 0, False)}))
    return Case(processes, start, parts.PROMISES._replace(at_end=_one_round))


def _task_ended(state: machine.State, alive: tuple[bool, ...]) -> bool:
    return not alive[1] or ("voted", "y1") in state.noted()


def _drive(rules: Rules, who: str, xid: str, reply: str, inline: bool) -> Steps[None]:
    view = View()
    yield machine.Lock(f"round of {who}")
    if (yield from claim(rules, view, who, "m")):
        ready = True
        if inline:
            yield from prepare(rules, who, xid, puts=(reply,))
        else:
            yield machine.Await(_task_ended)
            ready = yield machine.Ask(parts.voted(xid))
        if ready:
            yield from commit(rules, view, who, removes=("m",), adopts=(xid,), told=(("got", "m"),))
        yield from release("m")
    yield machine.Unlock(f"round of {who}")


def _clean(rules: Rules) -> Steps[None]:
    yield machine.Await(parts.exists("prepared/y1"))
    if not (yield machine.IsLocked("round of D")):
        yield from roll_back(rules, View(), "Z", "y1")


def _one_round(state: machine.State, alive: tuple[bool, ...]) -> None:
    if ("decided", "y1") in state.noted() and ("decided", "y2") in state.noted():
        raise machine.Violation("both rounds have committed")


def opener_cleans(rules: Rules, lock_first: bool = True) -> Case:
    """A prepares x. O opens the space, and removes files of ``active/`` whose xid is locked by no process."""

    def write_branch() -> Steps[None]:
        if lock_first:
            yield machine.Lock("xid x")
        file = yield machine.Create("active/x", Branch("x", ("r",)))
        if not lock_first:
            yield machine.Lock("xid x")
        if (yield machine.Move("active/x", "prepared/x", new=True)) != "ok":
            yield machine.Note(_branch_removed)
        yield machine.Flush(file)
        yield machine.Unlock("xid x")

    def clean() -> Steps[None]:
        if (yield machine.Read("active/x")) is not None and (yield machine.TryLock("xid x")):
            yield machine.Unlink("active/x")
            yield machine.Unlock("xid x")

    return Case([Process("A", write_branch), Process("O", clean)], parts.begin())


def _branch_removed(state: machine.State, context: machine.Context) -> machine.State:
    raise machine.Violation("an opener removed the file of a live branch")


TWO = {"commits": 2}
ROLLBACK = {"decision": "roll back"}

SCENARIOS = (
    Scenario(
        "vote-beside-claim",
        "a vote and its decision beside a claim",
        (4, 5),
        vote,
        (
            Setting(1),
            Setting(1, options=ROLLBACK),
            Setting(1, power=True, options={"taker": False}),
            Setting(1, power=True, rules=Rules(move_branch="flushed"), long=True),
            Setting(2, power=True, long=True),
            Setting(2, power=True, options=ROLLBACK, long=True),
            Setting(2, power=True, rules=Rules(feed="empty"), long=True),
            Setting(2, power=True, rules=WITHOUT_FEED, long=True),
        ),
        {
            "although prepared branch x holds it": {
                "the list of prepared branches changes without its byte": Setting(
                    1, options={"decision": "none"}, rules=Rules(prepared_under_lock=False)
                )
            },
            "although commit {2} removes it": {
                "the second look sees commits before prepared branches": Setting(
                    1, rules=Rules(look_order="commits first")
                )
            },
        },
    ),
    Scenario(
        "listing-beside-rollback",
        "a rollback beside a listing of prepared branches",
        (4,),
        listed_early,
        (Setting(),),
        {
            "believes that the rolled-back branch holds it": {
                "the list of prepared branches changes without its byte": Setting(
                    rules=Rules(prepared_under_lock=False)
                )
            }
        },
    ),
    Scenario(
        "early-move",
        "a recovery that moves an adopted branch",
        (5, 9),
        early_move,
        (Setting(power=True), Setting(power=True, options={"before_publication": False, "orphans_back": False})),
        {
            "prepared branch x lost": {
                "an adopted branch without its head stays where it is": Setting(
                    power=True, options={"orphans_back": False}
                )
            }
        },
    ),
    Scenario(
        "decisions-race",
        "commits and a rollback of one branch race",
        (5,),
        race,
        (Setting(1, power=True), Setting(1, options=TWO), Setting(2, power=True, options=TWO, long=True)),
        {
            "was told rolled back and is committed": {
                "a decision follows published commits only": Setting(
                    1, power=True, rules=Rules(decide_after="published")
                )
            },
            "told both committed and rolled back": {
                "a decision follows published commits only, two commits": Setting(
                    1, options=TWO, rules=Rules(decide_after="published")
                )
            },
        },
    ),
    Scenario(
        "coordinator-dies",
        "a coordinator dies between its log and its commit",
        (6,),
        log_of_coordinator,
        (Setting(1, power=True),),
        {
            "although the log of the coordinator says commit": {
                "the log is read before the lock of the coordinator": Setting(1, power=True, options={"first": "log"})
            },
            "the record of the coordinator is lost": {
                "the record of a dead coordinator is not flushed before it is followed": Setting(
                    1, power=True, options={"flush_log": False}
                )
            },
        },
    ),
    Scenario(
        "unflushed-vote",
        "a vote that was not flushed is adopted",
        (3, 5),
        unflushed_vote,
        (Setting(1, power=True),),
        {
            "was told committed and its content is lost": {
                "an untold vote is adopted as it lies": Setting(1, power=True, options={"copied": False})
            }
        },
    ),
    Scenario(
        "round-of-tasks",
        "driver, task, and the cleaner or the next driver",
        (5, 6),
        round_of_tasks,
        (Setting(1, power=True), Setting(1, options={"third": "driver"}, long=True)),
        {
            "was told rolled back and is committed": {
                "a decision follows published commits only": Setting(
                    1, power=True, rules=Rules(decide_after="published")
                )
            }
        },
    ),
    Scenario(
        "opener-cleans",
        "an opener removes files of dead branches",
        (6,),
        opener_cleans,
        (Setting(1),),
        {
            "removed the file of a live branch": {
                "the file is created before its xid is locked": Setting(1, options={"lock_first": False})
            }
        },
    ),
)
