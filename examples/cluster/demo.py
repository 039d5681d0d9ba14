"""Forward a queue with workers on two machines that do not see its space. Root runs: python examples/cluster/demo.py"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from machines import Machines, SparkCluster

import spool

ORDERS = 10_000
HERE = Path(__file__).parent


def main(directory: Path) -> int:
    hidden = directory / "hidden"
    hidden.mkdir()
    space = str(hidden / "space")
    with spool.create(space) as opened:
        opened.create_queue("shipped")
        opened.create_queue("orders", reply_queue="shipped")
        opened.put_many("orders", [f"order {number}" for number in range(ORDERS)])
    with Machines(hidden) as machines, SparkCluster(machines, directory) as cluster:
        print(f"a master at {cluster.url}, and workers on {' and '.join(machines.names)}", flush=True)
        words = forwarder(space, cluster.url, machines.address, {**cluster.settings, "spark.executorEnv.SPACE": space})
        environment = {**os.environ, "SPARK_LOCAL_IP": machines.address}
        done = subprocess.run(words, cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    sent = sum(event["over_network"] for event in events if event["event"] == "done")
    print(f"{sent:,} of {ORDERS:,} orders went over the network")
    with spool.open(space) as opened:
        shipped = Counter(message.body for message in opened.browse("shipped"))
        faults = list(opened.check())
    for name, orders in sorted(shipped.items()):
        print(f"{name} shipped {orders:,}")
    return 0 if shipped.total() == ORDERS and not faults else 1


def forwarder(space: str, master: str, address: str, settings: dict[str, str]) -> list[str]:
    """Return the command of the forwarder. (The private bridge needs no TLS.)"""
    words = ["-s", space, "--route", "orders=python:orders:ship", "--once", "--json", "--master", master]
    words += ["--listen", f"{address}:0", "--insecure"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    return [sys.executable, "-m", "xaspool_scripts.forward", *words]


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("only root can make machines: run it with sudo")
    with TemporaryDirectory(prefix="xaspool-") as made:
        sys.exit(main(Path(made)))
