"""Named subscriptions: readers that take nothing, and for which what is put is kept until they have read it.

A subscription is a fact. It is registered, reads on and ends by commits that are decided under the number lock
(Rule 5), and reclaim keeps what the newest of these facts says (Rule 15). Two things make that sound, however old the
view of the process that reclaims is:

1. A subscription begins behind all that is there, and from then on lets go only, until it ends. So what an older view
   does not keep, no newer one promises.
2. Time alone ends nothing: a subscription whose time has passed is ended by a commit, and until then it is as good as
   any other. So no clock decides whether a file is there, and a reader that comes late finds all of it, or is told.

A reader reads the commits themselves (``put_by``), since their messages may have left the queues long ago, or lie in
the file of a compaction, whose number is another. And it looks at its subscription *behind* that (``progress``): if it
is still the one that was registered, and nothing has read on in its place, no file had gone that it needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spool.disk.disk import FlushFailed
from spool.errors import InvalidArgument, NotOpen, SpoolError
from spool.format.batch import CommitBatch
from spool.index.commit import SUBSCRIPTION_FACT, Subscription
from spool.index.index import Index
from spool.log.commit import commit_batch
from spool.log.quota import settle_and_catch_up
from spool.log.replay import read_commit
from spool.log.visibility import catch_up
from spool.model.text import did_you_mean
from spool.store.parts import View
from spool.store.store import Store, log


class _Changed(Exception):
    """The subscription is not what it was when the commit was written."""


@dataclass(frozen=True)
class SubscriptionState:
    """A subscription as it is at one moment.

    queues: their names; none: all queues.
    since: the number of the commit that registered it.
    read_to: the number of the last commit that it has read.
    expires_at: seconds since the epoch; it ends then, unless its reader comes back before.
    unread: how many messages were put that it has not read, at most: one that was moved to another queue counts
        in both.
    kept_bytes: the bytes of the bodies in files that nothing but subscriptions needs, this one among them.
    """

    queues: tuple[str, ...]
    since: int
    read_to: int
    expires_at: float
    unread: int
    kept_bytes: int


def register(store: Store, name: str, queues: Sequence[str], seconds: float, *, anew: bool = False) -> int:
    """Register a subscription; returns its number: all that is put behind this commit is kept for it.

    One with which nothing has been read is taken as it is: its reader may have been killed, and ask again.

    Args:
        queues: their names; none: all queues.
        seconds: until it ends, unless ``advance`` is called before.
        anew: whatever there is of this name.

    Raises:
        InvalidArgument: there is a subscription of this name with which something has been read.
    """
    catch_up(store)
    applied, known = store.view.index.applied, subscription(store.view, name)
    if known is not None and known.since and not anew:
        if known.after != known.since:
            raise InvalidArgument(
                f"there is a subscription {name!r}, which has read up to commit {known.after}, and this query begins: "
                f"give it a subscription of its own, or delete that one with spool-admin subscription delete {name}"
            )
        if known.queues == tuple(queues) and advance(store, name, known.since, known.after, seconds):
            return known.since
    # The number of a commit is given out when its file is written. So a first one keeps at least what is to be kept,
    # and a second one says the number of the first.
    first = Subscription(tuple(queues), 0, applied, store.clock.now() + seconds)
    try:
        since = _decide(store, name, known, first)
        _decide(store, name, first, first._replace(since=since, after=since))
    except _Changed:
        raise InvalidArgument(
            f"another query has registered the subscription {name!r} meanwhile: give each one of its own"
        ) from None
    return since


def subscription(view: View, name: str) -> Subscription | None:
    """Return the subscription, by what this process has applied; None if there is none."""
    with view.mutex:
        return view.index.subscriptions.get(_key(name))


def progress(store: Store, name: str, since: int) -> Subscription | None:
    """Return the subscription as it is now; None if the one that was registered by commit ``since`` has ended."""
    catch_up(store)
    known = subscription(store.view, name)
    return known if known is not None and known.since == since else None


def advance(store: Store, name: str, since: int, after: int, seconds: float) -> bool:
    """Note that a subscription has read up to commit ``after``, durably, and renew it; False if it has ended.

    Args:
        since: the commit that registered it.
        seconds: until it ends, unless this is called again before.
    """
    while (known := progress(store, name, since)) is not None:
        try:
            renewed = known._replace(after=max(known.after, after), expires=store.clock.now() + seconds)
            _decide(store, name, known, renewed)
            return True
        except _Changed:
            pass
    return False


def put_by(store: Store, number: int) -> Index | None:
    """Return an index of this commit alone: its messages as they were put. None: a file of it cannot be read."""
    commit = read_commit(store, number)
    if commit is None or commit.damage:
        return None
    alone = Index(store.files.cache, store.settings.known.config.queues)
    alone.apply(commit)
    return alone


def end(store: Store, name: str) -> None:
    """End a subscription, durably: what is kept for it alone goes. InvalidArgument if there is none of this name."""
    catch_up(store)
    while (known := subscription(store.view, name)) is not None:
        try:
            _decide(store, name, known, None)
            return
        except _Changed:
            pass
    with store.view.mutex:
        names = [key.removeprefix(SUBSCRIPTION_FACT) for key in store.view.index.subscriptions]
    raise InvalidArgument(
        f"there is no subscription {name!r}{did_you_mean(name, names)}: spool-admin subscription list names them"
    )


def end_expired(store: Store) -> None:
    """End the subscriptions whose time has passed. What fails is logged, and done by a later call."""
    now = store.clock.now()
    with store.view.mutex:
        expired = [(key, each) for key, each in store.view.index.subscriptions.items() if each.expires <= now]
    for key, known in expired:
        name = key.removeprefix(SUBSCRIPTION_FACT)
        try:
            _decide(store, name, known, None)
        except _Changed:
            continue  # it was renewed, or ended
        except (FlushFailed, NotOpen):
            raise
        except (OSError, SpoolError) as error:
            log.warning("the subscription %r cannot be ended now: %s", name, error)
            continue
        log.warning("the subscription %r has ended: its reader has not come back in time", name)


def states(store: Store) -> dict[str, SubscriptionState]:
    """Return all subscriptions by their names."""
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


def _decide(store: Store, name: str, known: Subscription | None, new: Subscription | None) -> int:
    """Commit what a subscription is from now on, None: ended; returns the number. _Changed if it is not ``known``."""
    batch, deadline = CommitBatch(), store.deadline()
    batch.fact(_key(name), None if new is None else new.value)

    def check(_: object) -> None:
        settle_and_catch_up(store, deadline)
        if subscription(store.view, name) != known:
            raise _Changed

    return commit_batch(store, batch, deadline, flush=True, check=check)
