"""The engine's protocol as generators: commit, finish, claim, prepare, decide.

Files have the names of a space: ``active/A``, ``prepared/x``, ``committed/2``, ``committed/2-1`` (the first branch that
head 2 adopts), ``quarantine/2``, ``free/1``; ``copies/A`` stands for a file in ``active/`` that replaces another one.
Locks are "number lock", "number 2" (the byte of a number), "claim m", "xid x" and "list of prepared".
"""

from tests.protocol.checker import Steps
from tests.protocol.machine import Create, Exists, Flush, Load, Lock, Move, Note, Read, Store, Unlink, Unlock, Write
from tests.protocol.promises import (
    Branch,
    Commit,
    Messages,
    Unnumbered,
    is_commit,
    note_delivery,
    note_number_taken,
    note_publication,
    note_release,
    note_told,
    note_verdict,
)
from tests.protocol.rules import Rules
from tests.protocol.view import Page, View, catch_up, list_prepared, load_counter, load_page, store_counter

# Numbers: finish those of dead writers, publish in order


def finish(rules: Rules, number: int, who: str) -> Steps[None]:
    """Make the number durable and publish it. The caller holds its byte, so its writer is dead or has published."""
    if rules.published_again and (yield from load_counter(rules, "published")) >= number:
        return
    name = f"committed/{number}"
    if rules.feed != "none" and rules.retract:
        yield Store(f"slot {number}", None)
    content = yield Read(name)
    if content is not None and not is_commit(content, number):
        if not isinstance(content, Unnumbered):
            yield Move(name, f"quarantine/{number}")
        content = None
    if content is not None:
        yield from _copy_over(rules.finish, name, content, who)
    elif rules.empty_commit:
        yield from _copy_over(("copy", "rename", "flush"), name, Commit(number), who)
    del content
    yield from store_counter(rules, "published", number)
    yield Note(note_publication, number)


def _copy_over(actions: tuple[str, ...], name: str, content: Commit, who: str) -> Steps[None]:
    copy = yield Create(f"copies/{who}", content)
    for _place, action in enumerate(actions):  # an action can occur twice: the place tells which one is next
        if action == "rename":
            yield Move(f"copies/{who}", name)
        elif action == "flush":
            yield Flush(copy)


def publish_up_to(rules: Rules, number: int, who: str) -> Steps[None]:
    """Wait until every number up to this one is published, and finish the numbers of dead writers."""
    while True:
        published = yield from load_counter(rules, "published")
        if published >= number:
            return
        following = published + 1
        del published
        yield Lock(f"number {following}")
        yield from finish(rules, following, who)
        yield Unlock(f"number {following}")


def last_issued(rules: Rules) -> Steps[int]:
    """The highest number that may have done something. A file beyond the counter *issued* is not stamped (Rule 1)."""
    number = yield from load_counter(rules, "issued")
    if rules.stamp == "before rename":
        number = yield from _last_file(number)
    return number


def _last_file(number: int) -> Steps[int]:
    while (yield Exists(f"committed/{number + 1}")):
        number += 1
    return number


# Commit


def commit(
    rules: Rules,
    view: View,
    who: str,
    puts: Messages = (),
    removes: Messages = (),
    adopts: Messages = (),
    told: tuple[Messages, ...] = (),
) -> Steps[int | None]:
    """Commit one file and tell its callers. Returns its number, or None if the branch was decided before."""
    file = yield Create(f"active/{who}", Unnumbered(who))
    yield Lock("number lock")
    if adopts and (yield from state_of_branch(rules, view, who, adopts[0])) != "prepared":
        yield Unlock("number lock")
        yield Unlink(f"active/{who}")
        return None
    number = yield from _issue(rules, file, who, Commit(0, puts, removes, adopts))
    yield Unlock("number lock")
    if rules.stamp == "after issued":
        yield Write(file, Commit(number, puts, removes, adopts))
    yield Flush(file)
    if adopts and rules.move_branch == "flushed":
        yield Move(f"prepared/{adopts[0]}", f"committed/{number}-1")
    yield from publish(rules, number, who, is_moved=not (adopts and rules.held_until_moved))
    yield from tell(told)
    if adopts:
        yield Note(note_verdict, adopts[0], "committed")
        if rules.move_branch == "published":
            yield Move(f"prepared/{adopts[0]}", f"committed/{number}-1")
        if rules.held_until_moved:
            yield Unlock(f"number {number}")
    return number


def _issue(rules: Rules, file: int, who: str, content: Commit) -> Steps[int]:
    """Under the number lock: hold the byte of a free number, rename the file to it, store *issued*."""
    number = yield from following_number(rules)
    for step in rules.issue:
        if step == "byte":
            yield Lock(f"number {number}")
        elif step == "issued":
            yield from store_counter(rules, "issued", number)
        else:
            held = "byte" in rules.issue[: rules.issue.index(step)]
            content = content._replace(number=number)
            if rules.stamp == "before rename":
                yield Write(file, content)
            while (yield Move(f"active/{who}", f"committed/{number}", new=True)) != "ok":
                number = yield from _pass_over(number, held)
                content = content._replace(number=number)
                if rules.stamp == "before rename":
                    yield Write(file, content)
            if rules.feed == "filled":
                yield Store(f"slot {number}", content)
            if rules.stamp == "before issued":
                yield Write(file, content)
    return number


def following_number(rules: Rules) -> Steps[int]:
    """The number after every issued one. A writer may have died before it stored *issued*, and left a file there."""
    number = yield from load_counter(rules, "issued")
    return number + 1


