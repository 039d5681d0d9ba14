"""The texts and the names of Dramatiq as a space allows them."""

import os
import re
from hashlib import sha256
from typing import Any

from dramatiq.common import xq_name

import spool

_LONGEST = 255  # characters: a space allows no longer correlation id


def space_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a space. Raises ``spool.InvalidArgument`` for an empty path."""
    if not os.fspath(path):
        raise spool.InvalidArgument("the path of a space is empty: name a directory, e.g. /var/spool/shop")
    return os.path.abspath(path)


def queue_names(name: str) -> tuple[str, str]:
    """Return the queue of the space for a queue of Dramatiq, and its dead-letter queue.

    A name that a space does not allow, e.g. a longer one, gets a hash, so that different names remain different.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}", name):
        name = _with_hash(re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100], name)
    return name, xq_name(name)


def space_with(path: str, namespace: str, **options: Any) -> spool.Space:
    """Return the space with the queue of a namespace. Raises ``spool.InvalidArgument`` for a queue of an actor."""
    space = spool.shared(path)
    known = space.queues().get(namespace)
    if known is not None and known.error_queue == xq_name(namespace):
        raise spool.InvalidArgument(f"the namespace {namespace!r} is a queue of actors: choose another namespace")
    space.ensure_queue(namespace, role="state", on_expiry="drop", **options)
    return space


def short_text(text: object) -> str:
    """Return the correlation id or the header for a text of a caller.

    A text that a space does not allow, e.g. one of 300 characters, gets a hash, so that different texts remain
    different.
    """
    text = str(text)
    written = text.encode("utf-8", "backslashreplace").decode()
    return text if text == written and 0 < len(text) <= _LONGEST else _with_hash(written[:200], text)


def one_line(error: BaseException) -> str:
    """Return an exception as the reason of a failure: ``ExceptionType: text``."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # ``__str__`` is the application's
        text = type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


def _with_hash(readable: str, text: str) -> str:
    return f"{readable}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
