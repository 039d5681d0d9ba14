"""The commands of a table: records that remove or change committed messages, or name a captured file. Pure.

A command is a tuple that msgpack encodes unchanged. So files, notes of the feed and posted requests have the same bytes
for a command. The first field ``name`` tells the kinds apart, also for a type checker.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple


class Remove(NamedTuple):
    """Removes committed messages: ``length`` messages of commit ``number`` from ordinal ``first`` on."""

    name: Literal["remove"]
    number: int
    first: int
    length: int
    why: str


class Update(NamedTuple):
    """Changes the control fields or the queue of committed messages. The messages are named as in ``Remove``."""

    name: Literal["update"]
    number: int
    first: int
    length: int
    changes: Mapping[str, Any]


class Take(NamedTuple):
    """Names the captured file from which the branch's messages come. Applying the command removes the file."""

    name: Literal["take"]
    directory: str
    file: bytes


class Left(NamedTuple):
    """Names messages that a compaction does not move in the end. ``first``: an ordinal in the file of the
    compaction."""

    name: Literal["left"]
    first: int
    length: int


REPLACED = "deleted"  # the ``why`` of the removal of a message that a branch replaces

Command = Remove | Update | Take | Left
Addressing = Remove | Update  # these commands address committed messages by number, first ordinal and length
KINDS: dict[str, type[Command]] = {"remove": Remove, "update": Update, "take": Take, "left": Left}


def addressing(commands: Iterable[Command]) -> Iterator[Addressing]:
    """Yield the commands that address committed messages."""
    for command in commands:
        if command.name == "remove" or command.name == "update":
            yield command
