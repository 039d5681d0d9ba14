"""All errors, as one tree of classes. The text of each error names the problem and the remedy.

The attribute ``diagnostic`` of each class is Tuxedo's name for the same condition: ``tpenqueue(3c)`` and
``tpdequeue(3c)`` of Tuxedo /Q return this name in ``ctl->diagnostic``. Of all errors, only a failure of the disk marks
the caller's transaction as rollback-only.
"""

import errno
import os
import queue
import sys
from collections.abc import Mapping
from typing import Any

from spool.packages import BESIDE

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SpoolError(Exception):
    """The base class of the errors of queue spaces."""

    diagnostic = "QMESYSTEM"


class Argument(str):
    """The name of an argument in the text of an error, e.g. ``retry_delay``. A command shows its option instead."""

    __slots__ = ()


class ArgumentError(SpoolError):
    """An error whose text names arguments.

    name: the wrong argument's name; None if the text names no argument.
    expected: a text that describes the values that the argument takes, or None.
    """

    def __init__(self, *parts: str, expected: str | None = None) -> None:
        """``parts``: the parts of the text. Each name of an argument is a separate part."""
        super().__init__("".join(parts))
        self.parts = parts
        self.name: str | None = next((part.partition("=")[0] for part in parts if isinstance(part, Argument)), None)
        self.expected = expected

    def told(self, names: Mapping[str, str]) -> str:
        """Return the text with other names for arguments, e.g. ``--retry-delay`` for ``retry_delay``."""
        return "".join(
            names.get(part.partition("=")[0], part) if isinstance(part, Argument) else part for part in self.parts
        )


class QueueNotFound(ArgumentError, LookupError):
    """The space has no queue of that name."""

    diagnostic = "QMEBADQUEUE"


class QueueExists(ArgumentError):
    """The queue exists already. With ``exist_ok``: its options differ from the options of the call."""

    diagnostic = "QMEBADQUEUE"


class QueueNotEmpty(SpoolError):
    """The queue has messages, so it was not deleted."""

    diagnostic = "QMEINUSE"


class Empty(SpoolError, queue.Empty):
    """No message can be taken now.

    ``message_id``, ``correlation_id``: the ids of a request whose reply did not arrive in time; else None.
    """

    diagnostic = "QMENOMSG"
    message_id: str | None = None
    correlation_id: str | None = None


class MessageInUse(SpoolError):
    """Another transaction holds the message."""

    diagnostic = "QMEINUSE"


class RequestFailed(SpoolError):
    """A service rejected the request, or the request failed too often.

    ``reply``: the message that the service put into the failure queue; None if the service put no message.
    ``message_id``, ``correlation_id``: the ids of the request.
    """

    diagnostic = "TPESVCFAIL"

    def __init__(
        self, text: str = "", reply: Any = None, message_id: str | None = None, correlation_id: str | None = None
    ) -> None:
        super().__init__(text)
        self.reply = reply
        self.message_id = message_id
        self.correlation_id = correlation_id


class Full(SpoolError, queue.Full):
    """A limit of the queue or of the space is reached. ``queue``: the queue's name; None for a limit of the space."""

    diagnostic = "QMENOSPACE"

    def __init__(self, text: str = "", queue: str | None = None) -> None:
        super().__init__(text)
        self.queue = queue


class BadMessageId(SpoolError, LookupError):
    """No message has that id (any more)."""

    diagnostic = "QMEBADMSGID"


class InvalidArgument(ArgumentError, ValueError):
    """An argument has a value that the call does not accept."""

    diagnostic = "QMEINVAL"


class NotOpen(SpoolError):
    """The space was closed, or the process forked after it was opened."""

    diagnostic = "QMENOTOPEN"


class TransactionRolledBack(SpoolError):
    """The transaction was rolled back: its puts have no effect, and the messages that it took are in their queues
    again."""

    diagnostic = "QMEABORTED"


class TransactionTimeout(TransactionRolledBack, TimeoutError):
    """The transaction exceeded its timeout, and was rolled back."""


class ProtocolError(SpoolError):
    """The call does not fit the state of its transaction."""

    diagnostic = "QMEPROTO"


class AccessDenied(SpoolError, PermissionError):
    """A server refused the call: the token is missing or unknown, or does not give the right to the call."""

    diagnostic = "TPEPERM"


class SystemFailure(SpoolError):
    """The engine met a state that should not exist; nothing was changed."""


class DiskFailure(SpoolError, OSError):
    """The operating system refused an operation on the space's files."""

    diagnostic = "QMEOS"

    def __str__(self) -> str:  # OSError would print "[Errno 28] …" before the text
        return str(self.args[-1]) if self.args else ""


class CommitUnknown(DiskFailure):
    """The commit may or may not exist: open the space again and look for the messages ``ids``."""

    def __init__(self, text: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.ids = ids


class SpaceStopped(SystemFailure):
    """No process can use the space: a flush failed, so the content of the disk is unknown, or the directory was moved,
    replaced or removed. Close the space in every process and open it again."""


class CorruptedFile(SystemFailure):
    """The bytes of a file differ from the bytes that were written."""


class MirrorMismatch(SpoolError):
    """The space was not opened: its mirror has a later state, belongs to another space, or was never begun.

    Nothing was changed in either directory.
    """


class SpaceMismatch(SpoolError):
    """A different space lies at the path of a space in which a dead program may have left branches in doubt.

    The records of the dead program remain, so the branches are decided once the right space is back at the path.
    """


class UnknownCodec(SystemFailure):
    """This process has not registered the codec of the message's body, or the codec fails in this process.

    The message remains in its queue. ``message_id``: its id.
    """

    message_id = ""


class SpaceExists(ArgumentError, FileExistsError):
    """The directory is a queue space. With ``exist_ok``: its options differ from the options of the call."""

    diagnostic = "QMEINVAL"


class NotASpace(SpoolError, FileNotFoundError):
    """The directory is not a queue space."""

    diagnostic = "QMENOTOPEN"


class UnsafeFileSystem(SystemFailure):
    """The file system lacks something that the protocol needs: atomic rename, locks or flush."""


class NewerFormat(SystemFailure):
    """The space was written by a later version of this program."""


def in_place_of(error: ImportError) -> str | None:
    """Return a text about a file imported in place of ``xa`` or ``forwarder``, with the remedy; None for another cause.

    Python searches the directories of ``sys.path`` in order, e.g. the program's directory, and imports the first file
    with the package's name.
    """
    name = (error.name or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if name not in ("xa", "forwarder") or file is None or file.startswith(os.path.join(BESIDE, name, "")):
        return None
    return (
        f"{os.path.abspath(file)} is imported in place of the package {name} of xaspool: rename it, or take its "
        "directory out of PYTHONPATH"
    )
