"""Transactional queues in a directory: ``spool.create``, ``spool.open``, and what they return."""

import sys

if not (sys.platform == "linux" and sys.maxsize > 2**32):
    raise ImportError("xaspool needs 64-bit Linux: its locks are open-file-description locks (fcntl, F_OFD_SETLK)")

from spool.codecs import Codec, register_codec
from spool.errors import (
    BadMessageId,
    CommitUnknown,
    CorruptedFile,
    DiskFailure,
    Empty,
    Full,
    InvalidArgument,
    MessageInUse,
    NewerFormat,
    NotASpace,
    NotOpen,
    ProtocolError,
    QueueExists,
    QueueNotEmpty,
    QueueNotFound,
    SpaceExists,
    SpaceStopped,
    SpoolError,
    SystemFailure,
    TransactionRolledBack,
    TransactionTimeout,
    UnknownCodec,
    UnsafeFileSystem,
)  # fmt: skip
from spool.message import Message, Position
from spool.opening import create, import_space, open
from spool.options import MessageFilters, PutOptions, QueueOptions, SpaceOptions
from spool.outcome import Reject, Retry
from spool.settings import QueueConfig, SpaceConfig
from spool.space import JOIN, Space
from spool.stats import QueueStats
from spool.transaction import Transaction

__all__ = [
    "JOIN", "BadMessageId", "Codec", "CommitUnknown", "CorruptedFile", "DiskFailure", "Empty", "Full",
    "InvalidArgument", "Message", "MessageFilters", "MessageInUse", "NewerFormat", "NotASpace", "NotOpen",
    "Position", "ProtocolError", "PutOptions", "QueueConfig", "QueueExists", "QueueNotEmpty", "QueueNotFound",
    "QueueOptions", "QueueStats", "Reject", "Retry", "Space", "SpaceConfig", "SpaceExists", "SpaceOptions",
    "SpaceStopped", "SpoolError", "SystemFailure", "Transaction", "TransactionRolledBack", "TransactionTimeout",
    "UnknownCodec", "UnsafeFileSystem", "create", "import_space", "open", "register_codec",
]  # fmt: skip
