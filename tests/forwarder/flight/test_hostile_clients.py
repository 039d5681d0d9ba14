"""Clients send wrong requests: the server answers each with one clear error, keeps nothing of it, and goes on."""

import os
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import spool
from forwarder.flight.address import Unreachable
from forwarder.flight.client import Client
from forwarder.flight.codes import MOST_BYTES, encode
from forwarder.flight.tickets import ReadTicket, seal
from forwarder.serving.access import Tokens
from spool.engine.tasks import Missing
from spool.errors import InvalidArgument, ProtocolError, QueueNotFound, SpoolError, SystemFailure
from tests.forwarder.flight.conftest import Serve, address_of
from tests.forwarder.flight.test_four_ways import send, writing
from tests.shown import bodies, left_over

READER, WRITER = "r" * 32, "w" * 32


@pytest.fixture
def guarded(serve: Serve, space: spool.Space, tmp_path: Path) -> Callable[[str], Client]:
    """Make clients, with a token each, of a server with a second space."""
    spool.create(tmp_path / "other").close()
    tokens = Tokens([f"{READER} shop:read  # a comment", "", f"{WRITER} shop:write"])
    server = serve(tokens, spaces={"shop": space.path, "other": str(tmp_path / "other")})
    return lambda token: Client.of(address_of(server), token, None, None)


@pytest.fixture
def client(address: str) -> Client:
    return Client.of(address, None, None, None)


def reading(**options: str) -> dict[str, Any]:
    from forwarder.dataframes.columns import columns

    return {"options": options, "schema": columns(True).json()}


def assert_serves(client: Client, space: spool.Space) -> None:
    space.put("replies", b"still there")
    [ticket] = client.plan(**reading(queue="replies"))
    assert sum(batch.num_rows for batch in client.read(ticket)) == len(bodies(space, "replies"))


# -- who ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "x" * 32, READER + " ", READER[:-1], f"{READER},{WRITER}"])
def test_a_client_without_a_known_token_is_refused(guarded: Callable[[str], Client], token: str) -> None:
    with pytest.raises(SystemFailure, match="token is missing or unknown"):
        guarded(token).act("health")


def test_a_token_gives_the_rights_of_its_line(guarded: Callable[[str], Client], space: spool.Space) -> None:
    reader, writer = guarded(READER), guarded(WRITER)
    assert reader.act("health")["number"] == space.engine.durable_number()
    assert_serves(reader, space)
    with pytest.raises(SystemFailure, match="does not give the right to write 'shop'"):
        reader.act("begin", key=None, **writing())
    session = writer.act("begin", key=None, **writing())["session"]
    with pytest.raises(SystemFailure, match="right to write"):
        send(reader, session, ["a"])
    other = Client(writer.address._replace(space="other"), WRITER)
    with pytest.raises(SystemFailure, match="does not give the right to read 'other'"):
        other.act("health")


