"""The view of one process: its index of the published commits, and its list of prepared branches; how it catches up.

Files have the names of a space: see :mod:`tests.protocol.engine`.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.protocol.checker import Steps
from tests.protocol.machine import Exists, List, Load, LoadAll, Lock, Read, Store, Unlock
from tests.protocol.promises import Branch, Commit, Messages, is_commit, number_of
from tests.protocol.rules import Rules

_CELLS = ("version of prepared", "published", "issued")
Page = tuple[int, int, int]


@dataclass
class View:
    """The view of one process: its index of the published commits, and its list of prepared branches."""

    applied: int = 1
    live: dict[str, int] = field(default_factory=lambda: {"m": 1})
    """Messages, each with the number of its commit."""
    removed: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    """Messages that prepared branches hold."""
    prepared_version: int = -1
    decided: frozenset[str] = frozenset()
    """Branches that a published commit adopted."""

    def has(self, message: str) -> bool:
        return message in self.live and message not in self.held


def empty_view() -> View:
    """The view of a process that has read nothing."""
    return View(applied=0, live={})


# Counters in shared memory


def store_counter(rules: Rules, name: str, value: int) -> Steps[None]:
    if rules.counters == "one cell":
        yield Store(name, value)
    else:
        yield Store(f"{name} A", value)
        yield Store(f"{name} B", value)


def load_counter(rules: Rules, name: str) -> Steps[int]:
    if rules.counters == "one cell":
        value: int = yield Load(name)
        return value
    while True:
        first: int = yield Load(f"{name} A")
        second: int = yield Load(f"{name} B")
        if first == second or rules.counters == "two cells":
            return max(first, second) if name == "issued" else min(first, second)


def load_page(rules: Rules) -> Steps[Page]:
    """The version of the prepared branches, *published* and *issued*."""
    if rules.counters == "one cell" and not rules.counters_read:
        page: Page = yield LoadAll(_CELLS)
        return page
    values: dict[str, int] = {}
    for name in rules.counters_read or _CELLS:
        if name == "version of prepared":
            values[name] = yield Load(name)
        else:
            values[name] = yield from load_counter(rules, name)
    return values["version of prepared"], values["published"], values["issued"]


# The view of a process


def _apply(view: View, commit: Commit, listed: Messages | None = None) -> Steps[bool]:
    """Apply a commit; False if the file of an adopted branch does not exist.

    ``listed``: the names of a process that reads all files. A branch in no listing was reclaimed before its head.
    """
    puts, removes = commit.puts, commit.removes
    for place, xid in enumerate(commit.adopts, start=1):
        names = (f"prepared/{xid}", f"committed/{commit.number}-{place}")
        branch = yield Read(names[0])
        if not isinstance(branch, Branch):
            branch = yield Read(names[1])
        if isinstance(branch, Branch):
            puts += branch.puts
            removes += branch.removes
        elif listed is None or not {*names}.isdisjoint(listed):
            return False
    view.applied = commit.number
    view.decided |= {*commit.adopts}
    view.removed |= {*removes}
    live = {**view.live, **dict.fromkeys(puts, commit.number)}
    view.live = {message: number for message, number in live.items() if message not in view.removed}
    return True


def _apply_next(rules: Rules, view: View) -> Steps[bool]:
    number = view.applied + 1
    commit: Any = None
    if rules.feed != "none":
        commit = yield Load(f"slot {number}")
    if not is_commit(commit, number):
        commit = yield Read(f"committed/{number}")
    if not is_commit(commit, number):
        return False
    return (yield from _apply(view, commit))


def catch_up(rules: Rules, view: View, published: int | None = None) -> Steps[None]:
    """Apply every published commit, by its slot or its file; where reclaim was faster, by the files that are left."""
    if published is None:
        published = yield from load_counter(rules, "published")
    while view.applied < published:
        if not (yield from _apply_next(rules, view)):
            yield from read_all(rules, view)


def read_all(rules: Rules, view: View) -> Steps[None]:
    """Go on with the files that are left: an opener, or a process that reclaim has overtaken."""
    while not (yield from _read_all_once(rules, view)):
        pass
    view.prepared_version = -1
    yield from list_prepared(rules, view)


def _read_all_once(rules: Rules, view: View) -> Steps[bool]:
    published = yield from load_counter(rules, "published")
    prepared = yield List("prepared/")
    listed = yield from _list_committed(rules)
    left = (yield from _list_committed(rules)) if rules.lists == 2 else listed
    view.live = {message: number for message, number in view.live.items() if f"committed/{number}" in left}
    del left
    numbers = sorted(number for number in map(number_of, listed) if number is not None and number > view.applied)
    known = (*prepared, *listed)
    del prepared, listed
    for number in numbers:
        if number > published and rules.read_published_only:
            break
        commit = yield Read(f"committed/{number}")
        if not is_commit(commit, number):
            if rules.read_again:
                return False
        elif not (yield from _apply(view, commit, known)):
            return False
        del commit
    view.applied = max(view.applied, published)
    return True


def _list_committed(rules: Rules) -> Steps[Messages]:
    """The names in ``committed/``: in one instant, or one name after the other while other processes go on."""
    if rules.listing == "at once":
        names: Messages = yield List("committed/")
        return names
    each = ["committed/1", "committed/2-1", "committed/2", "committed/3-1", "committed/3", "committed/4", "committed/5"]
    if rules.listing == "descending":
        each.reverse()
    found: Messages = ()
    for name in each:
        if (yield Exists(name)):
            found += (name,)
    return found


def list_prepared(rules: Rules, view: View) -> Steps[None]:
    """List the prepared branches again: the messages that they hold."""
    if rules.prepared_under_lock:
        yield Lock("list of prepared", shared=True)
    version = yield Load("version of prepared")
    names = yield List("prepared/")
    if rules.prepared_under_lock:
        yield Unlock("list of prepared")
    view.prepared_version = version
    del version
    held: frozenset[str] = frozenset()
    for name in names:
        branch = yield Read(name)
        if isinstance(branch, Branch) and branch.xid not in view.decided:
            held |= {*branch.removes}
    view.held = held
