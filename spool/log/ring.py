"""Commits of several processes in one file: a process that finds a leader posts its requests, and waits for the answer.

While a process meets at most one other process, it commits in its own file, and takes no lock for this. Once it has
met two other processes, it tries to lead before each commit. If others commit often, it also tries for a few commits,
and goes on only if it meets two. A leader takes the posted requests of all processes into
its own commit. A process that finds another leader posts its requests in its slot of ``run/requests``. The leader
answers with the number of the commit and the places of the messages, or leaves a request to its owner. So each error is
raised by the process whose request failed.

Each request is committed once, even if processes die: rules 18 to 23 of docs/architecture.md.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgpack

from spool.coordination.counters import CounterPage
from spool.coordination.request_slots import ANSWER_BYTES, BODY_BYTES, EMPTY, JOINED, POSTED, TAKEN, RemovedSpan
from spool.errors import CommitUnknown, SpaceStopped
from spool.format.header import UNREADABLE
from spool.log.adoption import find_adopted
from spool.log.standing_requests import settle, span_of
from spool.log.write_set import WriteSet, destinations_of
from spool.runtime.async_exceptions import raise_if_torn
from spool.store.store import WAIT_SECONDS, Store

# The place of a request's messages in a commit: the branch's id, and the ordinal of the first message. For an adopted
# branch: an empty id, and the place of the branch. None: the owner commits the request itself.
Place = tuple[bytes, int] | None
_MOST_TOGETHER = ANSWER_BYTES // 32  # the most requests of one slot: an answer has less than 32 bytes for each

# After a process has met two other processes that commit, it expects them for this number of commits. Two processes
# alone commit faster in turns: the answer of a leader costs more than the flush that it saves.
_COMPANY_COMMITS = 64
# If others made so many commits since the last commit of this process, they may be two processes. Then this process
# expects them for some commits. If it does not meet two, it does not try again for a larger number of commits.
_COMPANY_NUMBERS = 3
_TRIAL_COMMITS, _APART_COMMITS = 8, 128
# A leader waits for as many requests as its last two commits had, but at most this time for each request. With two
# processors, the answered processes need this time to post again.
_GATHER_SECONDS, _LEAST_GATHER_SECONDS, _MOST_GATHER_SECONDS = 0.00015, 0.0002, 0.0015
# The owner of a request checks its slot again after this time, because a dying leader wakes no process.
_LOOK_SECONDS = 0.02
# The owner of a request that no leader has joined for this time commits the request itself.
_PATIENCE_SECONDS = 1.0
_UNKNOWN = (
    "another process took this into its commit and did not end the commit: the commit may or may not have happened; "
    "look for its messages"
)


class Alone:
    """The ring of a process that shares commits with no other process.

    joined: the slots of the requests of other processes that this process has joined, with the requests.
    last: the number of the last commit that this process knew of; 0 at first.
    expected: the number of further commits for which this process expects two other processes; below 0, the number of
        commits for which it does not look for them.
    """

    joined: Sequence[tuple[int, list[WriteSet]]] = ()
    last = expected = 0

    def expects_others(self, page: CounterPage | None) -> bool:
        """Return whether two other processes also commit. ``page``: the counters, as the caller has read them."""
        return False

    def exchange(self, write_sets: list[WriteSet]) -> list[WriteSet]:
        """Lead, and return the write sets with those that other processes have posted. Or let the leader commit the
        write sets, and return those that this process has to commit itself.

        A write set that another process committed, or whose outcome is unknown, has its number or its error.

        Raises:
            OSError, WaitExpired, SpaceStopped, and the exception of ``check``: the write sets without a number or an
                error have no effect.
        """
        return write_sets

    def take(self, write_sets: Sequence[WriteSet], number: int) -> None:
        """Mark the joined write sets among these as taken for a number. Rule 18.

        The number is issued to this process, and the number's file is not stamped yet.
        """

    def end(self, number: int | None) -> None:
        """End the exchange. ``number``: of the commit that has succeeded; None if none has.

        Write sets that are in no commit are left to their owners.
        """


class Ring(Alone):
    """The commits that one open space shares with other processes. One thread at a time uses this object.

    ``check`` is called while this process waits for an answer. If ``check`` raises, the requests are withdrawn.
    """

    def __init__(self, store: Store, check: Callable[[], object]) -> None:
        self._store = store
        self._slots = store.shared.requests
        self._check = check
        self._own: int | None = None  # the slot of this process, once it has posted
        self._stands = False  # whether a leader may commit, or has committed, the request in the own slot
        self._leads = False
        self.joined: list[tuple[int, list[WriteSet]]] = []
        self._before = 0, 0  # the numbers of requests that this process joined in its last two commits
        self.expected = _TRIAL_COMMITS if self._slots.were_there else 0

    def expects_others(self, page: CounterPage | None) -> bool:
        if page is not None and page.issued > self.last:
            others, self.last = self.last and page.issued - self.last, page.issued
            if -_APART_COMMITS < self.expected <= 0 and not self._slots.none_stand:
                self.expected = _COMPANY_COMMITS  # one process has posted a request to another
            elif others >= _COMPANY_NUMBERS and self.expected == 0:
                self.expected = _TRIAL_COMMITS
        if self.expected <= 0:
            self.expected += self.expected < 0
            return False
        self.expected -= 1
        if not self.expected:
            self.expected = -_APART_COMMITS
        return self._slots.exist

    # -- leading ------------------------------------------------------------------------------------------------------

    def exchange(self, write_sets: list[WriteSet]) -> list[WriteSet]:
        left = self._lead_or_post(write_sets)
        if self._leads:  # (an own decision goes instead of one that a dead process has posted about the same branch)
            decided = {adopted.xid for one in left for adopted in one.adopts}
            return [*(one for one in self._join() if decided.isdisjoint(each.xid for each in one.adopts)), *left]
        return left

    def _lead_or_post(self, requests: list[WriteSet]) -> list[WriteSet]:
        """Take the lead, or let the leader commit the requests. Return the requests that this process has to commit."""
        if self._try_lead():
            return requests
        if self._slots.standing():  # (of a third process)
            self.expected = _COMPANY_COMMITS
        encoded = None if self._loses(requests) else posted(requests)
        if encoded is None:
            return requests
        if self._own is None:
            self._own = self._slots.own(self._store.deadline(_LOOK_SECONDS))
        if self._own is None:
            self._await_lead()
            return requests
        self._stands = True
        try:
            led = self._slots.post(self._own, *encoded)
            return self._wait(self._own, requests, led)
        except BaseException as error:
            if not self._stands or self._withdraw(self._own):
                raise
            left = self._give_up(self._own, requests, error)
            raise_if_torn(error)
            if not isinstance(error, Exception):
                raise
            return left

    def _loses(self, requests: Sequence[WriteSet]) -> bool:
        """Return whether all messages go to queues that may lose messages: such a commit has no flush to share."""
        may_lose = self._store.settings.known.config.may_lose
        queues = {queue for request in requests for queue in destinations_of(request.tables)} if may_lose else ()
        return bool(queues) and may_lose.issuperset(queues)

    def _try_lead(self) -> bool:
        self._leads = self._slots.try_lead()
        return self._leads

    def _await_lead(self) -> None:
        """Wait for the lead, because all slots are in use; give up if no process commits for some time.

        If all these processes waited for the number lock instead, some processes might not get the lock in time.
        """
        store, seen = self._store, -1
        while not self._leads and (issued := store.shared.counters.read().check().issued) != seen:
            seen, deadline = issued, store.deadline(_PATIENCE_SECONDS)._replace(check=self._check)
            self._leads = self._slots.lead_within(deadline)

    def _join(self) -> list[WriteSet]:
        """Return the posted requests of other processes. The next commit of this process includes these requests."""
        slots, before = self._slots, max(self._before)
        if before > 0:
            slots.gather(before, max(_LEAST_GATHER_SECONDS, min(_GATHER_SECONDS * before, _MOST_GATHER_SECONDS)))
        for slot in slots.standing():
            if slots.state(slot) != POSTED:
                settle(self._store, slot)
            if slots.change_posted(slot, JOINED):
                self.joined.append((slot, _requests_in(slots.request(slot))))
        self.expected = _COMPANY_COMMITS if len(self.joined) > 1 else self.expected
        self._before = self._before[1], len(self.joined)
        return [request for _, requests in self.joined for request in requests if find_adopted(self._store, request)]

    def take(self, write_sets: Sequence[WriteSet], number: int) -> None:
        included = set(map(id, write_sets))
        for slot, joined in self.joined:
            places: list[Place] = [
                (bytes.fromhex(request.branch), request.first) if id(request) in included else None
                for request in joined
            ]
            if any(places):
                self._slots.take(slot, number, msgpack.packb(places))

    def end(self, number: int | None) -> None:
        """Mark the requests taken for the number as done, and release the lead.

        After a failure the requests remain taken, and rule 19 settles them. If the release fails, the space closes
        itself, because other processes would wait for the lead.
        """
        try:
            if self._leads:
                joined, self.joined, self._leads = [slot for slot, _ in self.joined], [], False
                for slot in joined:
                    self._slots.end(slot, number, msgpack.packb(()))
                self._slots.end_lead(joined)
        except BaseException as error:
            self._store.guard.tear(error)
            if not isinstance(error, Exception):
                raise

    # -- waiting for an answer ----------------------------------------------------------------------------------------

    def _wait(self, slot: int, requests: list[WriteSet], led: bool) -> list[WriteSet]:
        """Wait until the requests are answered; return the requests that this process has to commit itself."""
        store, slots, raised, begun = self._store, self._slots, None, self._store.clock.monotonic()
        while True:
            if not led and self._try_lead():
                settle(store, slot)  # an earlier leader has ended or died
                if slots.state(slot) != POSTED:
                    self.end(None)
                    break
                self._clear(slot)
                if raised is None:
                    return requests
                self.end(None)
                raise raised
            word = slots.word(slot)
            if word[0] not in (POSTED, JOINED, TAKEN):
                break
            waited = store.clock.monotonic() - begun
            if word[0] == POSTED and (raised is not None or waited > _PATIENCE_SECONDS) and self._withdraw(slot):
                if raised is None:
                    return requests
                raise raised
            if waited > WAIT_SECONDS:
                break
            woken = store.clock.wait(partial(slots.wait, slot, word), _LOOK_SECONDS)
            led = woken and slots.word(slot)[0] != POSTED
            try:
                self._check()
            except BaseException as error:
                raised = raised or error
        left = self._read_answer(slot, requests)
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        return left

    def _withdraw(self, slot: int) -> bool:
        self._stands = not self._slots.change_posted(slot, EMPTY)
        return not self._stands

    def _clear(self, slot: int) -> None:
        self._slots.clear(slot)
        self._stands = False

    def _read_answer(self, slot: int, requests: Sequence[WriteSet]) -> list[WriteSet]:
        """Give their number to the requests that another process committed; return the others. An empty answer leaves
        all requests to this process."""
        answered = self._slots.answer(slot)
        if answered is None:  # the slot was settled without an answer, or other programs have overwritten it
            return self._give_up(slot, requests)
        number, answer = answered
        self.last = max(number, self.last)
        left: list[WriteSet] = []
        for request, place in zip(requests, msgpack.unpackb(answer) or [None] * len(requests), strict=True):
            if place is None:
                left.append(request)
                continue
            branch, request.first = place
            request.branch, request.number = branch.hex(), number
        self._clear(slot)
        return left

    def _give_up(self, slot: int, requests: Sequence[WriteSet], cause: BaseException | None = None) -> list[WriteSet]:
        """Fail the requests, because their outcome is unknown. Other processes settle the slot."""
        self._own, self._stands = None, False
        self._slots.disown(slot)
        text = _UNKNOWN
        try:
            self._store.shared.control.verify()
        except (SpaceStopped, OSError) as error:  # run/ was deleted: the text names the remedy
            text = f"{_UNKNOWN}; {error}"
        for request in requests:
            if request.number is None:
                request.error = CommitUnknown(text)
                request.error.__cause__ = cause
        return []


def posted(requests: Sequence[WriteSet]) -> tuple[bytes, RemovedSpan] | None:
    """Return the bytes of requests for a slot, and the span of the messages that the requests remove or change.

    None if another process cannot commit the requests, or they do not fit. The bytes begin with the messages that the
    requests remove or change (see ``feed.addresses``).
    """
    if len(requests) > _MOST_TOGETHER or sum(request.size for request in requests) > BODY_BYTES:
        return None
    packed = [request.shared() for request in requests]
    if None in packed:
        return None
    addressed = [one for request in requests for one in request.addressed]
    encoded: bytes = msgpack.packb((addressed, packed))
    return (encoded, span_of(addressed)) if len(encoded) <= BODY_BYTES else None


def _requests_in(encoded: bytes | None) -> list[WriteSet]:
    """Return the requests of a slot; [] if the bytes are damaged."""
    if encoded is None:
        return []
    try:
        _, packed = msgpack.unpackb(encoded, strict_map_key=False)
        return list(map(WriteSet.of_another, packed))
    except UNREADABLE:
        return []
