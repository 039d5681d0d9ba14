"""Rule 15: files are kept until the readers with a subscription have read them.

A subscription is a fact in a commit: "@since" or "@read 4" among the messages of :class:`Commit`. A reader
reads the files after its offset and takes nothing.
"""

from tests.protocol.checker import Process, Steps
from tests.protocol.engine import commit
from tests.protocol.machine import Choose, Context, FlushNames, List, Load, Note, Read, State, Unlink, Violation
from tests.protocol.promises import Commit, Messages, is_commit, number_of
from tests.protocol.rules import Rules
from tests.protocol.scenario import Case, Scenario, Setting
from tests.protocol.scenarios.parts import begin
from tests.protocol.view import View


def subscription(rules: Rules, kept: bool = True, since: str = "own commit", ended_by: str = "commit") -> Case:
    """W puts a and gets it. S registers a subscription and reads. R reclaims by the commits that it has seen.

    ``kept``: R keeps files that a subscription has not read. ``since``: a subscription begins with its own commit, or
    with the counter *issued* as read before. ``ended_by``: only a commit ends a subscription, or time alone does, as R
    reads its own clock.
    """

    def write() -> Steps[None]:
        yield from commit(rules, View(), "W", puts=("a",))
        yield from commit(rules, View(), "W", removes=("a",))

    def subscribe() -> Steps[None]:
        offset = yield Load("issued")
        number = yield from commit(rules, View(), "S", puts=("@since",))
        if since == "own commit":
            offset = number
        del number
        last = yield Load("published")
        found = yield from _messages_after(offset)
        yield Note(_must_have_read, found, offset, last)
        yield from commit(rules, View(), "S", puts=(f"@read {last}",))

    def reclaim() -> Steps[None]:
        commits = yield from _all_commits()
        removed = {message for content in commits for message in content.removes}
        facts = [(content.number, fact) for content in commits for fact in content.puts if fact.startswith("@")]
        unread = kept and bool(facts)
        if unread and ended_by == "time":
            unread = yield Choose((True, False))
        first_unread = _first_unread(facts) if unread else 99
        del facts, unread
        for content in commits:
            if content.puts and {*content.puts} <= removed and content.number < first_unread:
                yield Unlink(f"committed/{content.number}")
                yield FlushNames()

    programs = {"W": write, "S": subscribe, "R": reclaim}
    return Case([Process(who, program) for who, program in programs.items()], begin({"committed/1": Commit(1)}))


def _all_commits() -> Steps[tuple[Commit, ...]]:
    published = yield Load("published")
    names = yield List("committed/")
    numbers = sorted(number for number in map(number_of, names) if number is not None and number <= published)
    del names, published
    found: tuple[Commit, ...] = ()
    for number in numbers:
        content = yield Read(f"committed/{number}")
        if is_commit(content, number):
            found = (*found, content)
    return found


def _messages_after(offset: int) -> Steps[Messages]:
    commits = yield from _all_commits()
    return tuple(message for content in commits if content.number > offset for message in content.puts)


def _first_unread(facts: list[tuple[int, str]]) -> int:
    """The first number after the offset of the newest subscription."""
    number, fact = facts[-1]
    return (int(fact.split()[1]) if fact.startswith("@read") else number) + 1


def _must_have_read(state: State, context: Context, found: Messages, offset: int, last: int) -> State:
    for key, content in state.record:
        if isinstance(key, tuple) and key[0] == "content" and content and offset < key[1] <= last:
            missing = {message for message in content.puts if not message.startswith("@")} - {*found}
            if missing:
                raise Violation(f"the reader has missed {', '.join(missing)}, which commit {key[1]} put")
    return state


SCENARIOS = (
    Scenario(
        "subscription",
        "a reader with a subscription beside reclaim",
        (5, 15),
        subscription,
        (Setting(), Setting(1, long=True)),
        {
            "the reader has missed a": {
                "reclaim removes files that a subscription has not read": Setting(options={"kept": False}),
                "a subscription begins with a number that was read before its commit": Setting(
                    options={"since": "issued"}
                ),
                "a subscription ends by time alone": Setting(options={"ended_by": "time"}, long=True),
            }
        },
    ),
)
