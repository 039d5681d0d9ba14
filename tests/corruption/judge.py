"""The promises of a space with one damaged file: it opens, serves every whole message, and names the damage."""

import os
from collections import Counter
from pathlib import Path

import spool
from spool.admin.findings import Finding, Kind
from spool.model import layout
from tests.corruption.damages import Damage
from tests.corruption.zoo import QUEUES, Zoo, body
from tests.environment.pressed import Unflushed

PROMISES = (layout.COMMITTED, layout.PREPARED)
_NOT_AS_IT_SHOULD_BE = (Kind.DAMAGED, Kind.STRAY, Kind.MISSING, Kind.EXPOSED)


class Wrong(AssertionError):
    """The space broke a promise."""


def judge(zoo: Zoo, damage: Damage, root: Path, *, repair: bool) -> None:
    """Damage a copy of the zoo, and check the promises. ``repair``: repair it first."""
    zoo.copy(root)
    damage.do(root)
    must_name = [name for name in damage.names if _matters(zoo, root, name)]
    try:
        with spool.open(Unflushed(str(root))) as space:
            findings = [*space.recovery.findings, *space.check()]
            if repair:
                findings += _repaired(space, zoo, damage)
        with spool.open(Unflushed(str(root))) as space:
            if repair:
                _expect_clean([*space.recovery.findings, *space.check()], zoo, damage)
            served = _drain(space)
            findings += space.quarantined()
            _expect_service(space)
    except Exception as error:
        raise Wrong(f"{damage}: {type(error).__name__}: {error}") from error
    if problem := _expect_truth(zoo, damage, served) or _expect_names(must_name, findings):
        raise Wrong(f"{damage}: {problem}\n" + "\n".join(map(str, findings)))


def _matters(zoo: Zoo, root: Path, name: str) -> bool:
    """Return whether the damage touches promised bytes. The body of a taken message is not promised, nor is the file of
    a branch in doubt, whose loss means a rollback."""
    now, before = root / name, zoo.content.get(name)
    if not name.startswith(PROMISES) or (name in zoo.undecided and not os.path.lexists(now)):
        return False
    if before is None or not now.is_file() or now.stat().st_size != len(before):
        return True
    spent = zoo.spent.get(name, range(0))
    changed = (at for at, (one, other) in enumerate(zip(before, now.read_bytes(), strict=True)) if one != other)
    return any(at not in spent for at in changed)


def _repaired(space: spool.Space, zoo: Zoo, damage: Damage) -> list[Finding]:
    findings = space.check(repair=True)
    _expect_clean([finding for finding in findings if not finding.action], zoo, damage)
    _expect_clean(space.check(), zoo, damage)
    return findings


def _expect_clean(findings: list[Finding], zoo: Zoo, damage: Damage) -> None:
    """Expect no findings, except for a message that a branch in doubt holds: no process may touch the message before
    the decision."""
    left = [finding for finding in findings if finding.kind in _NOT_AS_IT_SHOULD_BE]
    if left and not (zoo.files["held"] in damage.names and all(each.name == zoo.files["held"] for each in left)):
        raise Wrong(f"after repair there is still {', '.join(map(str, left))}")


def _drain(space: spool.Space) -> Counter[bytes]:
    served: Counter[bytes] = Counter()
    for queue in (*QUEUES, "errors"):
        try:
            while True:
                served[space.get(queue).body] += 1
        except spool.Empty:
            pass
    return served


def _expect_truth(zoo: Zoo, damage: Damage, served: Counter[bytes]) -> str | None:
    twice = [content for content, count in served.items() if count > 1]
    lost = [content for content, needs in zoo.live.items() if needs.isdisjoint(damage.names) and not served[content]]
    invented = [content for content in served if content not in zoo.live and zoo.gone.get(content) not in damage.names]
    if twice or lost or invented:
        return f"twice {twice}, lost {lost}, delivered although damaged or gone {invented}"
    return None


def _expect_names(names: list[str], findings: list[Finding]) -> str | None:
    """Expect that a finding names the damaged file or its branch. If many files are missing, the finding gives their
    number."""
    told = "\n".join(f"{finding.name} {finding.detail}" for finding in findings)
    for name in names:
        if name.rpartition("/")[2].removesuffix(layout.SUFFIX) not in told and "files are missing" not in told:
            return f"{name} is not named"
    return None


def _expect_service(space: spool.Space) -> None:
    """Expect that each queue still accepts and returns messages."""
    for queue in QUEUES:
        space.put(queue, body("new"))
        if space.get(queue).body != body("new"):
            raise Wrong(f"queue {queue} does not give what is put")
