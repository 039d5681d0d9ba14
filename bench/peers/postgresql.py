"""PostgreSQL as a queue over a Unix socket: insert rows, and delete rows that FOR UPDATE SKIP LOCKED has chosen.

The server is this machine's PostgreSQL. It runs on the measured disk, as a separate user, with fsync and
synchronous_commit on.
"""

import glob
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from bench.peers.base import Line, Missing, Peer, descendants, need, release

_PUT = "insert into {} (body) select unnest(%s::bytea[])"
# Materialized, because PostgreSQL may run a subquery once per row, and would then delete too many rows.
_GET = (
    "with next as materialized (select id from {0} order by id limit %s for update skip locked) "
    "delete from {0} using next where {0}.id = next.id returning {0}.id, body"
)
_SETTINGS = {
    "fsync": "on", "synchronous_commit": "on", "listen_addresses": "", "max_connections": "50",
    "max_prepared_transactions": "50",
}  # fmt: skip


class PostgreSQL(Peer):
    name = "PostgreSQL"
    how = "fsync and synchronous_commit on, FOR UPDATE SKIP LOCKED"
    get_with = "one DELETE … RETURNING"
    transactions = True
    two_phase = True
    _server: "subprocess.Popen[bytes] | None" = None

    def start(self, directory: str) -> None:
        need("psycopg", "psycopg")
        self.programs = _programs()
        super().start(directory)
        who: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            who = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(directory, "postgres", "postgres")
        data = f"{directory}/data"
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": "/", **who}
        made = subprocess.run(
            [f"{self.programs}/initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"],
            check=False, **quiet,
        )  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb failed: {made.stderr.decode().strip().splitlines()[-1]}")
        settings = {**_SETTINGS, "unix_socket_directories": directory}
        command = [f"{self.programs}/postgres", "-D", data]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._server = subprocess.Popen(command, **{**quiet, "stderr": subprocess.DEVNULL})
        self.line("first").close()

    def line(self, queue: str) -> Line:
        return PostgreSQLLine(self.directory, queue.replace("-", "_"))

    def version(self) -> str:
        said = subprocess.run([f"{self.programs}/postgres", "--version"], capture_output=True, text=True, check=True)
        return f"PostgreSQL {said.stdout.split()[2]}, {release('psycopg')}"

    def servers(self) -> list[int]:
        return descendants(self._server.pid) if self._server else []

    def stop(self) -> None:
        if self._server:
            self._server.send_signal(signal.SIGINT)  # at once, even while clients are connected
            self._server.wait()

    def __getstate__(self) -> dict[str, object]:
        return {"directory": self.directory, "programs": self.programs}


def _programs() -> str:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
    program = found[-1] if found else shutil.which("postgres")
    if program is None:
        raise Missing("not here: apt-get install postgresql")
    return os.path.dirname(program)


class PostgreSQLLine(Line):
    def __init__(self, directory: str, queue: str) -> None:
        import psycopg

        for _ in range(200):
            try:
                self.db = psycopg.connect(f"host={directory} user=bench dbname=postgres", autocommit=True)
                break
            except psycopg.OperationalError:
                time.sleep(0.05)
        else:
            raise Missing("its server did not answer within ten seconds")
        with self.db.transaction():
            self.db.execute("select pg_advisory_xact_lock(1)")  # otherwise concurrent creations of one table fail
            self.db.execute(f"create table if not exists {queue} (id bigserial primary key, body bytea)")
        self.db.prepare_threshold = 0
        self.sql_put, self.sql_get = _PUT.format(queue), _GET.format(queue)
        self.run, self.branches = os.urandom(8).hex(), itertools.count()

    def put(self, count: int) -> None:
        self.db.execute(self.sql_put, ([self.body] * count,), binary=True)

    def get(self, count: int) -> int:
        return len(self.db.execute(self.sql_get, (count,), binary=True).fetchall())

    def put_each(self, count: int) -> None:
        with self.db.transaction():
            for _ in range(count):
                self.put(1)

    def get_each(self, count: int) -> int:
        with self.db.transaction():
            return sum(self.get(1) for _ in range(count))

    def move(self, work: Callable[[bytes], bytes]) -> None:
        with self.db.transaction():
            ((_, body),) = self.db.execute(self.sql_get, (1,), binary=True).fetchall()
            self.db.execute(self.sql_put, ([work(body)],), binary=True)

    def put_in_two_phases(self) -> None:
        name = f"'{self.run}-{next(self.branches)}'"
        self.db.execute("begin")
        self.put(1)
        self.db.execute(f"prepare transaction {name}", prepare=False)  # each statement is different
        self.db.execute(f"commit prepared {name}", prepare=False)

    def close(self) -> None:
        self.db.close()
