"""The gate before a server: clients without a token get little room, and keep no other client out."""

import asyncio
import contextlib
import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.flight as flight
import pytest

import spool
from forwarder.flight.client import Client, _connection
from forwarder.flight.codes import encode
from forwarder.serving import gate
from forwarder.serving.access import Tokens
from spool.errors import AccessDenied, InvalidArgument
from tests.forwarder.flight.conftest import Serve
from tests.forwarder.flight.test_four_ways import begin, rows
from tests.forwarder.flight.test_hostile_clients import assert_serves
from tests.scripts.conftest import start

READER, WRITER = "r" * 32, "w" * 32
BODY = {"name": "body", "type": "binary", "nullable": True, "metadata": {}}
LARGE = b"x" * (80 << 20)


def most_memory(process: int) -> int:
    """Return the most bytes of memory that a process has had."""
    [line] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(line) << 10


@pytest.mark.every(2)
@pytest.mark.parametrize("call", ["action", "read"])
def test_a_large_message_without_a_token_is_not_kept(tmp_path: Path, call: str) -> None:
    """Arrow Flight alone reads the whole message before it looks at the token."""
    spool.create(tmp_path / "space").close()
    (tmp_path / "tokens").write_text(WRITER)
    (tmp_path / "tokens").chmod(0o600)
    words = [tmp_path / "space", "--listen", "127.0.0.1:0", "--token-file", tmp_path / "tokens", "--json"]
    with start(
        "spool-serve", *words, before="from forwarder.serving import gate; gate._STRANGER_SECONDS = 2.0"
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            known = Client.of(address, WRITER, None, None)
            assert known.act("health")["number"] >= 0
            before = most_memory(process.pid)
            options = flight.FlightCallOptions(timeout=5)
            with flight.FlightClient(known.address.server) as stranger, pytest.raises(flight.FlightError):
                if call == "action":
                    list(stranger.do_action(flight.Action("health", LARGE), options))
                else:
                    stranger.do_get(flight.Ticket(LARGE), options).read_all()
            assert most_memory(process.pid) - before < 50 << 20
            assert known.act("health")["number"] >= 0
        finally:
            process.kill()


@pytest.fixture
def server(serve: Serve) -> Any:
    return serve(Tokens([f"{READER} shop:read", f"{WRITER} shop:write"]))


@pytest.fixture
def client(server: Any) -> Callable[[str], Client]:
    return lambda token: Client.of(server.address("shop"), token, None, None)


@contextlib.contextmanager
def raw(server: Any) -> Any:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        yield connection


def read_to_end(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass


def test_a_client_is_served_beside_clients_that_send_nothing(
    server: Any, client: Callable[[str], Client], space: spool.Space
) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(raw(server)) for _ in range(200)]
        assert_serves(client(READER), space)
        read_to_end(silent[0])  # the oldest ones were ended


def test_a_client_without_an_accepted_call_is_ended_and_one_with_it_is_kept(
    server: Any, client: Callable[[str], Client], space: spool.Space, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    known = client(WRITER)
    assert_serves(known, space)
    monkeypatch.setattr(gate, "_STRANGER_SECONDS", 0.2)
    with raw(server) as silent, raw(server) as sending:
        sending.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        read_to_end(silent)
        read_to_end(sending)
    assert caplog.messages == ["a call was refused: a client at 127.0.0.1 went away without an accepted call"]
    assert_serves(known, space)


def test_a_large_request_of_a_client_with_a_token_arrives(client: Callable[[str], Client]) -> None:
    """The first request of a process may be large, e.g. the commit of many tasks, or a write of long columns."""
    session, column = begin(client(WRITER)), {**BODY, "metadata": {"comment": "x" * 400_000}}
    _connection.cache_clear()
    asked = {"options": {"queue": "orders"}, "schema": json.dumps({"type": "struct", "fields": [column]})}
    sent = client(WRITER).write(iter([rows(b"a")]), rows().schema, session=session, partition=0, attempt=0, **asked)
    assert sent["rows"] == 1
    for token in (READER, WRITER):
        with pytest.raises(InvalidArgument, match="no option 'large'"):
            client(token).plan(
                options={"queue": "orders", "large": "x" * (4 << 20)}, schema='{"type": "struct", "fields": []}'
            )


def test_a_message_of_a_reader_has_a_limit(
    server: Any, client: Callable[[str], Client], space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_STRANGER_SECONDS", 0.2)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {READER}".encode())])
    with flight.FlightClient(client(READER).address.server) as reader:
        assert list(reader.do_action(flight.Action("health", encode({"space": "shop"})), options))
        with pytest.raises(flight.FlightUnavailableError):
            list(reader.do_action(flight.Action("health", LARGE[: gate.READER_BYTES + (1 << 20)]), options))
    assert_serves(client(READER), space)


def test_an_accepted_call_gives_back_no_bytes_of_another_call() -> None:
    async def rounds_until_held() -> int:
        client = gate._Client(Mock(), Mock(), "127.0.0.1")
        client.transport = client.other.transport = Mock()
        for number in range(1000):
            client.accept(gate.READER_BYTES, 100)  # a small call, between the parts of a large message
            if client.is_held:
                return number
            client.data_received(bytes(1 << 20))
        return 1000

    assert asyncio.run(rounds_until_held()) <= 21


def test_a_reader_makes_any_number_of_calls(
    client: Callable[[str], Client], space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gives back all bytes that it took, with those of its headers and its answer."""
    monkeypatch.setattr(gate, "READER_BYTES", 64 << 10)
    space.put_many("orders", [b"x" * 65_536] * 200)
    reader = client(READER)
    for _ in range(600):
        reader.act("health")
    for _ in range(10):
        asked = {"options": {"queue": "orders"}, "schema": json.dumps({"type": "struct", "fields": [BODY]})}
        assert sum(batch.num_rows for ticket in reader.plan(**asked) for batch in reader.read(ticket)) == 200


def test_one_connection_too_many_of_a_reader_is_refused_and_the_others_are_served(
    client: Callable[[str], Client], space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MOST_OF_A_TOKEN", 2)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {READER}".encode())])
    health = flight.Action("health", encode({"space": "shop"}))
    local = [("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        server = client(READER).address.server
        *served, last = [stack.enter_context(flight.FlightClient(server, generic_options=local)) for _ in range(3)]
        for _ in range(2):
            for each in served:
                assert list(each.do_action(health, options))
        with pytest.raises(flight.FlightError, match="the token has 2 connections of clients that may only read"):
            list(last.do_action(health, options))
        assert_serves(client(WRITER), space)


def test_a_refused_client_has_one_line_in_the_log(
    client: Callable[[str], Client], caplog: pytest.LogCaptureFixture
) -> None:
    with flight.FlightClient(client(READER).address.server) as stranger, pytest.raises(flight.FlightError):
        list(stranger.do_action(flight.Action("health", encode({"space": "shop"}))))
    client(READER).act("health")
    assert caplog.messages == ["a call was refused: it has no token"]


def test_another_program_cannot_listen_at_the_other_address_of_localhost(server: Any) -> None:
    """A client of ``localhost`` takes either address, and shows its token to the program there."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with pytest.raises(OSError, match=r"in use|assign requested|not supported"):
            socket.create_server((host, server.port), family=family).close()


def test_only_the_owner_reaches_the_socket_behind_the_gate(server: Any, client: Callable[[str], Client]) -> None:
    directory = Path(server._gate.path).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(AccessDenied):
        client("x" * 32).act("health")
    server.close()
    assert not directory.exists()
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name == directory.name]
