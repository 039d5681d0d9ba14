"""The accounts of a storm: the journals of its clients are compared with each other and with the space at the end."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spool import Message
from tests.web.kills.clients import LOST, puts

_DONE = (200, 204)
_ENDED = 410
_REMOVING = ("acknowledge", "commit")


Times = tuple[float, float]


@dataclass
class Call:
    begun: float
    name: str
    end: float = math.inf
    status: int = LOST


@dataclass
class Claim:
    """A message that a client got. begun, got: when its call began and was answered."""

    receipt: str
    id: str
    key: str
    attempts: int
    begun: float
    got: float
    calls: list[Call] = field(default_factory=list)

    @property
    def done(self) -> str | None:
        """The name of the call that ended the lease, for all that its client knows."""
        return next((call.name for call in self.calls if call.status in _DONE), None)

    def has_counted(self, graceful: Iterable[Times], until: float) -> bool:
        """Return whether the claim has counted an attempt, for all that its client knows."""
        if self.done is not None:
            return self.done != "release"
        is_told = all(call.status == _ENDED for call in self.calls)  # (else a call without an answer may have ended it)
        return is_told and not _are_within(graceful, self.begun, until)


@dataclass
class Accounts:
    """kills, graceful: when processes of the server were killed, or were told to end, or noticed that their parent had
    died. expired: the ends of leases that
    the server has logged, by the id of the message."""

    seed: str
    kills: list[Times] = field(default_factory=list)
    graceful: list[Times] = field(default_factory=list)
    expired: Counter[str] = field(default_factory=Counter)
    claims: dict[str, list[Claim]] = field(default_factory=lambda: defaultdict(list))  # by the id of the message
    put: dict[str, tuple[str | None, float]] = field(default_factory=dict)  # by key: the id, if it is known; and when
    unknown: set[tuple[str, ...]] = field(default_factory=set)  # the keys of each put that may not have happened

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_puts(self, journal: Path) -> None:
        begun = dict[int, float]()
        for at, _, number, *told in _lines(journal):
            begun.setdefault(number, at)
            keys = tuple(puts(self.seed, number)[1])
            status, ids = told if told else (LOST, [])
            assert status in (LOST, 200, 201, 429, 503), (keys, status)
            known = ids if status in (200, 201) else [None] * len(keys)
            for key, id_ in zip(keys, known, strict=True):
                self.put[key] = (id_, begun[number])
            (self.unknown.discard if status in (200, 201) else self.unknown.add)(keys)

    def read_log(self, log: str) -> None:
        self.expired.update(re.findall(r"message (\S+) of queue orders: its lease", log))

    def read_claims(self, journal: Path) -> None:
        held, begun, calls = dict[str, Claim](), math.nan, list[Call]()
        for at, what, *told in _lines(journal):
            if what == "claim":
                begun = at
            elif what == "got":
                status, found = told
                assert status in (200, 204, LOST, 429, 503), status
                for receipt, id_, key, attempts in found:
                    held[receipt] = Claim(receipt, id_, key, attempts, begun, at)
                    self.claims[id_].append(held[receipt])
            elif what == "call":
                calls = [Call(at, told[0]) for _ in told[1]]
                for call, receipt in zip(calls, told[1], strict=True):
                    held[receipt].calls.append(call)
            else:
                assert told[2] in (*_DONE, _ENDED, LOST, 429, 503), told
                for call in calls:
                    call.end, call.status = at, told[2]

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self, left: Sequence[Message], results: Sequence[Message], errors: Sequence[Message]) -> Counter[str]:
        """Check the accounts, with the queues at the end. Return how many messages ended in each way."""
        assert not left, "the storm has not ended"
        failed = {message.body.partition(" ")[0]: message for message in errors}
        texts = [message.body.split(" ") for message in results]
        done = dict[str, str](texts)
        assert len(done) == len(results), f"two results: {Counter(key for key, _ in texts).most_common(3)}"
        assert len(failed) == len(errors), "a message is twice in the error queue"
        ids = defaultdict[str, set[str]](set)
        for key, id_ in [*done.items(), *((key, message.id) for key, message in failed.items())]:
            ids[key].add(id_)
        for claim in (each for found in self.claims.values() for each in found):
            ids[claim.key].add(claim.id)
        ends = Counter[str]()
        for key, (id_, at) in self.put.items():
            ids[key] |= {id_} - {None}  # type: ignore[arg-type]
            assert len(ids[key]) <= 1, f"{key} was put twice: {ids[key]}"
            claims = sorted(self.claims[next(iter(ids[key]), "")], key=lambda claim: (claim.attempts, claim.got))
            ends[self._end(key, claims, key in done, failed.get(key), is_known=bool(ids[key]))] += 1
            self._check_attempts(at, claims, failed.get(key))
        for keys in self.unknown:
            assert len({bool(ids[key]) for key in keys}) == 1, f"a part of one put has happened: {keys}"
        return ends

    def _end(self, key: str, claims: list[Claim], has_result: bool, failed: Message | None, *, is_known: bool) -> str:
        """Return how a message ended: in one way, and finally."""
        ended = [claim.done for claim in claims if claim.done in (*_REMOVING, "reject")]
        assert len(ended) <= 1, f"{key} ended twice: {claims}"
        for claim in claims:
            for call in claim.calls:
                if claim.done in _REMOVING and call.status in _DONE:
                    again = [each for each in claims if each.begun > call.end]
                    assert not again, f"{key} came back after it was acknowledged: {claim}, {again}"
        tried = {call.name for claim in claims for call in claim.calls}
        maybe = {call.name for claim in claims for call in claim.calls if call.status not in (*_DONE, _ENDED)}
        assert not (has_result and failed), f"{key} has a result and failed"
        assert not has_result or "commit" in tried, f"{key} has a result that nobody committed"
        expected = {"acknowledge": (False, False), "commit": (True, False), "reject": (False, True)}
        if ended:
            assert (has_result, failed is not None) == expected[str(ended[0])], f"{key}: {ended}, {claims}"
            return str(ended[0])
        if has_result or failed:
            return "commit" if has_result else "failed"
        assert not is_known or "acknowledge" in maybe, f"{key} is lost: {claims}"
        return "acknowledge, perhaps" if is_known else "never put"

    def _check_attempts(self, put_at: float, claims: Sequence[Claim], failed: Message | None) -> None:
        """An attempt counts for each failure, each end of a lease, and each death of the server that held the message;
        also if the answer to the claim was lost. Nothing else counts an attempt."""
        looks = [(claim.attempts, claim.got) for claim in claims]
        if failed is not None:
            looks.append((failed.origin_attempts, math.inf))
        for claim, (attempts, at) in zip(claims, looks[1:], strict=False):
            is_told = claim.attempts < attempts or not claim.has_counted(self.graceful, at)
            assert is_told, f"no attempt was counted for {claim}: {looks}"
        if looks:
            attempts, at = looks[-1]
            told = sum(any(call.name in ("fail", "reject") for call in claim.calls) for claim in claims)
            expired, killed = self.expired[claims[0].id] if claims else 0, _are_within(self.kills, put_at, at)
            assert attempts <= told + expired + killed, f"{attempts} attempts: {told, expired, killed}, {claims}"


def _are_within(times: Iterable[Times], since: float, until: float) -> int:
    return sum(begun <= until and end >= since for begun, end in times)


def _lines(journal: Path) -> list[list[Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]
