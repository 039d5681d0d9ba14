"""ext4 with a journal is shut down without flushing its log: commits and votes that overwrote consumed files lose their
names, are found by their stamps, and nothing is missing or there again."""

import random
from pathlib import Path

import pytest

import spool
import xa
from spool.admin.findings import Kind
from spool.disk.durability import Journaled
from tests import door
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.filesystems.volume import EXT4, Volume, boot_anew, missing
from tests.housekeepers import end_housekeeping


@pytest.mark.timeout(3600)
def test_commits_and_votes_left_without_names_are_found(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if reason := missing(EXT4.make[0]):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    wanted = 320 if pytestconfig.getoption("--long") else 2
    cuts = unnamed = calls = 0
    with Volume(EXT4, tmp_path) as volume:
        # On a busy machine the kernel writes its log before the cut now and then, and all names are there.
        while cuts < wanted or (not unnamed and cuts < 10 * wanted):
            cuts += 1
            volume.make().mount()
            worker = Worker(volume.path / "space", rng)
            worker.overwrite()
            volume.cut()
            calls += worker.calls
            door.disk(worker.space).close_all()  # as its death would; nothing of it reaches the device
            volume.unmount()
            volume.mount()
            boot_anew(volume.path / "space")
            unnamed += worker.judge()
            volume.unmount()
    print(f"{cuts} cuts, {calls} commits since the last reclaim but one, {unnamed} found without their names")
    assert unnamed > 0


class Worker:
    """One process, which remembers its acknowledged calls."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self._path = path
        self._rng = rng
        self._waiting: list[str] = []
        self._in_doubt: dict[xa.Xid, str] = {}
        self._rolled_back: list[xa.Xid] = []
        self._put = 0
        self.calls = 0
        self.space = spool.create(path, defaults=AT_ONCE)
        end_housekeeping(self.space)  # its thread would live on after the cut, and keep the file system busy
        self.space.create_queue("q")
        assert isinstance(door.disk(self.space).durability, Journaled)

    def overwrite(self) -> None:
        """Create consumed files, then commit into them; files that these commits consume are used again."""
        for _ in range(20):
            self._put_one()
        for _ in range(10):
            self._get_one()
        door.reclaim(self.space)
        for _ in range(self._rng.randrange(1, 25)):
            chance = self._rng.random()
            if chance < 0.3:
                self._vote()
            elif chance < 0.6 or not self._waiting:
                self._put_one()
            elif chance < 0.9:
                self._get_one()
            else:
                door.reclaim(self.space)
            self.calls += 1

    def _put_one(self) -> None:
        large = self._rng.random() < 0.2
        body = f"{self._put}" + "x" * (self._rng.randrange(3000) if large else 0)
        self._put += 1
        self.space.put("q", body)
        self._waiting.append(body)

    def _get_one(self) -> None:
        assert self.space.get("q").body == self._waiting.pop(0)

    def _vote(self) -> None:
        """Put a message in a branch, and commit it, roll it back, or leave it in doubt. A later branch may have the xid
        of a branch that was rolled back."""
        again = self._rolled_back and self._rng.random() < 0.5
        xid = self._rolled_back.pop() if again else xa.Xid(7, self._rng.randbytes(8), b"")
        manager, body = xa.ResourceManager(self.space), f"{self._put}"
        self._put += 1
        with voting(manager, xid):
            self.space.put("q", body)
        chance = self._rng.random()
        if chance < 0.4:
            manager.commit(xid)
            self._waiting.append(body)
        elif chance < 0.7:
            manager.rollback(xid)
            self._rolled_back.append(xid)
        else:
            self._in_doubt[xid] = body

    def judge(self) -> int:
        """After the cut; returns how many commits and votes had lost their names."""
        with spool.open(self._path) as space:
            assert [message.body for message in space.browse("q")] == self._waiting
            assert [finding for finding in space.check() if finding.kind is Kind.DAMAGED] == []
            manager = xa.ResourceManager(space)
            found = set(manager.recover())
            assert self._in_doubt.keys() <= found <= {*self._in_doubt, *self._rolled_back}
            for xid in self._in_doubt:
                manager.commit(xid)
            assert [message.body for message in space.browse("q")] == self._waiting + list(self._in_doubt.values())
            return sum(finding.kind is Kind.MOVED for finding in space.recovery.findings)
