"""A RabbitMQ quorum queue of one node, with publisher confirms; one confirm is waited for a message.

Quorum queues have no transactions, so there are no commits of several. An acknowledgement is not confirmed.
"""

import os
import shutil
import socket
import subprocess
import time
from typing import Any

from bench.peers.base import BODY, Line, Missing, Peer, descendants, need, release

_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_START_SECONDS = 60


class RabbitMQ(Peer):
    name = "RabbitMQ"
    how = "quorum queue, publisher confirms: the log is flushed before the confirm"
    batches = False
    get_with = "an acknowledgement that is not confirmed: not known to be durable"
    _server: "subprocess.Popen[bytes] | None" = None
    _names: "subprocess.Popen[bytes] | None" = None

    def start(self, directory: str) -> None:
        need("pika", "pika")
        if not os.path.exists(_SERVER) or shutil.which("epmd") is None:
            raise Missing("not here: apt-get install rabbitmq-server")
        super().start(directory)
        self.port, names, distribution = (_free_port() for _ in range(3))
        with open(f"{directory}/plugins", "w", encoding="ascii") as file:
            file.write("[].\n")
        environment = {
            **os.environ, "HOME": directory, "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost", "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{directory}/data", "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins", "RABBITMQ_CONFIG_FILE": f"{directory}/none",
            "RABBITMQ_CONF_ENV_FILE": f"{directory}/none", "RABBITMQ_PID_FILE": f"{directory}/pid",
        }  # fmt: skip
        quiet: dict[str, Any] = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "env": environment,
            "cwd": directory,
        }
        self._names = subprocess.Popen(["epmd"], **quiet)  # its directory of nodes, ended with it
        self._server = subprocess.Popen([_SERVER], **quiet)
        self._wait()

    def _wait(self) -> None:
        import pika

        for _ in range(_START_SECONDS):
            try:
                self.line("first").close()
                return
            except (pika.exceptions.AMQPError, OSError):
                time.sleep(1)
        raise Missing(f"its server did not answer within {_START_SECONDS} seconds")

    def line(self, queue: str) -> Line:
        return RabbitMQLine(self.port, queue)

    def version(self) -> str:
        said = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"], capture_output=True, text=True)
        return f"RabbitMQ {said.stdout.split('-')[0]}, {release('pika')}"

    def servers(self) -> list[int]:
        return descendants(self._server.pid) if self._server else []

    def stop(self) -> None:
        for process in (self._server, self._names):
            if process:
                children = descendants(process.pid)
                process.terminate()
                for child in children[1:]:
                    _terminate(child)
                process.wait()

    def __getstate__(self) -> dict[str, object]:
        return {"directory": self.directory, "port": self.port}


def _terminate(pid: int) -> None:
    """The server is a grandchild, behind a shell."""
    try:
        os.kill(pid, 15)
    except ProcessLookupError:
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RabbitMQLine(Line):
    def __init__(self, port: int, queue: str) -> None:
        import pika

        self.properties = pika.BasicProperties(delivery_mode=2)
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
        self.channel = self.connection.channel()
        self.queue = queue
        self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        self.channel.confirm_delivery()

    def put(self, count: int) -> None:
        for _ in range(count):
            self.channel.basic_publish("", self.queue, BODY, self.properties, mandatory=True)

    def get(self, count: int) -> int:
        for place in range(count):
            method, _, _ = self.channel.basic_get(self.queue)
            if method is None:
                return place
            self.channel.basic_ack(method.delivery_tag)
        return count

    def close(self) -> None:
        self.connection.close()