def test_a_client_finds_its_token(
    guarded: Callable[[str], Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes before the variable."""
    server = guarded("").address
    address = f"spool+grpc://{server.server.partition('//')[2]}/shop"
    (tmp_path / "token").write_text(f"{READER}\n")
    monkeypatch.setenv("XASPOOL_TOKEN", WRITER)
    assert Client.of(address, None, None, None).token == WRITER
    assert Client.of(address, None, str(tmp_path / "token"), None).act("health")["number"] >= 0
    with pytest.raises(InvalidArgument, match="the token cannot be read"):
        Client.of(address, None, str(tmp_path / "none"), None)


def test_a_token_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{READER} shop:read\n")
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Tokens.of_file(str(path))
    path.chmod(0o600)
    assert Tokens.of_file(str(path)).exist
    for wrong, why in (("short", "less than 16"), (f"{READER} shop", "SPACE:read"), ("# nothing", "has no token")):
        path.write_text(wrong)
        with pytest.raises(InvalidArgument, match=why) as refused:
            Tokens.of_file(str(path))
        assert READER not in str(refused.value)


def test_a_client_without_tls_and_one_without_the_certificate_reach_nothing(serve: Serve, tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    assert os.system(f"cd {tmp_path} && {command} -keyout key.pem -out cert.pem 2>/dev/null") == 0
    certificate, key = (tmp_path / "cert.pem").read_bytes(), (tmp_path / "key.pem").read_bytes()
    server = serve(certificate=certificate, key=key, host="localhost")
    address = f"spool+grpc+tls://localhost:{server.port}/shop"
    assert Client.of(address, None, None, str(tmp_path / "cert.pem")).act("health")["number"] >= 0
    for wrong in (Client.of(address, None, None, None), Client.of(address.replace("+tls", ""), None, None, None)):
        with pytest.raises(Unreachable):
            wrong.act("health")


# -- what --------------------------------------------------------------------------------------------------------------


def test_requests_with_wrong_values_are_refused(client: Client, space: spool.Space) -> None:
    session = client.act("begin", key=None, **writing())["session"]
    vote = send(client, session, ["a"])["vote"]
    for action, values, kind, why in (
        ("nothing", {}, ProtocolError, "no action"),
        ("begin", {"key": None, "options": {"queue": "none"}, "schema": writing()["schema"]}, QueueNotFound, "none"),
        ("begin", {"key": 7, **writing()}, ProtocolError, "'key'"),
        ("begin", {"key": None, "options": {}, "schema": "[]"}, ProtocolError, "wrong value"),
        ("begin", {"key": None, "options": {"path": "/etc", "queue": "../x"}, "schema": "{}"}, SpoolError, "wrong"),
        ("commit", {"session": session, "votes": [vote, vote], "rows": 2, "batch": None}, InvalidArgument, "twice"),
        ("commit", {"session": session, "votes": [[[1, b"x", b""], 1, 1]], "rows": 1, "batch": None}, InvalidArgument,
         "not of this write"),
        ("commit", {"session": b"another", "votes": [vote], "rows": 1, "batch": None}, SpoolError, "has ended"),
        ("commit", {"session": session, "votes": [1], "rows": 1, "batch": None}, ProtocolError, "wrong value"),
        ("stream", {**reading(), "call": "stop", "start": None, "limit": None, "target": None}, ProtocolError, "stop"),
        ("health", {"more": 1}, ProtocolError, "unknown values: more"),
    ):  # fmt: skip
        with pytest.raises(kind, match=why):
            client.act(action, **values)
    assert bodies(space) == []
    client.act("commit", session=session, votes=[vote], rows=1, batch=None)
    assert bodies(space) == [b"a"]
    assert_serves(client, space)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"[" * 5000, msgpack.packb({"version": 2}), msgpack.packb([1]), b"\x81" * 5000,
             b"x" * (MOST_BYTES + 1)],
    ids=["empty", "no msgpack", "text", "version", "list", "deep", "large"],
)  # fmt: skip
def test_bytes_that_are_no_request_are_refused(address: str, client: Client, space: spool.Space, data: bytes) -> None:
    connection = flight.FlightClient(client.address.server)
    for call in (
        lambda: list(connection.do_action(flight.Action("begin", data))),
        lambda: connection.get_flight_info(flight.FlightDescriptor.for_command(data)),
        lambda: connection.do_get(flight.Ticket(data)).read_all(),
    ):
        with pytest.raises(flight.FlightError):
            call()
    assert_serves(client, space)


def test_a_ticket_that_the_server_has_not_sealed_is_refused(client: Client, space: spool.Space) -> None:
    space.put("orders", b"one")
    [ticket] = client.plan(**reading(queue="orders"))
    forged = seal(b"another key", ReadTicket("shop", reading()["schema"], Missing.RELOCATE, ()))
    for wrong in (forged, ticket[:-1], ticket[:40] + b"\0" + ticket[41:], b"\0" * len(ticket)):
        with pytest.raises(ProtocolError, match="ticket is not of this server"):
            list(client.read(wrong))
    assert_serves(client, space)


def test_rows_with_other_columns_are_refused(client: Client, space: spool.Space) -> None:
    session = client.act("begin", key=None, **writing())["session"]
    batch = pa.RecordBatch.from_arrays([pa.array([1])], ["number"])
    with pytest.raises(InvalidArgument, match="other columns"):
        client.write(iter([batch]), batch.schema, session=session, partition=0, attempt=0, **writing())
    assert_serves(client, space)


def test_a_branch_votes_once(client: Client, space: spool.Space) -> None:
    session = client.act("begin", key=None, **writing())["session"]
    vote = send(client, session, ["a"])["vote"]
    with pytest.raises(ProtocolError, match="voted already"):
        send(client, session, ["b"])
    client.act("commit", session=session, votes=[vote], rows=1, batch=None)
    assert bodies(space) == [b"a"]


def test_half_a_stream_leaves_nothing(client: Client, space: spool.Space) -> None:
    session = client.act("begin", key=None, **writing())["session"]
    values = {"space": "shop", "session": session, "partition": 0, "attempt": 0, **writing()}
    connection = flight.FlightClient(client.address.server)
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"] * 1000)], ["body"])
    writer, _ = connection.do_put(flight.FlightDescriptor.for_command(encode(values)), batch.schema)
    writer.write_batch(batch)
    del writer
    connection.close()
    client.act("abort", session=session, key=None)
    while left_over(space.path):
        pass
    assert bodies(space) == []
    assert_serves(client, space)


def test_an_endless_stream_is_refused_and_leaves_nothing(serve: Serve, space: spool.Space) -> None:
    client = Client.of(address_of(serve(most_bytes=10 << 20)), None, None, None)
    session = client.act("begin", key=None, **writing())["session"]
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(1 << 20)])], ["body"])
    with pytest.raises(InvalidArgument, match="at most 10,485,760 bytes: divide the rows among more tasks"):
        client.write(repeat(batch), batch.schema, session=session, partition=0, attempt=0, **writing())
    client.act("abort", session=session, key=None)
    assert left_over(space.path) == []
    assert bodies(space) == []
    assert_serves(client, space)


def test_a_write_of_a_stream_ends_the_one_before(client: Client, space: spool.Space) -> None:
    first = client.act("begin", key="checkpoint 1", **writing())["session"]
    vote = send(client, first, ["a"])["vote"]
    client.act("begin", key="checkpoint 1", **writing())
    with pytest.raises(SpoolError, match="has ended"):
        client.act("commit", session=first, votes=[vote], rows=1, batch=None)
    assert left_over(space.path) == []
