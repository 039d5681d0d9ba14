"""Bugs planted in the engine: a function whose source is changed in one place, wherever it is known by name."""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import NamedTuple
from unittest import mock

from spool.coordination import counters, locks
from spool.disk import durability
from spool.engine import Engine
from spool.index import index
from spool.log import leader, sequence, visibility, write
from spool.maintenance import reclaim
from spool.policies import applications, subscriptions
from spool.reading import message_reader as message_reader
from spool.remote import remote_adoption
from spool.store import feed, mirror
from spool.transactions import two_phase

_PACKAGES = ("spool", "xa", "recovery", "forwarder")


class Bug(NamedTuple):
    """``changes``: pairs of a text of the source and its replacement. ``noticed_by``: a scenario."""

    what: str
    function: Callable[..., object]
    changes: tuple[tuple[str, str], ...]
    noticed_by: str


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    assert isinstance(bug.function, FunctionType)
    source = textwrap.dedent(inspect.getsource(bug.function))
    for old, new in bug.changes:
        assert source.count(old) == 1, f"{bug.function.__qualname__} has {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    made: dict[str, object] = {}
    exec(compile(source, f"<planted: {bug.what}>", "exec"), bug.function.__globals__, made)
    owner, _, name = bug.function.__qualname__.rpartition(".")
    with ExitStack() as stack:
        if owner:
            stack.enter_context(mock.patch.object(bug.function.__globals__[owner], name, made[name]))
        for module in [m for n, m in sys.modules.items() if n.partition(".")[0] in _PACKAGES]:
            if getattr(module, name, None) is bug.function:
                stack.enter_context(mock.patch.object(module, name, made[name]))
        yield


_READS = "    if page is None:\n"
_LISTS = "page = list_prepared(store, page)"
_SETTLED = "page = settle_to(store, last, deadline or store.deadline(), page)"
_LOCKS_SETTLED = "with settled(store, deadline):\n"
_LOCKS = f"with store.shared.control.holding({locks.NUMBER}, deadline, 'the number lock'):\n"


BUGS = (
    Bug("numbers issued without their lock", write.Write.name,
        (
            ("if settled:", "if False:"),
            (
                "elif locks and not control.try_lock(NUMBER):",
                "elif locks and control._held.setdefault(NUMBER):",
            ),
        ),
        "commit, rollback and commit race"),
    Bug("a commit without its flush", durability.SingleCopy.flush_commit,
        (("self.source.make_durable(handle, layout.COMMITTED, new=True, stamped=stamped)", "pass"),),
        "commits beside looks"),
    Bug("a second look without settling", visibility.revalidate,
        ((_SETTLED, "pass"),), "a commit that cannot be made visible"),
    Bug("a rebuild past the published", visibility._replay,
        (("index.applied < number <= last)", "index.applied < number)"),), "an opener beside a new number"),
    Bug("heads go before their branches", reclaim._remove,
        (("unlink_unless_gone(files.disk, layout.prepared(xid))", "give(layout.committed(number))"),
         ("give(layout.committed(number, place))", "pass")), "adopt, take and reclaim by two"),
    Bug("removals go before what they remove", reclaim.next_to_go,
        (("*state.addressed", "*()"),),
        "half of a commit is taken, and reclaim"),
    Bug("a slot counts for the number before", feed.Feed.read, (("found != number or ", ""),),
        "a ring that is overrun"),
    Bug("what a subscription has not read is reclaimed", index.Index.mark_idle,
        (("any(each.has_unread(number, state) for each in self.subscriptions.values())", "False"),),
        "a subscription beside reclaim"),
    Bug("threads share locks", locks.LockFile.try_lock,
        (("self._held.setdefault(byte, mine) is not mine", "self._held.update({byte: mine})"),),
        "two threads of a process"),
    Bug("a read does not look where messages lie now", message_reader.MessageReader._relocated,
        (("in ranges:", "in ():"),), "a read beside a sweep"),
    Bug("a read of what is compacted does not look where it lies now", message_reader.MessageReader._relocated,
        (("in ranges:", "in ():"),), "a read of what is compacted, beside a sweep"),
    Bug("a stream does not look where messages lie now", message_reader.MessageReader._relocated,
        (("in ranges:", "in ():"),), "a stream beside a sweep"),
    Bug("a batch is written again", applications.BatchOf.is_committed,
        (("return self.number <= number", "return False"),), "a write and its replay"),
    Bug("a write puts a key that was put before", remote_adoption._put_before,
        (("if fact in before:", "if False:"),), "a write and its replay"),
)  # fmt: skip

# Noticed where an actor stops in one of few places while another goes on: each with the stop (see ``stops``).
OF_NARROW_WINDOWS = (
    (Bug("no second look", visibility.revalidate, ((_READS, "    return\n" + _READS),), "a vote beside a take"),
     "a claim looks for a vote about its message"),
    (Bug("a second look without the prepared", visibility.revalidate,
         ((_LISTS, "pass"),), "a vote beside a take"),
     "a claim looks for a vote about its message"),
    (Bug("an adoption that does not settle", write.Write.name,
         (("bool(whole.adopts or whole.supersedes)", "bool(whole.supersedes)"),),
         "commit, rollback and commit race"),
     "after the number lock a commit looks whether its branch was committed meanwhile"),
)  # fmt: skip

