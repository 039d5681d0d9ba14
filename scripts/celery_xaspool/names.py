"""The space that a URL names, the queues of that space, the names of these queues, and texts for their messages."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import spool

TRANSIENT = "celery.transient"  # the messages of all transient queues; the correlation id is the name of the queue
TRANSIENT_OPTIONS: spool.QueueOptions = {
    "role": "state", "durability": "none", "order": "priority", "on_expiry": "drop", "retry_delay": 0.0,
}  # fmt: skip
BINDINGS = "celery.bindings"
RESULTS = "celery.results"
DEFAULT_EXCHANGE = "amq.default"  # the bindings of each transient queue to its own name

_LONGEST = 255  # characters: a space allows no longer correlation id


def space_path(url: str) -> str:
    """Return the path in a URL like ``xaspool:///var/spool/shop``. Raises ``spool.InvalidArgument``."""
    if (found := re.fullmatch(r"xaspool://(/+[^/?#][^?#]*)", url)) is None:
        raise spool.InvalidArgument(
            f"{url!r} names no queue space: write xaspool:// and the absolute path of a directory, "
            "e.g. xaspool:///var/spool/shop"
        )
    return unquote(found[1])


def queue_name(name: str) -> str:
    """Return the queue of the space for a kombu queue, whose name may have any characters.

    A name that a space does not allow, e.g. ``mail@host``, gets a hash, so that different names remain different.
    """
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}", name) and name not in (TRANSIENT, BINDINGS, RESULTS):
        return name
    return _with_hash(re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100], name)


def short_text(text: object) -> str:
    """Return the correlation id or header for a text of a caller.

    A text that a space does not allow, e.g. one of 300 characters, gets a hash, so that different texts remain
    different.
    """
    text = text.decode() if isinstance(text, bytes) else str(text)
    written = text.encode("utf-8", "backslashreplace").decode()
    return text if text == written and 0 < len(text) <= _LONGEST else _with_hash(written[:200], text)


def one_line(error: BaseException) -> str:
    """Return an exception as the reason of a failure: ``ExceptionType: text``."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # ``__str__`` is the application's
        return type(error).__name__


def put_with_headers(put: Callable[..., str], *args: Any, headers: Mapping[str, str], **options: Any) -> None:
    """Put a message with headers for the tools of administrators; without them, if the space allows fewer headers."""
    try:
        put(*args, headers=headers, **options)
    except spool.InvalidArgument:
        put(*args, **options)


def _with_hash(readable: str, text: str) -> str:
    return f"{readable}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
