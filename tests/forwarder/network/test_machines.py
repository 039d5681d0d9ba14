"""Workers on machines that do not see the space, each with a network of its own: forwarding, reading and writing."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import spool
from tests.at_once import AT_ONCE
from tests.forwarder.machines import cluster_on_machines
from tests.forwarder.processes import ROOT, Program, RunningForwarder
from tests.shown import left_over

pytestmark = [pytest.mark.spark, pytest.mark.root, pytest.mark.timeout(600)]

MESSAGES = 600
SERVICE = """
import os, socket
def where(message):
    assert not os.listdir(os.path.dirname(__file__) + "/hidden")
    return f"{message.body} on {socket.gethostname()}"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "naps.py").write_text(SERVICE)
    (tmp_path / "hidden").mkdir()
    with spool.create(tmp_path / "hidden/space", defaults=AT_ONCE) as space:
        for queue in ("replies", "errors"):
            space.create_queue(queue)
        space.create_queue("work", reply_queue="replies", error_queue="errors")
        space.put_many("work", range(MESSAGES))
    return tmp_path


@pytest.fixture
def cluster(directory: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        yield cluster_on_machines(directory, stack)


def certificate(directory: Path, address: str) -> list[str]:
    """Make a certificate for an address, signed by its own key; return the options of a program that listens there."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=forwarder"]
    names = ["-addext", f"subjectAltName=IP:{address}", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*made, *names], cwd=directory, check=True, capture_output=True)
    return ["--tls-cert", "cert.pem", "--tls-key", "key.pem"]


def forwarder_on(cluster: Any, directory: Path, *options: str) -> RunningForwarder:
    given = [word for name, value in cluster.settings.items() for word in ("--conf", f"{name}={value}")]
    return RunningForwarder(
        "hidden/space", "python:naps:where", ["--once", "--json", "--master", cluster.url, *given, *options],
        directory / "said", {"SPARK_LOCAL_IP": cluster.machines.address}, directory,
    )  # fmt: skip


@pytest.mark.slow
def test_x05_workers_on_machines_without_the_space_forward_each_message_once(cluster: Any, directory: Path) -> None:
    tls = certificate(directory, cluster.machines.address)
    with forwarder_on(cluster, directory, "--listen", f"{cluster.machines.address}:0", *tls) as program:
        assert program.ended() == 0, program.said()
    for name in cluster.machines.names:
        assert f"the worker on {name} does not see the space: it gets messages over the network" in program.said()
    with spool.open(directory / "hidden/space") as space:
        replies = [str(message.body).partition(" on ") for message in space.browse("replies")]
        assert sorted(int(number) for number, _, _ in replies) == list(range(MESSAGES))
        assert {name for _, _, name in replies} == set(cluster.machines.names)
        assert list(space.check()) == []
    assert left_over(directory / "hidden/space") == []


@pytest.mark.slow
def test_x05_a_cluster_that_does_not_see_the_space_needs_an_endpoint(cluster: Any, directory: Path) -> None:
    with forwarder_on(cluster, directory) as program:
        assert program.ended() == 1, program.said()
    assert "give the forwarder --listen HOST:PORT" in program.said()
    with spool.open(directory / "hidden/space") as space:
        assert space.stats("work").ready == MESSAGES


QUERIES = """
import json, sys
import forwarder
from forwarder import session
url, shop, settings = sys.argv[1:]
spark = session.start(url, conf=json.loads(settings))
forwarder.register(spark)
options = {"tokenFile": "token", "tlsCertificate": "cert.pem"}
orders = spark.read.format("spool").options(queue="work", **options).load(shop)
assert orders.count() == 600, orders.count()
copies = orders.selectExpr("body", "cast(null as string) as correlation_id")
copies.write.format("spool").options(queue="replies", **options).mode("append").save(shop)
stream = spark.readStream.format("spool").options(queue="replies", **options).load(shop)
copying = stream.select("body").writeStream.format("spool").trigger(availableNow=True)
copying.options(queue="copies", checkpointLocation="checkpoint", **options).start(shop).awaitTermination()
print("done", flush=True)
session.stop(spark)
"""


@pytest.mark.slow
def test_x05_reads_writes_and_streams_run_on_machines_that_do_not_see_the_space(cluster: Any, directory: Path) -> None:
    (directory / "token").write_text("t" * 32)
    (directory / "token").chmod(0o600)
    (directory / "queries.py").write_text(QUERIES)
    with spool.open(directory / "hidden/space") as space:
        space.create_queue("copies")
    words = ["-s", "hidden/space", "--listen", f"{cluster.machines.address}:0", "--token-file", "token"]
    words += certificate(directory, cluster.machines.address)
    server = Program("xaspool_scripts.serve", words, directory / "served", "serving", directory)
    with server:
        while not server.is_ready():
            time.sleep(0.05)
        shop = server.said().split()[-1]
        arguments = [cluster.url, shop, json.dumps(cluster.settings)]
        roots = f".:{ROOT}:{ROOT}/scripts"
        with Program("queries", arguments, directory / "said", "done", directory, PYTHONPATH=roots) as program:
            assert program.ended() == 0, program.said()
    with spool.open(directory / "hidden/space") as space:
        numbers = [sorted(message.body for message in space.browse(queue)) for queue in ("work", "replies", "copies")]
        assert [len(found) for found in numbers] == [MESSAGES] * 3
        assert numbers[1] == numbers[2]
        assert list(space.check()) == []
    assert left_over(directory / "hidden/space") == []
