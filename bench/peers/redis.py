"""Redis with appendfsync always, over a Unix socket: RPUSH and LPOP."""

import shutil
import subprocess
import time

from bench.peers.base import Line, Missing, Peer, descendants, need, release


class Redis(Peer):
    name = "Redis"
    how = "appendonly, appendfsync always: flushed before the answer; the log is not rewritten meanwhile"
    get_with = "LPOP"
    _server: "subprocess.Popen[bytes] | None" = None

    def start(self, directory: str) -> None:
        need("redis", "redis")
        if shutil.which("redis-server") is None:
            raise Missing("not here: apt-get install redis-server")
        super().start(directory)
        options = {
            "port": "0", "unixsocket": self.socket, "dir": directory, "save": "", "appendonly": "yes",
            "appendfsync": "always", "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        command = ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.line("first").close()

    @property
    def socket(self) -> str:
        return f"{self.directory}/socket"

    def line(self, queue: str) -> Line:
        return RedisLine(self.socket, queue)

    def version(self) -> str:
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return f"Redis {said.split('v=')[1].split()[0]}, {release('redis')}"

    def servers(self) -> list[int]:
        return descendants(self._server.pid) if self._server else []

    def stop(self) -> None:
        if self._server:
            self._server.terminate()
            self._server.wait()

    def __getstate__(self) -> dict[str, object]:
        return {"directory": self.directory}


class RedisLine(Line):
    def __init__(self, socket: str, queue: str) -> None:
        import redis

        self.client, self.queue = redis.Redis(unix_socket_path=socket), queue
        for _ in range(200):
            try:
                self.client.ping()
                return
            except redis.exceptions.ConnectionError:
                time.sleep(0.05)
        raise Missing("its server did not answer within ten seconds")

    def put(self, count: int) -> None:
        self.client.rpush(self.queue, *([self.body] * count))

    def get(self, count: int) -> int:
        return len(self.client.lpop(self.queue, count) or ())

    def close(self) -> None:
        self.client.close()
