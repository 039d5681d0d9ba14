"""The space that a URL names, the queues of that space, and the names of these queues."""

import re
from hashlib import sha256
from urllib.parse import unquote

import spool

TRANSIENT = "celery.transient"  # the messages of all transient queues; the correlation id is the name of the queue
TRANSIENT_OPTIONS: spool.QueueOptions = {
    "role": "state", "durability": "none", "order": "priority", "on_expiry": "drop", "retry_delay": 0.0,
}  # fmt: skip
BINDINGS = "celery.bindings"
RESULTS = "celery.results"
DEFAULT_EXCHANGE = "amq.default"  # the bindings of each transient queue to its own name


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
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100]
    return f"{readable}-{sha256(name.encode()).hexdigest()[:16]}"
