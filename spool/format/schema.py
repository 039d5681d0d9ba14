"""The permitted values in a table of contents: control fields, commands, facts. Other values raise ValueError.

A right checksum proves that a program wrote the table, but not that the values are valid. After these checks, all types
are right, all ranges are bounded, and a path can only name a captured file. So the index need not check the values
again.
"""

from collections.abc import Mapping
from typing import Any

from spool.format.commands import Command, Left, Remove, Take, Update, addressing
from spool.model.checks import seconds, whole
from spool.model.layout import CAPTURE_PREFIX, MAX_NUMBER, MAX_ORDINAL
from spool.model.order import MOST_BEFORE
from spool.model.xid import BRANCH_ID_BYTES

TOTALS_FACT = "totals"
# The most messages that the commands of one table may address, so that a few wrong bytes cannot cost much memory.
MOST_ADDRESSED = 1 << 20
_MESSAGES = MAX_ORDINAL + 1  # the most messages of one commit
_MOST = 2**64 - 1  # msgpack has no larger whole number
_NUMBER, _TEXT = (int, float), (str,)
_FIELDS: dict[str, tuple[type, ...]] = {
    "priority": (int,), "not_before": _NUMBER, "delay": _NUMBER, "expires_at": _NUMBER, "time_to_live": _NUMBER,
    "correlation_id": _TEXT, "client_id": _TEXT, "application_key": _TEXT, "reply_queue": _TEXT,
    "failure_queue": _TEXT, "user_code": (int,), "headers": (dict,), "codec": _TEXT, "content_type": _TEXT,
    "attempts": (int,), "deaths": (int,), "origin_queue": _TEXT, "failure_reason": _TEXT, "top": (bool,),
    "before": (list,), "group": _TEXT, "origin_attempts": (int,), "failed_at": _NUMBER,
}  # fmt: skip
_NO_FIELDS: dict[str, Any] = {}  # most messages have no control fields, and share this value
_OR_NONE = (int, float, type(None))
_CHANGES = {**_FIELDS, "queue": _TEXT, "why": _TEXT, "not_before": _OR_NONE, "expires_at": _OR_NONE}


def check_attributes(found: Any, known: Mapping[str, tuple[type, ...]] = _FIELDS) -> dict[str, Any]:
    """Check a message's control fields, and return them."""
    if type(found) is not dict:
        raise ValueError("control fields are no map")
    for key, value in found.items():
        if type(value) not in known.get(key, ()):
            raise ValueError(f"control field {key!r:.40} cannot be {value!r:.40}")
        if type(value) is float:
            check_time(value)
    if "before" in found:
        _check_before(found["before"])
    return found or _NO_FIELDS


def _check_before(place: list[Any]) -> None:
    """Check the place of a message that was put before another message (see ``model.order``).

    The place is ``[number, ordinal, priority, time, top, number, ordinal, …]``.
    """
    target, in_target, priority, time, top, *chain = place
    if type(top) is not bool or len(chain) % 2 or len(chain) > 2 * MOST_BEFORE:
        raise ValueError("the place before another message is malformed")
    check_time(time), whole(priority, 100)
    for number, ordinal in ((target, in_target), *zip(chain[::2], chain[1::2], strict=True)):
        whole(number, MAX_NUMBER), whole(ordinal, MAX_ORDINAL)


def check_command(raw: Any) -> Command:
    """Check a command that msgpack decoded, and return it. Only the file of a compaction has ``Left``."""
    name, *rest = raw
    if name == "left":
        first, length = rest
        whole(whole(first, MAX_ORDINAL) + whole(length, _MESSAGES), _MESSAGES)
        return Left(name, first, length)
    if name == "take":
        directory, file = rest
        _check_captured(directory, file)
        return Take(name, directory, file)
    number, first, length, what = rest
    if not (
        type(number) is type(first) is type(length) is int
        and 0 < number <= MAX_NUMBER
        and first >= 0
        and 0 < length <= _MESSAGES - first
    ):
        raise ValueError("a command addresses no messages")
    if name == "update":
        return Update(name, number, first, length, check_attributes(what, _CHANGES))
    if name != "remove" or not isinstance(what, str):
        raise ValueError(f"unknown command {name!r:.40}")
    return Remove(name, number, first, length, what)


def check_commands(found: Any) -> list[Command]:
    """Check all commands of a table, and return them."""
    commands = list(map(check_command, found))
    if sum(command.length for command in addressing(commands)) > MOST_ADDRESSED:
        raise ValueError("its commands address more messages than allowed")
    return commands


def _check_captured(directory: Any, name: Any) -> None:
    """Check the path of a captured file. Applying the command removes the file, so the path must lie in a capture
    directory."""
    if not isinstance(directory, str) or not directory.startswith(CAPTURE_PREFIX) or {"/", "\0"} & set(directory):
        raise ValueError(f"{directory!r:.40} is no directory of taken files")
    if not isinstance(name, bytes) or name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise ValueError(f"{name!r:.40} is no file's name")


def check_fact(found: Any) -> list[Any]:
    """Check a fact ``[key, value, expiry or None]``, and return it.

    Only the value of the totals fact is checked here. The modules that read other values check these values.
    """
    key, value, expiry = found
    if not isinstance(key, str):
        raise ValueError(f"a fact's key is no text: {key!r:.40}")
    if key == TOTALS_FACT and value is not None:
        _check_totals(value)
    return [key, value, None if expiry is None else check_time(expiry)]


def _check_totals(value: Any) -> None:
    for queue, counts in value["queues"].items():
        if not isinstance(queue, str) or len(counts) != 4:
            raise ValueError("totals are four counts a queue")
        for count in counts:
            whole(count, _MOST)
    for number in value["folded"]:
        whole(number, MAX_NUMBER)
    count, total = value["gone"]
    whole(count, MAX_NUMBER), whole(total, _MOST)


def check_time(value: Any) -> float:
    """Return a time, in seconds before or after the epoch. Raises ValueError for infinity, NaN and other values.

    (A put allows times up to 1e12. The limit is higher here, because a delay is added to the time of the commit.)
    """
    return seconds(value, 2.0**53, -(2.0**53))


def check_branch_id(value: Any) -> bytes:
    """Check the id of a branch, and return it."""
    if not isinstance(value, bytes) or len(value) != BRANCH_ID_BYTES:
        raise ValueError(f"{value!r:.40} is no branch's id")
    return value
