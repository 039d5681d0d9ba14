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
    match trouble.cause:
        case Cause.STOPPED:
            return ("The space is stopped: a flush failed, and no process can commit. End all its programs, check the "
                    "disk, and run spool-recover.")  # fmt: skip
        case Cause.STALE:
            return f"The published metrics are {since} old: no process has the space open, or it hangs."
        case Cause.DISK_FULL:
            return "The disk is full: free space on it, e.g. with spool-admin queue purge, which works without room."
        case Cause.DAMAGE:
            return f"{plural(count, 'damaged file')} in quarantine had acknowledged messages."
        case Cause.QUARANTINE:
            return f"{plural(count, 'file')} in quarantine had no acknowledged messages."
        case Cause.REFUSED:
            return f"{plural(count, 'refused file is', 'refused files are')} in quarantine."
        case Cause.IN_DOUBT:
            oldest = "" if since is None else f"; the oldest was prepared {since} ago"
            return f"{plural(count, 'transaction is', 'transactions are')} in doubt{oldest}."
        case Cause.ROUTE_DOWN:
            left = plural(count, "message waits", "messages wait")
            return f"The service {name(trouble.service)} of queue {queue} is down; {left}."
        case Cause.NO_ERROR_QUEUE:
            return (f"Queue {queue} has the error queue {name(trouble.missing)}, which does not exist: create it. "
                    f"Until then, messages that have failed for good remain in queue {queue}.")  # fmt: skip
        case Cause.ERRORS:
            return f"Error queue {queue} has {plural(count, 'failed message')}."
        case Cause.FAILING:
            return f"Messages of queue {queue} fail for good now."
        case Cause.LATE:
            return f"The oldest message of queue {queue} has waited for {since}."
        case Cause.DISK_LOW:
            return f"The disk has {size(count)} free, less than twice the bodies of all messages."
        case Cause.FEW_INODES:
            return f"The disk has only {plural(count, 'inode')} free."
        case Cause.DECISIONS:
            return f"No coordinator has acknowledged {plural(count, 'decision')} of an administrator yet."
        case Cause.RECOVERY:
            return f"A recovery {since} ago had {plural(count, 'finding')}."