WRONG_WAY_ROUND = Bug(
    "a second look the wrong way round", visibility.revalidate,
    ((_LISTS, "pass"), ("catch_up(store, page)", "catch_up(store, page); list_prepared(store)")),
    "prepare, take, commit by another",
)  # fmt: skip

READ_TOO_FAR = Bug(
    "a stream's checkpoint goes up to what a power cut may take", Engine.durable_number.__wrapped__,
    (("if page.durable == page.published:", "if True:"),), "a stream beside counted attempts",
)  # fmt: skip

CLAIMED_AND_GONE = Bug(
    "a file goes although a message of it is claimed", reclaim.next_to_go, ((" or state.pinned_by", ""),),
    "a round beside a sweep",
)  # fmt: skip

FINISHED_AS_IT_LIES = Bug(
    "a dead writer's file taken as it lies", sequence.finish_dead_writer,
    (("copy_over(store.files.disk, name)", "pass"),),
    "a late reader beside reclaim and recycling",
)  # fmt: skip

OUT_OF_ORDER = Bug(
    "numbers published out of order", counters.Counters.publish_next,
    (("data[_PUBLISHED] != before", "False"),), "commits beside looks",
)  # fmt: skip

APPLIED_TOO_EARLY = Bug(
    "what is not published yet is applied", visibility.catch_up,
    (("apply_up_to(store, page.published)", "apply_up_to(store, page.issued)"),
     ("page.published >", "page.issued >")), "commits beside looks",
)  # fmt: skip

_STORES = "store.shared.counters.store_issued(number)"
STAMPED_TOO_EARLY = Bug(
    "a file is stamped before its number is issued", write.Committed.name,
    ((_STORES, f"store.files.disk.write_at(file.handle, *stamp(number)); {_STORES}"),),
    "a removal beside a get and a put",
)  # fmt: skip

ENDED_AS_IT_WAS_SEEN = Bug(
    "a subscription is ended that was renewed", subscriptions._decide,
    (("subscription(store.view, name) == known", "True"),), "a subscription that expires",
)  # fmt: skip

AS_IT_LIES = Bug("an untold branch adopted as it lies", two_phase.make_durable,
                 (("_replace_by_copy(store, xid, deadline)", "pass"),),
                 "prepare, commit by another, take")  # fmt: skip

_EXISTS = "store.files.disk.exists(layout.prepared(xid))"
# Both are noticed where a committer stops in one of few places while a rollback is under way (see ``stops``).
NO_LOOK_FOR_A_COMMIT = Bug(
    "a rollback that does not look for a commit", two_phase.rollback_prepared,
    ((f"{_LOCKS_SETTLED}        if not is_prepared(store, xid)", f"{_LOCKS}        if not {_EXISTS}"),),
    "commit, rollback and commit race",
)  # fmt: skip
NO_SETTLING = Bug(
    "a rollback that does not settle", two_phase.rollback_prepared,
    ((_LOCKS_SETTLED, f"{_LOCKS}        catch_up(store)\n"),),
    "commit, rollback and commit race",
)  # fmt: skip

_FORGET = "files.copies.forget({number: len(adopted.get(number, ())) for number in batch})"
_GIVEN = "    files.recycler.release(given)\n"
_MIRRORS = "store.files.copies.flush_commit(number, "
_COMMITS = r"rename_new \S+ committed/"
_GOES = r"rename committed/|unlink committed/"

# Each with the actor that dies, and from which call of its on (see ``stops``).
OF_GROUPS_AND_MIRRORS = (
    (Bug("a group hears of its commit before it is durable", leader.Leader._commit,
         (("            write(one)", "            complete(left); write(one)"),),
         "a group beside a look"), 2, _COMMITS),
    (Bug("a group whose flush failed hears that all is well", write.fate_of,
         (("each.error = CommitUnknown(", "each.error = None and ("),
          ("each.error = failed if", "each.error = None if"), ("each.error.__cause__ =", "_ =")),
         "the flush of a group fails"),
     1, _COMMITS),
    (Bug("a request that found no room hears that all is well", write.fate_of,
         (("set_error(guilty or write_sets, error)",
           "[setattr(each, 'number', 1) for each in guilty or write_sets]"),),
         "a group on a full disk"), 0, _COMMITS),
    (Bug("a request that needs no room fails with one that found none", write.fate_of,
         (("[each for each in write_sets if each.messages]", "[]"),), "a group on a full disk"), 0, _COMMITS),
    (Bug("a mirror has a commit after it was published", write.Committed.make_durable,
         ((_MIRRORS, "super(type(store.files.copies), store.files.copies).flush_commit(number, "),
          ("write.release()", "store.files.copies.copy(number); write.release()")),
         "a group with a mirror"),
     2, _COMMITS),
    (Bug("a mirror has not what another finished", sequence.finish_dead_writer,
         (("store.files.copies.copy(number)", "pass"),),
         "a group with a mirror"), 2, _COMMITS),
    (Bug("a mirror is not waited for", mirror.Mirror._flush_both,
         (("done.wait()", "pass"),),
         "a group with a mirror that comes last"), 2, _COMMITS),
    (Bug("a mirror forgets what has gone from the space already", reclaim._remove,
         ((_FORGET, "pass"), (_GIVEN, f"{_GIVEN}    {_FORGET}\n")), "reclaim with a mirror"), 0, _GOES),
)  # fmt: skip
