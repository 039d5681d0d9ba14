"""Named subscriptions: readers that claim nothing. The space keeps each message until every subscription has read it.

A subscription is a fact: it begins, advances and ends by commits. Each of these commits is decided under the number
lock (Rule 5). Reclaim keeps the files that the newest fact of a subscription names (Rule 15). Reclaim is correct
even if the reclaiming process has an old view:

1. A subscription starts after all existing commits, and afterwards only releases commits. So an older view retains at
   least as much as a newer view.
2. Time alone ends no subscription. An expired subscription counts until a commit ends the subscription. So no clock
   decides whether a file exists, and a late reader gets every message or an error.

A reader reads the files of the commits themselves (``put_by``), not the messages in the queues. These messages may have
left the queues, or a compaction may have moved them to a file with another number. *Afterwards* the reader checks its
subscription (``progress``). If the subscription still exists and no other reader has advanced it, every file existed
while the reader needed the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spool.disk.disk import FlushFailed
from spool.errors import InvalidArgument, NotOpen, SpoolError
from spool.index.commit import SUBSCRIPTION_FACT, Subscription
from spool.index.index import Index
from spool.log.engine_commit import commit_if
from spool.log.replay import read_commit
from spool.log.visibility import catch_up
from spool.log.write_set import WriteSet
from spool.model.text import did_you_mean, shown
from spool.store.parts import View
from spool.store.store import Store, log


@dataclass(frozen=True)
class SubscriptionState:
    """The state of a subscription at one moment.

    queues: the names of the subscription's queues; empty for all queues.
    since: the number of the commit that registered the subscription.
    read_to: the number of the last commit that the subscription's reader has read.
    expires_at: the time at which the subscription ends, in seconds since the epoch. The reader can postpone this time
        by ``advance``.
    unread: the greatest possible number of unread messages; a message that moved to another queue counts twice.
    kept_bytes: the bytes of the bodies in files that are needed by this subscription but by no queue.
    """

    queues: tuple[str, ...]
    since: int
    read_to: int
    expires_at: float
    unread: int
    kept_bytes: int


def register(store: Store, name: str, queues: Sequence[str], seconds: float, anew: bool, directory: str) -> int:
    """Register a subscription; return the number of the commit that registers it.

    The space keeps every message of a later commit for the subscription. If a subscription of this name exists, and its
    reader has read nothing, the subscription is used again. Its reader may have been killed before the first reading.

    Args:
        queues: the names of the queues; empty for all queues.
        seconds: the number of seconds after which the subscription ends, unless ``advance`` is called earlier.
        anew: whether to replace an existing subscription of this name.
        directory: the directory of the archive that reads; "" for another reader.

    Raises:
        InvalidArgument: a subscription of this name exists, and its reader has read messages or is the archive of
            another directory.
    """
    catch_up(store)
    applied, known = store.view.index.applied, subscription(store.view, name)
    is_other = known is not None and known.directory != directory
    if known is not None and known.since and (is_other or not anew):
        if is_other or known.after != known.since:
            reader = f" of the archive in {shown(known.directory)}" if known.directory else ""
            raise InvalidArgument(
                f"there is a subscription {name!r}{reader}, which has read up to commit {known.after}, and this query "
                f"begins: give it another subscription, or delete this one: spool-admin subscription delete {name}"
            )
        if known.queues == tuple(queues) and advance(store, name, known.since, known.after, seconds, directory):
            return known.since
    # A commit has no number before its file is written. So the first commit does not record its own number, but keeps
    # at least the needed files. A second commit records the number of the first commit.
    first = Subscription(tuple(queues), 0, applied, store.clock.now() + seconds, directory)
    since = _decide(store, name, known, first)
    if since is None or _decide(store, name, first, first._replace(since=since, after=since)) is None:
        present = subscription(store.view, name)
        if present is None or not present.since:  # a process died between its two commits
            return register(store, name, queues, seconds, anew, directory)
        raise InvalidArgument(
            f"another query has registered the subscription {name!r} meanwhile: give each query another name"
        )
    return since


def subscription(view: View, name: str) -> Subscription | None:
    """Return a subscription as of the commits that this process has applied; None if it does not exist."""
    with view.mutex:
        return view.index.subscriptions.get(_key(name))


def progress(store: Store, name: str, since: int) -> Subscription | None:
    """Return the present subscription that commit ``since`` registered, or None if this subscription has ended."""
    catch_up(store)
    known = subscription(store.view, name)
    return known if known is not None and known.since == since else None


def advance(store: Store, name: str, since: int, after: int, seconds: float, directory: str) -> bool:
    """Record durably that the reader has read all commits up to ``after``. Return False if the subscription has ended.

    Args:
        since: the number of the commit that registered the subscription.
        seconds: the number of seconds after which the subscription ends, unless ``advance`` is called earlier.
        directory: the directory of the archive that reads, which the user may have moved; "" for another reader.

    Raises:
        InvalidArgument: the commit ``after`` does not exist yet, so no reader has read the commit.
    """
    while (known := progress(store, name, since)) is not None:
        if after > store.view.index.applied:
            raise InvalidArgument(
                f"the subscription {name!r} cannot have been read up to commit {after}: the last one is "
                f"{store.view.index.applied}"
            )
        later = known._replace(after=max(known.after, after), expires=store.clock.now() + seconds, directory=directory)
        if _decide(store, name, known, later) is not None:
            return True
    return False


def put_by(store: Store, number: int) -> Index | None:
    """Return an index of this commit only. The index has the messages as they were put.

    Return None if a file of the commit cannot be read.
    """
    commit = read_commit(store, number)
    if commit is None or commit.damage:
        return None
    alone = Index(store.files.cache, store.settings.known.config.queues)
    alone.apply(commit, is_new=False)
    return alone


def end(store: Store, name: str) -> None:
    """End a subscription durably, so that reclaim may remove the files that were kept for the subscription.

    Raises InvalidArgument if the subscription does not exist.
    """
    catch_up(store)
    while (known := subscription(store.view, name)) is not None:
        if _decide(store, name, known, None) is not None:
            return
    with store.view.mutex:
        names = [key.removeprefix(SUBSCRIPTION_FACT) for key in store.view.index.subscriptions]
    raise InvalidArgument(
        f"there is no subscription {name!r}{did_you_mean(name, names)}: spool-admin subscription list names them"
    )


def end_expired(store: Store) -> None:
    """End expired subscriptions. If this fails, the failure is logged, and a later call repeats the attempt."""
    now = store.clock.now()
    with store.view.mutex:
        expired = [(key, each) for key, each in store.view.index.subscriptions.items() if each.expires <= now]
    for key, known in expired:
        name = key.removeprefix(SUBSCRIPTION_FACT)
        try:
            if _decide(store, name, known, None) is not None:
                log.warning("the subscription %r has ended: its reader did not read in time", name)
        except (FlushFailed, NotOpen):
            raise
        except (OSError, SpoolError) as error:
            log.warning("the subscription %r cannot be ended now: %s", name, error)


def states(store: Store) -> dict[str, SubscriptionState]:
    """Return the states of all subscriptions. The keys are the names."""
    catch_up(store)
    with store.view.mutex:
        return {
            key.removeprefix(SUBSCRIPTION_FACT): _state(store.view, each)
            for key, each in sorted(store.view.index.subscriptions.items())
        }


def _state(view: View, of: Subscription) -> SubscriptionState:
    index = view.index
    unread = sum(of.messages_of(state) for number, state in index.files.items() if number > of.after)
    kept = sum(index.files[number].body_bytes for number in index.unread if of.has_unread(number, index.files[number]))
    return SubscriptionState(of.queues, of.since, of.after, of.expires, unread, kept)


def _key(name: str) -> str:
    return f"{SUBSCRIPTION_FACT}{name}"


def _decide(store: Store, name: str, known: Subscription | None, new: Subscription | None) -> int | None:
    """Commit the state ``new`` of a subscription, or end the subscription if ``new`` is None.

    Return the number of the commit. If the state is no longer ``known``, commit nothing and return None.
    """
    fact = WriteSet().fact(_key(name), None if new is None else new.value)
    return commit_if(store, fact, lambda: subscription(store.view, name) == known)
