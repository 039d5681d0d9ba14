"""The files of the protocol, the promises that its processes make, and the check of both.

A process notes each promise in ``State.record`` in the step in which it makes it. The functions here raise
:class:`Violation` where a new note contradicts an older one, or the files. ``after_power_cut`` recovers a disk by
the rules and compares it with all promises.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.protocol.machine import Context, State, Violation

Messages = tuple[str, ...]


class Commit(NamedTuple):
    """A numbered file: messages that it puts and removes, and prepared branches that it adopts."""

    number: int
    puts: Messages = ()
    removes: Messages = ()
    adopts: tuple[str, ...] = ()


class Branch(NamedTuple):
    """A branch that voted, or is about to."""

    xid: str
    puts: Messages = ()
    removes: Messages = ()


class LogRecord(NamedTuple):
    """A decision in the log of a coordinator."""

    xid: str
    decision: str


class Unnumbered(NamedTuple):
    """A file in ``active/`` that carries no number yet."""

    writer: str


def number_of(name: str) -> int | None:
    """The number of a name in ``committed/``; None for an adopted branch and for other names."""
    directory, _, rest = name.partition("/")
    return int(rest) if directory == "committed" and rest.isdigit() else None


def is_commit(content: Any, number: int | None) -> bool:
    return isinstance(content, Commit) and content.number == number


def removals(state: State) -> dict[str, set[int]]:
    """Every message that a numbered file removes, published or not, with the numbers."""
    found: dict[str, set[int]] = {}
    for name, index in sorted(state.names):
        number, content = number_of(name), state.files[index].content
        if number is None or not is_commit(content, number):
            continue
        for message in content.removes:
            found.setdefault(message, set()).add(number)
        for place, xid in enumerate(content.adopts, start=1):
            for branch in (state.content(f"prepared/{xid}"), state.content(f"committed/{number}-{place}")):
                if isinstance(branch, Branch):
                    for message in branch.removes:
                        found.setdefault(message, set()).add(number)
    return found


def note_publication(state: State, context: Context, number: int) -> State:
    """The number is published: in order, once while its counters last, and no message is removed twice."""
    record = state.noted()
    highest = record.get("highest published", 0)
    if number <= highest and record.keys().isdisjoint({"power cut", "counters lost"}):
        raise Violation(f"number {number} published again ({highest} was)")
    if number > highest:
        state = state.note("highest published", number)
    for message, numbers in removals(state).items():
        if number in numbers:
            earlier = record.get(("removed", message), number)
            if earlier != number:
                raise Violation(f"message {message} removed by two commits, {earlier} and {number}")
            state = state.note(("removed", message), number)
    content = state.content(f"committed/{number}")
    if is_commit(content, number):
        if record.get(("content", number), content) != content:
            raise Violation(f"number {number} published twice with different content")
        state = state.note(("content", number), content)
        for xid in content.adopts:
            if ("rolled back", xid) in record:
                raise Violation(f"branch {xid} committed after its rollback was told")
            state = state.note(("decided", xid), number)
    elif not state.has(f"committed/{number}") and ("content", number) not in record:
        state = state.note(("content", number), None)
    return state


def note_number_taken(state: State, context: Context, number: int) -> State:
    """The rename to a number found a file there."""
    raise Violation(f"number {number} was given to two files")


def note_told(state: State, context: Context, *promise: str) -> State:
    """A caller was told: ("put", message), ("got", message), ("voted", xid) …"""
    return state.note(promise)


def note_delivery(state: State, context: Context, message: str) -> State:
    """The message is given to a caller: no other caller has it, and nothing removed it."""
    record = state.noted()
    for key in record:
        holds = isinstance(key, tuple) and key[0] == "holds" and key[2] == message
        if holds and key[1] != context.process and context.alive[key[1]]:
            raise Violation(f"{message} delivered to two live processes")
    if by := removals(state).get(message) or record.get(("removed", message)):
        raise Violation(f"{message} delivered although commit {by} removes it")
    for name, index in state.names:
        branch = state.files[index].content
        if name.startswith("prepared/") and isinstance(branch, Branch) and message in branch.removes:
            raise Violation(f"{message} delivered although prepared branch {branch.xid} holds it")
    if message not in _published(record) and ("initial", message) not in record:
        raise Violation(f"{message} delivered but its commit is not published")
    return state.note(("delivered", message)).note(("holds", context.process, message))


def _published(record: dict[Any, Any]) -> set[str]:
    contents = (value for key, value in record.items() if isinstance(key, tuple) and key[0] == "content" and value)
    return {message for content in contents for message in content.puts}


def note_release(state: State, context: Context, message: str) -> State:
    """The caller holds the message no longer."""
    kept = frozenset(entry for entry in state.record if entry[0] != ("holds", context.process, message))
    return state._replace(record=kept)


def note_verdict(state: State, context: Context, xid: str, verdict: str) -> State:
    """A coordinator was told "committed" or "rolled back": one of the two, and the files agree."""
    record = state.noted()
    other = "rolled back" if verdict == "committed" else "committed"
    if (other, xid) in record:
        raise Violation(f"{xid} told both committed and rolled back")
    if verdict == "rolled back" and ("decided", xid) in record:
        raise Violation(f"{xid} told rolled back after commit {record['decided', xid]} adopted it")
    return state.note((verdict, xid))


class Recovered(NamedTuple):
    """A disk as recovery leaves it."""

    live: set[str]
    removed: set[str]
    in_doubt: dict[str, Branch]
    adopted: dict[str, int]
    lost_branches: list[str]
    """Adopted, and their file does not exist."""


def recover(files: dict[str, Any], orphans_back: bool = True) -> Recovered:
    """``orphans_back``: an adopted branch without its head is a prepared branch again."""
    heads = {content.number: content for name, content in files.items() if is_commit(content, number_of(name))}
    found = Recovered(set(), set(), {}, {}, [])
    for name, content in files.items():
        directory, _, rest = name.partition("/")
        if isinstance(content, Branch):
            orphan = directory == "committed" and "-" in rest and int(rest.split("-")[0]) not in heads
            if name == f"prepared/{content.xid}" or (orphan and orphans_back):
                found.in_doubt[content.xid] = content
    for number, head in sorted(heads.items()):
        found.live.update(head.puts)
        found.removed.update(head.removes)
        for place, xid in enumerate(head.adopts, start=1):
            branches = (files.get(f"prepared/{xid}"), files.get(f"committed/{number}-{place}"))
            branch = next((branch for branch in branches if isinstance(branch, Branch)), None)
            found.adopted[xid] = number
            found.in_doubt.pop(xid, None)
            if branch is None:
                found.lost_branches.append(xid)
            else:
                found.live.update(branch.puts)
                found.removed.update(branch.removes)
    found.live.difference_update(found.removed)
    return found


def after_power_cut(files: dict[str, Any], record: dict[Any, Any], orphans_back: bool = True) -> None:
    """Every promise holds on the disk that a power cut left."""
    disk = recover(files, orphans_back)
    for key, value in sorted(record.items(), key=repr):
        if isinstance(key, tuple) and (broken := _broken(key, value, files, record, disk)):
            raise Violation(broken)


def _broken(
    key: tuple[Any, ...], value: Any, files: dict[str, Any], record: dict[Any, Any], disk: Recovered
) -> str | None:
    kept = disk.live | disk.removed
    subject = key[1]
    forgotten = ("branch reclaimed", subject) in record
    match key[0]:
        case "put" if subject not in kept and ("removed", subject) not in record:
            return f"acknowledged message {subject} lost"
        case "got" if subject in disk.live:
            return f"message {subject} is back after an acknowledged get"
        case "removed" if subject in disk.live:
            return f"message {subject} is back after its removal was visible"
        case "delivered" if subject not in kept and ("initial", subject) not in record:
            return f"message {subject} was delivered but is not durable"
        case "content" if (
            value and "reclaims" not in record and not is_commit(files.get(f"committed/{subject}"), subject)
        ):
            return f"published number {subject} is not durable"
        case "voted" if subject not in disk.in_doubt and subject not in disk.adopted and not forgotten:
            asked = ("rollback asked", subject) in record or ("rolled back", subject) in record
            return None if asked else f"prepared branch {subject} lost after its vote was told"
        case "committed" if subject not in disk.adopted and not forgotten:
            return f"branch {subject} was told committed and is not"
        case "committed" if subject in disk.lost_branches and not forgotten:
            return f"branch {subject} was told committed and its content is lost"
        case "rolled back" if subject in disk.adopted:
            return f"branch {subject} was told rolled back and is committed"
    return None


Recovery = Callable[[dict[str, Any], dict[Any, Any]], None]
