"""Wrong bytes in the slots of posted requests: no request is committed twice, and no acknowledged message is lost."""

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

import spool
from spool.coordination import request_slots
from spool.coordination.request_slots import DAMAGED, DONE, EMPTY, JOINED, POSTED, SLOTS, TAKEN, RequestSlots
from spool.errors import CommitUnknown
from tests import door
from tests.held import PATIENT_SECONDS
from tests.log.test_combined import A_MOMENT, leader, owner, posted, pytestmark, slots_of, until
from tests.shown import bodies

__all__ = ["leader", "owner", "pytestmark"]  # fixtures, and the mark of tests that play both processes

STATES = {"empty": EMPTY, "posted": POSTED, "joined": JOINED, "taken": TAKEN, "done": DONE}
WORD_BITS, ROW_BITS = 8 * request_slots.WORD_BYTES, 8 * request_slots._ROW_END


def bits_of(slot: int) -> list[tuple[int, int]]:
    """The bits of a slot's word and row, as the offset of a byte and the value of the bit."""
    word, row = request_slots._state_at(slot), request_slots._ROWS_AT + slot * request_slots._ROW_BYTES
    offsets = [*range(word, word + request_slots.WORD_BYTES), *range(row, row + request_slots._ROW_END)]
    return [(offset, 1 << bit) for offset in offsets for bit in range(8)]


def flip(slots: RequestSlots, offset: int, bit: int) -> None:
    memory = slots._shared()
    memory[offset : offset + 1] = bytes([memory[offset : offset + 1][0] ^ bit])


def store_state(slots: RequestSlots, slot: int, state: int) -> None:
    """Store another state as another program would: without its checksum, but with the bits of a standing request."""
    at = request_slots._state_at(slot)
    high = 0x80 if state & 0x80 else 0
    word = slots.word(slot)
    slots._shared()[at : at + len(word)] = bytes([state, *(byte & 0x7F | high for byte in word[1:])])


def put(slots: RequestSlots, slot: int, body: bytes = b"posted") -> None:
    slots.post(slot, *door.posted_put("orders", body))


class Ring:
    """A slot whose owner is dead, in some state; its message is in a commit, or not."""

    def __init__(self, space: spool.Space, state: str) -> None:
        self.space, self.slots, self.state = space, slots_of(space), state
        slot = self.slots.own(A_MOMENT)
        self.slot = slot
        self.slots.disown(slot)
        put(self.slots, slot)
        if state in ("empty", "done", "taken"):
            with door.leading(space):
                pass
        if state == "taken":
            put(self.slots, slot)
            assert self.slots.change_posted(slot, JOINED)
            self.slots.take(slot, door.counters(space).published, msgpack.packb([(b"", 0)]))
        if state == "joined":
            assert self.slots.change_posted(slot, JOINED)
        if state == "empty":
            self.slots.clear(slot)
        assert self.slots.state(slot) == STATES[state]
        self.was_committed = bodies(space)
        self._saved = self.slots._shared()[0 : request_slots._CONTENT_AT]

    def restore(self) -> None:
        self.slots._shared()[0 : request_slots._CONTENT_AT] = self._saved

    def judge(self) -> None:
        """A process leads: it commits no request of the slot, and leaves no request that stands."""
        with door.leading(self.space):
            pass
        assert bodies(self.space) == self.was_committed
        assert self.slots.standing() == []


@pytest.mark.parametrize("state", STATES)
def test_one_changed_bit_commits_no_request_of_a_slot(leader: spool.Space, state: str) -> None:
    """The word of a posted or joined request does not prove the row of an answer."""
    ring = Ring(leader, state)
    proven = bits_of(ring.slot)
    if state in ("posted", "joined"):
        proven = proven[: WORD_BITS + 8 * request_slots._TAKEN_ROW_AT]
    for offset, bit in proven:
        ring.restore()
        flip(ring.slots, offset, bit)
        assert state == "empty" or ring.slots.state(ring.slot) == DAMAGED
        ring.judge()


@pytest.mark.parametrize("wrong", STATES)
@pytest.mark.parametrize("state", STATES)
def test_another_state_without_its_checksum_commits_no_request_of_a_slot(leader: spool.Space, state: str, wrong: str):
    ring = Ring(leader, state)
    store_state(ring.slots, ring.slot, STATES[wrong])
    if state != wrong:
        ring.judge()


def test_a_whole_request_of_a_dead_process_is_committed(leader: spool.Space) -> None:
    """The test of the tests above."""
    ring = Ring(leader, "posted")
    with door.leading(leader):
        pass
    assert bodies(leader) == [*ring.was_committed, b"posted"]


def test_no_changed_bit_makes_another_valid_word() -> None:
    numbers = random.Random(1)
    for slot in range(SLOTS):
        row = numbers.randbytes(request_slots._ROW_END)
        for state in (POSTED, JOINED, TAKEN, DONE):
            word = request_slots._word(slot, state, row)
            assert word.isascii() == (state == DONE)
            assert {byte < 0x80 for byte in word} == {state == DONE}
            for bit in range(WORD_BITS):
                wrong = (int.from_bytes(word, "little") ^ 1 << bit).to_bytes(len(word), "little")
                assert wrong != request_slots._word(slot, wrong[0], row)
            covered = 8 * request_slots._TAKEN_ROW_AT if state in (POSTED, JOINED) else ROW_BITS
            for bit in range(covered):
                wrong = (int.from_bytes(row, "little") ^ 1 << bit).to_bytes(len(row), "little")
                assert word != request_slots._word(slot, state, wrong)
            for other in (POSTED, JOINED, TAKEN, DONE):
                assert other == state or word[1:] != request_slots._word(slot, other, row)[1:]


