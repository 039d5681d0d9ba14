"""The forwarder with its driver, its Java and its Python workers killed at random: nothing is lost, nothing is twice.

Into a queue of the same space or of another each message comes exactly once; into a web service at least once, always
with the same idempotency key.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import spool
from tests.at_once import AT_ONCE

KILLS = 34  # for each target: a hundred in all
BACKLOG = 1000  # messages that wait when something is killed
SEED = 20

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]


class Web:
    """A server that notes the key and the body of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.cut_short = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the worker was killed between the headers and the body
                    web.cut_short += 1
                    self.close_connection = True
                    return
                web.seen.append((self.headers["Idempotency-Key"], body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.server.shutdown()


class Program:
    """A forwarder, and the processes that it has started."""

    def __init__(self, path: str, service: str, *options: str) -> None:
        command = [sys.executable, "-m", "xaspool_scripts.forward", "-s", path, "--route", f"work={service}"]
        self.process = subprocess.Popen(
            [*command, "--master", "local[2]", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def processes(self) -> dict[str, list[int]]:
        """Return the processes by kind: its Java, and the Python workers that Java's daemon has forked."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                children.setdefault(parent, []).append(int(entry.name))
        java = children.get(self.process.pid, [])
        daemons = [pid for one in java for pid in children.get(one, [])]
        return {"java": java, "worker": [pid for daemon in daemons for pid in children.get(daemon, [])]}

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill one process of a kind; False if there is none."""
        pids = [self.process.pid] if kind == "driver" else self.processes()[kind]
        if not pids:
            return False
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        if kind != "worker":
            self.process.wait(60)
        return True


@pytest.mark.parametrize("target", ["queue", "other space", "web"])
def test_x05_each_message_arrives_whatever_is_killed(target: str, tmp_path: Path, web: Web) -> None:
    chance, killed, sent = random.Random(SEED), Counter[str](), 0
    with (
        spool.create(tmp_path / "space", defaults=AT_ONCE) as space,
        spool.create(tmp_path / "other", defaults=AT_ONCE) as other,
    ):
        space.create_queue("next")
        space.create_queue("work", retry_delay=0.0, retry_delay_max=None)
        other.create_queue("next", deduplication_window=86400.0)
        service = {"queue": "queue:next", "other space": f"queue:next@{other.path}", "web": web.url}[target]
        program = Program(space.path, service)
        while killed.total() < KILLS:
            if (missing := BACKLOG - space.stats("work").ready) > 0:
                space.put_many("work", range(sent, sent + missing))
                sent += missing
            if program.process.poll() is not None:
                program = Program(space.path, service)
            done = space.stats("work").dequeued
            while space.stats("work").dequeued == done and program.process.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.random() * 0.2)
            kind = chance.choices(["worker", "driver", "java"], [4, 1, 1])[0]
            killed[kind] += program.kill(kind, chance)
        program.kill("driver", chance)
        while space.stats("work").ready or space.stats("work").claimed:
            Program(space.path, service, "--once").process.wait(600)
        assert all(killed[kind] for kind in ("driver", "java", "worker"))
        print(f"{target}: {dict(killed)}, {sent} messages, {len(web.seen)} requests, {web.cut_short} cut short")
        if target == "web":
            bodies = Counter(key for key, _ in set(web.seen))
            assert max(bodies.values()) == 1, "a key is one message's"
            assert len(bodies) == sent, "and each message has one"
        else:
            there = space if target == "queue" else other
            assert sorted(message.body for message in there.browse("next")) == list(range(sent))
        assert not [finding for finding in space.check() if finding.kind == "damaged"]
