"""A client of a server with several processes: each message is held by the process that has answered its claim."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import spool
from spool.client.space import RemoteSpace
from tests.client.conftest import WAIT
from tests.scripts.conftest import start


@pytest.fixture
def remote(directory: Path) -> Iterator[RemoteSpace]:
    with start("spool-serve", f"shop={directory}", "--listen", "127.0.0.1:0", "--processes", "2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().decode().split()[-1]
        with spool.connect(address) as space:
            yield space
        process.terminate()
        process.communicate(timeout=WAIT)


def test_messages_of_two_processes_are_held_and_ended(remote: RemoteSpace) -> None:
    ids = remote.put_many("other", range(64))
    with remote.claims() as claims:
        taken = list[spool.Message]()
        while len({lease.receipt.partition(".")[0] for lease in claims._held.values()}) < 2 and len(taken) < 60:
            threads = [threading.Thread(target=lambda: taken.extend(claims.take("other", 2))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT)
        claims.extend()
        by_process: dict[str, list[spool.Message]] = {}
        for message in taken:
            by_process.setdefault(claims._held[message.id].receipt.partition(".")[0], []).append(message)
        if len(by_process) == 1:
            pytest.skip("one process has answered all calls")
        mixed = [messages.pop() for messages in by_process.values()]
        with pytest.raises(spool.ProtocolError, match="two processes"):
            claims.commit(mixed, [("replies", "x", {})]).result(WAIT)
        assert claims.remove(mixed).result(WAIT) is None
        for messages in by_process.values():
            claims.commit(messages[:1], [("replies", "x", {})]).result(WAIT)
        removed = len(mixed) + len(by_process)
        assert remote.stats("other").dequeued == removed
    assert remote.stats("other").ready == len(ids) - removed
    assert remote.stats("replies").ready == len(by_process)


def test_a_worker_of_two_processes(remote: RemoteSpace) -> None:
    remote.put_many("orders", range(40))
    summary = remote.work("orders", lambda message: message.body, threads=4, once=True)
    assert (summary.delivered, summary.left) == (40, 0)
    assert sorted(message.body for message in remote.get_many("replies", 100)) == list(range(40))
