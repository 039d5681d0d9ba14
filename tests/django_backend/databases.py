"""Each kind of database in place of the project's, for the process of a test and the processes that it starts."""

import atexit
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.db.utils import ConnectionHandler

from tests import postgresql

KINDS = ["SQLite", "PostgreSQL"]


@contextmanager
def database(kind: str, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a new database, with the tables of django_xaspool, ``orders`` and ``cooked``."""
    if kind == "PostgreSQL":
        server, name = _server(), f"test_{directory.name}".lower()
        with server.connect(autocommit=True) as admin:
            admin.execute(f'create database "{name}"')
        where = {"NAME": name, "USER": "test", "HOST": server.directory}
        with _using({"ENGINE": "django.db.backends.postgresql", **where}, patch):
            yield
    else:
        where = {"NAME": str(directory / "orders.sqlite3"), "OPTIONS": {"timeout": 30}}
        with _using({"ENGINE": "django.db.backends.sqlite3", **where}, patch):
            yield


@cache
def _server() -> postgresql.Server:
    """Return the server of this process, which ends with the process."""
    at_end = ExitStack()
    atexit.register(at_end.close)
    return at_end.enter_context(postgresql.server(two_phase=False))


@contextmanager
def _using(where: dict[str, Any], patch: pytest.MonkeyPatch) -> Iterator[None]:
    before = connections["default"]
    patch.setenv("DATABASE", json.dumps(where))
    configured = ConnectionHandler({"default": where})
    patch.setitem(connections.databases, "default", configured.databases["default"])  # of new threads
    connections["default"] = configured["default"]
    try:
        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("create table orders (number integer primary key)")
            cursor.execute("create table cooked (number integer)")
        yield
    finally:
        connection.close()
        connections["default"] = before


def numbers(table: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(f"select number from {table} order by number")
        return [number for (number,) in cursor.fetchall()]


def insert(number: int, table: str = "orders") -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"insert into {table} (number) values (%s)", [number])