def take_number(name: str, number: int) -> Steps[int]:
    """Rename the file to the first number at or above this one that has no file, and hold the byte of that number."""
    yield Lock(f"number {number}")
    while (yield Move(name, f"committed/{number}", new=True)) != "ok":
        number = yield from _pass_over(number, held=True)
    return number


def _pass_over(number: int, held: bool) -> Steps[int]:
    if held:
        yield Unlock(f"number {number}")
        yield Lock(f"number {number + 1}")
    return number + 1


def rename_to_number(name: str, number: int) -> Steps[None]:
    """Rename a file to a number that no other file may have."""
    if (yield Move(name, f"committed/{number}", new=True)) != "ok":
        yield Note(note_number_taken, number)


def publish(rules: Rules, number: int, who: str, is_moved: bool = True) -> Steps[None]:
    """Publish a flushed number after all numbers before it, and release its byte, unless a branch is moved later."""
    if number > 1:
        yield from publish_up_to(rules, number - 1, who)
    yield from store_counter(rules, "published", number)
    yield Note(note_publication, number)
    if is_moved:
        yield Unlock(f"number {number}")


def tell(promises: tuple[Messages, ...]) -> Steps[None]:
    for promise in promises:
        yield Note(note_told, *promise)


# Two phases


def prepare(rules: Rules, who: str, xid: str, puts: Messages = (), removes: Messages = ()) -> Steps[None]:
    """Write a branch, vote for it and tell the vote."""
    yield Lock(f"xid {xid}")
    file = yield Create(f"active/{xid}", Branch(xid, puts, removes))
    yield from _change_prepared(rules, Move(f"active/{xid}", f"prepared/{xid}", new=True))
    yield Flush(file)
    yield Unlock(f"xid {xid}")
    yield Note(note_told, "voted", xid)


def _change_prepared(rules: Rules, change: Move | Unlink) -> Steps[None]:
    if rules.prepared_under_lock:
        yield Lock("list of prepared")
    version = yield Load("version of prepared")
    yield Store("version of prepared", version + 1)
    del version
    yield change
    if rules.prepared_under_lock:
        yield Unlock("list of prepared")


def state_of_branch(rules: Rules, view: View, who: str, xid: str) -> Steps[str]:
    """Under the number lock: "prepared", "committed" or "unknown". Rule 5."""
    if rules.decide_after == "issued":
        last = yield from last_issued(rules)
        yield from publish_up_to(rules, last, who)
        del last
    yield from catch_up(rules, view)
    if xid in view.decided:
        return "committed"
    return "prepared" if (yield Exists(f"prepared/{xid}")) else "unknown"


def roll_back(rules: Rules, view: View, who: str, xid: str) -> Steps[None]:
    """Roll back a prepared branch, unless it is decided already."""
    yield Lock("number lock")
    if (yield from state_of_branch(rules, view, who, xid)) == "prepared":
        yield Note(note_told, "rollback asked", xid)
        yield from _change_prepared(rules, Unlink(f"prepared/{xid}"))
        yield Note(note_verdict, xid, "rolled back")
    yield Unlock("number lock")


# Get


def claim(rules: Rules, view: View, who: str, message: str) -> Steps[bool]:
    """Lock a message and take the second look. True: the message was given to the caller, who still holds the lock."""
    first = yield from load_page(rules)
    yield from catch_up(rules, view, first[1])
    if first[0] != view.prepared_version:
        yield from list_prepared(rules, view)
    if not view.has(message):
        return False
    yield Lock(f"claim {message}")
    page = yield from load_page(rules)
    if page != first or page[1] != page[2]:
        del first
        yield from second_look(rules, view, who, message, page)
    if not view.has(message):
        yield Unlock(f"claim {message}")
        return False
    yield Note(note_delivery, message)
    return True


def second_look(rules: Rules, view: View, who: str, message: str, page: Page) -> Steps[None]:
    """After a claim: see each commit and each prepared branch that may have removed the message. Rule 4."""
    if rules.look_order == "commits first":
        yield from catch_up(rules, view, page[1])
        if page[0] != view.prepared_version:
            yield from list_prepared(rules, view)
        return
    if page[0] != view.prepared_version:
        del page
        yield from list_prepared(rules, view)
        page = yield from load_page(rules)
    last = yield from _last_that_matters(rules, view, message, page)
    if last > page[1]:
        yield from publish_up_to(rules, last, who)
        yield from catch_up(rules, view)
    else:
        yield from catch_up(rules, view, page[1])


def _last_that_matters(rules: Rules, view: View, message: str, page: Page) -> Steps[int]:
    """The last unpublished number for which the second look waits; *published* if there is none."""
    _, published, issued = page
    del page
    match rules.second_look:
        case "all":
            return (yield from last_issued(rules))
        case "next number":
            return min(issued, published + 1)
        case "published":
            return published
    last = issued
    while last > published:
        noted = yield Load(f"slot {last}")
        if not is_commit(noted, last) or noted.adopts:
            return last
        if message in noted.removes:
            if not rules.settle_addressed:
                view.live = {other: number for other, number in view.live.items() if other != message}
                return published
            return last
        del noted
        last -= 1
    return published


def get(rules: Rules, view: View, who: str, message: str) -> Steps[bool]:
    """Claim a message and commit its removal. True: the caller got it."""
    if not (yield from claim(rules, view, who, message)):
        return False
    yield from commit(rules, view, who, removes=(message,), told=(("got", message),))
    yield from release(message)
    return True


def release(message: str) -> Steps[None]:
    yield Note(note_release, message)
    yield Unlock(f"claim {message}")
