"""The troubles of a space as sentences. Each view adds its own next step: a command, or a link."""

from collections.abc import Callable, Iterable, Iterator

from spool.model.text import plural
from spool.watch.health import Cause, Trouble
from spool.watch.units import age, size

_MOST_OF_A_CAUSE = 10


def told(troubles: Iterable[Trouble], name: Callable[[str], str]) -> Iterator[tuple[Trouble, str]]:
    """Yield troubles with their sentences: at most ten of each cause, and a sentence with the number of the remaining
    troubles.

    name: returns the part of a queue's or service's name that the view shows.
    """
    by_cause: dict[Cause, list[Trouble]] = {}
    for each in troubles:
        by_cause.setdefault(each.cause, []).append(each)
    for alike in by_cause.values():
        for each in alike[:_MOST_OF_A_CAUSE]:
            yield each, sentence(each, name)
        if others := alike[_MOST_OF_A_CAUSE:]:
            yield others[0], f"{plural(len(others), 'more trouble')} of the same cause."


def sentence(trouble: Trouble, name: Callable[[str], str]) -> str:
    """Return the sentence of a trouble. ``name``: see ``told``."""
    queue, count = name(trouble.queue), trouble.count
    since = None if trouble.seconds is None else age(trouble.seconds)
    oldest = "" if since is None else f"; the oldest was prepared {since} ago"
    left = plural(count, "message waits", "messages wait")
    return {
        Cause.STOPPED: "The space is stopped: a flush failed, and no process can commit. End all its programs, check "
        "the disk, and run spool-recover.",
        Cause.STALE: f"The published metrics are {since} old: no process has the space open, or it hangs.",
        Cause.DISK_FULL: "The disk is full: free space on it, e.g. with spool-admin queue purge, which works without "
        "room.",
        Cause.DAMAGE: f"{plural(count, 'damaged file')} in quarantine had acknowledged messages.",
        Cause.UNREADABLE: f"A recovery {since} ago found {plural(count, 'damaged file')}, which nobody has repaired.",
        Cause.QUARANTINE: f"{plural(count, 'file')} in quarantine had no acknowledged messages.",
        Cause.REFUSED: f"{plural(count, 'refused file is', 'refused files are')} in quarantine.",
        Cause.IN_DOUBT: f"{plural(count, 'transaction is', 'transactions are')} in doubt{oldest}.",
        Cause.ROUTE_DOWN: f"The service {name(trouble.service)} of queue {queue} is down; {left}.",
        Cause.NO_ERROR_QUEUE: f"Queue {queue} has the error queue {name(trouble.missing)}, which does not exist: "
        f"create it. Until then, messages that have failed for good remain in queue {queue}.",
        Cause.ERRORS: f"Error queue {queue} has {plural(count, 'failed message')}.",
        Cause.FAILING: f"Messages of queue {queue} fail for good now.",
        Cause.LATE: f"The oldest message of queue {queue} has waited for {since}.",
        Cause.DISK_LOW: f"The disk has {size(count)} free, less than twice the bodies of all messages.",
        Cause.FEW_INODES: f"The disk has only {plural(count, 'inode')} free.",
        Cause.DECISIONS: f"No coordinator has acknowledged {plural(count, 'decision')} of an administrator yet.",
        Cause.RECOVERY: f"A recovery {since} ago had {plural(count, 'finding')}.",
    }[trouble.cause]