# -- the owner waits --------------------------------------------------------------------------------------------------


@contextmanager
def damage_before(step: str, state: int, leader: spool.Space) -> Iterator[list[int]]:
    """Damage the slot that stands before a step of the leader, and store a wrong state."""
    slots, damaged = slots_of(leader), list[int]()

    def damage() -> None:
        if not damaged and slots.standing():
            damaged.extend(slots.standing())
            store_state(slots, damaged[0], state)

    with door.before_step(leader, step, damage):
        yield damaged


@pytest.mark.parametrize("wrong", STATES)
@pytest.mark.parametrize("step", ["join", "take", "finish"])
def test_the_owner_of_a_damaged_slot_does_not_know_the_outcome(
    leader: spool.Space, owner: spool.Space, step: str, wrong: str
) -> None:
    is_true = STATES[wrong] == {"join": POSTED, "take": JOINED, "finish": TAKEN}[step]
    with ThreadPoolExecutor(1) as pool:
        with damage_before(step, STATES[wrong], leader) as damaged, door.leading(leader):
            waits: Future[str] = pool.submit(owner.put, "orders", "once")
            posted(leader)
        assert damaged
        failed = waits.exception(PATIENT_SECONDS)
    if is_true:
        assert failed is None
    elif failed is None:
        assert step == "join"
        assert wrong == "empty"
    else:
        assert isinstance(failed, CommitUnknown)
    assert bodies(leader) == (["once"] if step != "join" or failed is None else [])
    owner.put("orders", "later")
    with door.leading(leader):
        pass
    assert bodies(leader).count("later") == 1
    assert bodies(leader).count("once") <= 1
    assert slots_of(leader).none_stand


@pytest.mark.parametrize("place", range(0, WORD_BITS + ROW_BITS, 29))
def test_an_owner_believes_no_changed_answer(leader: spool.Space, owner: spool.Space, place: int) -> None:
    """One bit is changed after the leader has marked the request as done, before its owner looks."""

    def change() -> None:
        flip(slots_of(owner), *bits_of(0)[place])

    with door.before_step(owner, "read", change), ThreadPoolExecutor(1) as pool:
        with door.leading(leader):
            waits = pool.submit(owner.put, "orders", "once")
            posted(leader)
        assert isinstance(waits.exception(PATIENT_SECONDS), CommitUnknown)
    assert bodies(leader) == ["once"]
    assert owner.show(owner.put("orders", "later")).body == "later"


@pytest.mark.parametrize("place", ["request", "answer"])
def test_an_owner_and_a_leader_believe_no_changed_content(leader: spool.Space, owner: spool.Space, place: str) -> None:
    """A changed request is left to its owner. A changed answer leaves the outcome unknown."""
    content = request_slots._content_at(0)

    def change() -> None:
        if place == "answer":
            flip(slots_of(owner), content + request_slots.BODY_BYTES + 1, 1)

    with ThreadPoolExecutor(1) as pool, door.before_step(owner, "read", change):
        with door.leading(leader):
            waits = pool.submit(owner.put, "orders", "whole")
            posted(leader)
            if place == "request":
                flip(slots_of(leader), content + slots_of(leader).request(0).index(b"whole"), 1)
        failed = waits.exception(PATIENT_SECONDS)
    assert failed is None if place == "request" else isinstance(failed, CommitUnknown)
    assert bodies(leader) == ["whole"]


# -- processes that meet a damaged slot --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(0, WORD_BITS, 5))
def test_a_key_is_put_once_beside_a_damaged_slot(leader: spool.Space, owner: spool.Space, place: int) -> None:
    """The request of a dead process was joined by a leader that has not ended: the put of the key waits for it."""
    slots = slots_of(leader)
    slot = slots.own(A_MOMENT)
    assert slot is not None
    slots.disown(slot)
    put(slots, slot)
    with ThreadPoolExecutor(1) as pool:
        with door.leading(leader) as lead:
            joined = lead.join()
            flip(slots, *bits_of(slot)[place])
            puts = pool.submit(owner.put, "orders", "again", deduplication_key="k")
            until(lambda: door.store(owner).shared.xids._held)
            assert not puts.done()
            lead.forget()
            assert joined == 1
        puts.result(PATIENT_SECONDS)
    assert bodies(leader) == ["again"]
    assert slots.none_stand


def test_a_claim_clears_a_damaged_slot(leader: spool.Space, owner: spool.Space, tmp_path: Path) -> None:
    leader.put("orders", "one")
    ring = Ring(leader, "posted")
    flip(ring.slots, *bits_of(ring.slot)[1])
    assert owner.get("orders").body == "one"
    assert ring.slots.state(ring.slot) == EMPTY
