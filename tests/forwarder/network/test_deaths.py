"""A server or a client that dies: nothing is written in part, nothing is left behind, and a repeated write is one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import spool
from forwarder.dataframes.coordination.write_coordinator import WriteCoordinator
from forwarder.dataframes.server_space import RemoteJob
from forwarder.dataframes.sink import Written
from forwarder.message_puts import RowsAsPuts
from forwarder.network import lease
from forwarder.network.server_calls import act, read, vote_of
from spool.client.connection import HttpConnection
from spool.errors import CommitUnknown, TransactionRolledBack
from tests.forwarder.network.conftest import Serve
from tests.forwarder.network.test_four_ways import begin, plan, send
from tests.forwarder.network.test_hostile_clients import half_a_stream, reading
from tests.scripts.conftest import start
from tests.shown import bodies, left_over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def server(path: str, port: int = 0) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """Run spool-serve in another process; yields the process and the address of the space ``shop``."""
    with start("spool-serve", f"shop={path}", "--listen", f"127.0.0.1:{port}", "--json") as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


def port_of(address: str) -> int:
    return int(address.partition("//")[2].partition("/")[0].rpartition(":")[2])


def test_a_server_that_dies_takes_its_writes_with_it(space: spool.Space) -> None:
    with server(space.path) as (process, address):
        client = HttpConnection.of(address)
        session = begin(client)
        vote = send(client, session, ["a"])["vote"]
        assert left_over(space.path) != []
        process.kill()
        process.wait()
    with server(space.path, port_of(address)), pytest.raises(TransactionRolledBack, match="write has ended"):
        act(client, session, "commit", votes=[vote], rows=1)
    space.engine.resolve_orphans()
    assert left_over(space.path) == []
    assert bodies(space) == []


@pytest.mark.slow
def test_a_reader_that_takes_nothing_for_a_minute_goes_on(space: spool.Space) -> None:
    space.put_many("orders", [bytes(100_000)] * 500)
    with server(space.path) as (_, address):
        client = HttpConnection.of(address)
        [ticket] = plan(client, **reading(queue="orders", partitionBytes="1g"))
        batches = read(client, ticket)
        rows = next(batches).num_rows
        time.sleep(60)
        assert rows + sum(batch.num_rows for batch in batches) == 500


def test_the_outcome_of_a_commit_without_an_answer_is_unknown(space: spool.Space) -> None:
    from pyspark.sql.types import StructType

    with server(space.path) as (_, address):
        client = HttpConnection.of(address)
        session = begin(client)
        vote = send(client, session, ["a"])["vote"]
    job = RemoteJob("", RowsAsPuts((), "orders"), connection=client, schema=StructType())
    coordinator = WriteCoordinator(session.encode(), "")
    with pytest.raises(CommitUnknown, match="can be repeated"):
        job.commit(coordinator, [Written(coordinator, vote_of(vote), 1)], None)


@pytest.mark.slow
@pytest.mark.spark
def test_x05_a_write_that_its_server_s_death_broke_repeats_once(spark: "SparkSession", space: spool.Space) -> None:
    """The server is killed while the tasks send their rows."""
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as body")
    options = {"queue": "orders", "applicationId": "import", "batchId": "1"}

    def write(address: str) -> None:
        frame.write.format("spool").options(**options).mode("append").save(address)

    with server(space.path) as (process, address):
        os.kill(process.pid, signal.SIGSTOP)  # the tasks wait for it
        killer = subprocess.Popen(["sh", "-c", f"sleep 3; kill -9 {process.pid}"])
        with pytest.raises(Exception, match="cannot be reached"):
            write(address)
        killer.wait()
    with server(space.path, port_of(address)):
        write(address)
        write(address)
    assert sorted(bodies(space), key=int) == [str(n) for n in range(1000)]
    assert left_over(space.path) == []


def test_the_lease_of_a_client_ends_with_its_parent(serve: Serve, space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    """A process renews the lease for several times its length, until the parent ends."""
    server, renewals = serve(lease_seconds=15), list[object]()
    client = HttpConnection.of(server.address("shop"))
    session = begin(client)
    send(client, session, ["a"])
    writes = server._state.transfers.writes
    find = writes.find
    monkeypatch.setattr(writes, "find", lambda call: renewals.append(call) or find(call))
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(os, "getppid", lambda: parent.pid)
    lease.start(client, session)
    assert os.waitpid(-1, os.WNOHANG) == (0, 0), "the parent is the only child"
    for count in (1, 8):  # (the first renewal comes late, because the process has to start)
        while len(renewals) < count:
            pass
        writes.lease_seconds = 4
    assert left_over(space.path) != []
    parent.communicate(b"\n")
    while left_over(space.path):
        pass
    assert bodies(space) == []


def test_a_task_that_sends_nothing_more_does_not_keep_the_lease(serve: Serve, space: spool.Space) -> None:
    """The machine of the client loses its power while a task sends rows, and the server gets no end of the call."""
    client = HttpConnection.of(serve(lease_seconds=3).address("shop"))
    session = begin(client)
    send(client, session, ["a"])
    with half_a_stream(client, session):
        while left_over(space.path):
            pass
    assert bodies(space) == []
