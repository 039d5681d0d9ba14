"""The destinations of the messages, and the number of arrivals of each message."""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import pytest

import spool
from tests.at_once import AT_ONCE

ANSWER_SECONDS = 0.02

Arrivals = Counter[tuple[str | None, int]]
"""How often a message has arrived: its id (None if the destination does not keep it) and its number."""


class Destination(Protocol):
    """A destination of messages.

    exactly_once: whether each message is there once, or at least once.
    service: its URL.
    environment: of the forwarder.
    """

    exactly_once: bool = True
    service: str
    environment: Mapping[str, str] = MappingProxyType({})

    def arrivals(self) -> Arrivals: ...

    def counts(self) -> dict[str, int]:
        """Return further counts to report."""
        return {}


class Queue(Destination):
    """A queue of the same space."""

    service = "queue:next"

    def __init__(self, space: spool.Space) -> None:
        self._space = space
        space.create_queue("next")

    def arrivals(self) -> Arrivals:
        return Counter((None, int(message.body)) for message in self._space.browse("next"))


class OtherSpace(Destination):
    """A queue of another space; the id has become the correlation id."""

    def __init__(self, other: spool.Space) -> None:
        self._other = other
        other.create_queue("next", deduplication_window=86400.0)
        self.service = f"queue:next@{other.path}"

    def arrivals(self) -> Arrivals:
        return Counter((message.correlation_id, int(message.body)) for message in self._other.browse("next"))


class Database(Destination):
    """A table of PostgreSQL, into which a Python function writes."""

    service = "python:tests.forwarder.kills.booking:book"

    def __init__(self, where: str) -> None:
        import psycopg

        self.environment = {"BOOKINGS": where}
        self._database = psycopg.connect(where, autocommit=True)
        # A default is computed for each row that is tried, also for one that is there already.
        self._database.execute(
            "create table bookings (id text primary key, number integer, call bigint generated always as identity)"
        )

    def arrivals(self) -> Arrivals:
        return Counter(self._database.execute("select id, number from bookings").fetchall())

    def counts(self) -> dict[str, int]:
        found = self._database.execute("select last_value from bookings_call_seq").fetchone()
        assert found is not None
        return {"calls": found[0]}

    def close(self) -> None:
        self._database.close()


class Web(Destination):
    """A web service that notes the key and the body of each request, and answers a little later."""

    exactly_once = False

    def __init__(self) -> None:
        self._seen: list[tuple[str, int]] = []
        self._cut_short = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the worker was killed between the headers and the body
                    web._cut_short += 1
                    self.close_connection = True
                    return
                web._seen.append((self.headers["Idempotency-Key"], int(body)))
                time.sleep(ANSWER_SECONDS)  # most kills find calls that have arrived and are not committed
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.service = f"http://127.0.0.1:{self._server.server_port}/"

    def arrivals(self) -> Arrivals:
        return Counter(self._seen)

    def counts(self) -> dict[str, int]:
        return {"calls": len(self._seen), "cut short": self._cut_short}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def destination(kind: str, space: spool.Space, directory: Path) -> Iterator[Destination]:
    """Make a destination for the messages of a space."""
    if kind == "queue":
        yield Queue(space)
    elif kind == "other space":
        with spool.create(directory / "other", defaults=AT_ONCE) as other:
            yield OtherSpace(other)
    elif kind == "PostgreSQL":
        with postgresql() as where, closing(Database(where)) as database:
            yield database
    else:
        with closing(Web()) as web:
            yield web


@contextmanager
def postgresql() -> Iterator[str]:
    """Run this machine's PostgreSQL, durable as it is by default; yields the connection string."""
    from bench.peers.base import Missing
    from bench.peers.postgresql import PostgreSQL

    peer, directory = PostgreSQL(), tempfile.mkdtemp(prefix="xaspool-")  # that its user may reach
    try:
        peer.start(directory)
        yield f"host={directory} user=bench dbname=postgres"
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        peer.stop()
        shutil.rmtree(directory)
