"""Clients send wrong requests: the server answers each with one clear error, keeps nothing of it, and goes on."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import spool
from forwarder.dataframes.columns import columns
from forwarder.network.arrow import pieces
from forwarder.network.server_calls import act, read, write
from forwarder.network.server_options import connection_of, is_remote
from forwarder.web import web_call, writes
from forwarder.web.tickets import ReadTicket, seal
from forwarder.web.tokens import TokenFile, Tokens
from forwarder.web.web_call import Server
from spool.client.connection import HttpConnection
from spool.client.problems import Unreachable
from spool.engine.remote import Missing
from spool.errors import (
    AccessDenied,
    InvalidArgument,
    ProtocolError,
    QueueNotFound,
    SpoolError,
    SystemFailure,
    TransactionRolledBack,
)
from tests.forwarder.network.conftest import Serve
from tests.forwarder.network.test_four_ways import begin, newest, plan, rows, send
from tests.shown import bodies, left_over

READER, WRITER, AUDITOR, OTHER, SECOND = "r" * 32, "w" * 32, "a" * 32, "o" * 32, "s" * 32


@pytest.fixture
def guarded(serve: Serve, space: spool.Space, tmp_path: Path) -> Callable[[str], HttpConnection]:
    """Make clients, with a token each, of a server with a second space."""
    spool.create(tmp_path / "other").close()
    tokens = Tokens(
        [
            f"{READER} shop:read  # a comment", "", f"{WRITER} shop:write", f"{AUDITOR} shop:subscribe=audit",
            f"{OTHER} shop:subscribe=billing shop:subscribe=other", f"{SECOND} shop:write",
        ]
    )  # fmt: skip
    server = serve(tokens, spaces={"shop": space.path, "other": str(tmp_path / "other")})
    return lambda token: HttpConnection.of(server.address("shop"), token, None, None)


@pytest.fixture
def client(address: str) -> HttpConnection:
    return HttpConnection.of(address)


def reading(**options: str) -> dict[str, Any]:
    return {"options": options, "columns": columns(True).names}


def assert_serves(client: HttpConnection, space: spool.Space) -> None:
    space.put("replies", b"still there")
    [ticket] = plan(client, **reading(queue="replies"))
    assert sum(batch.num_rows for batch in read(client, ticket)) == len(bodies(space, "replies"))


# -- who ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "x" * 32, READER[:-1], f"{READER},{WRITER}"])
def test_a_client_without_a_known_token_is_refused(guarded: Callable[[str], HttpConnection], token: str) -> None:
    with pytest.raises(
        PermissionError, match=r"sends no token: give a token|token is unknown: the server's --token-file"
    ) as refused:
        newest(guarded(token))
    assert isinstance(refused.value, spool.AccessDenied)
    assert not isinstance(refused.value, spool.SystemFailure), "the engine has met no impossible state"


def test_a_token_gives_the_rights_of_its_line(guarded: Callable[[str], HttpConnection], space: spool.Space) -> None:
    reader, writer = guarded(READER), guarded(WRITER)
    assert newest(reader) == space.engine.durable_number()
    assert_serves(reader, space)
    with pytest.raises(AccessDenied, match="does not give the right shop:put=orders"):
        act(reader, "begin", queue="orders")
    session = begin(writer)
    with pytest.raises(TransactionRolledBack):
        send(reader, session, ["a"])
    with pytest.raises(SystemFailure, match="has no space 'other' for this client: it serves shop"):
        newest(replace(writer, space="other"))


def test_the_log_names_refused_calls_but_no_token(
    guarded: Callable[[str], HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    for token, action in (("", "newest"), ("x" * 32, "newest"), (READER, "begin")):
        with pytest.raises(AccessDenied):
            newest(guarded(token)) if action == "newest" else begin(guarded(token))
    lines = [record.getMessage() for record in caplog.records if record.name == "spool.server"]
    assert lines == [
        "a call was refused: 127.0.0.1: it has no token", "a call was refused: 127.0.0.1: its token is unknown",
        "a call was refused: 127.0.0.1: the token in line 1: "
        "the token does not give the right shop:put=orders: it has rights to shop",
    ]  # fmt: skip


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    refusals = Server(Tokens())._strangers
    monkeypatch.setattr("forwarder.refusals.monotonic", lambda: now[0])
    refusals._begun = 0.0
    for _ in range(1_000):
        refusals.record("no token")
    assert len(caplog.records) == 20
    now[0] = 61.0
    refusals.record("no token")
    assert [record.getMessage() for record in caplog.records[20:]] == [
        "980 further calls without a known token were refused", "a call was refused: no token",
    ]  # fmt: skip


def test_calls_without_a_known_token_do_not_hide_the_refused_calls_of_a_known_one(
    guarded: Callable[[str], HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(25):
        with pytest.raises(AccessDenied):
            newest(guarded("x" * 32))
    with pytest.raises(AccessDenied):
        act(guarded(READER), "begin", queue="orders")
    assert "the token does not give the right shop:put=orders" in caplog.messages[-1]


def test_requests_with_wrong_values_cannot_fill_the_log(
    guarded: Callable[[str], HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    reader, forged = guarded(READER), "x\nspool-serve: warning: forged" + "x" * 10_000
    for _ in range(30):
        with pytest.raises(InvalidArgument, match="wrong value"):
            plan(reader, options={}, columns=[forged])
    assert len(caplog.messages) == 20
    assert max(map(len, caplog.messages)) < 600
    assert all(message.isprintable() for message in caplog.messages)
    told = "a call was refused: 127.0.0.1: the token in line 1: the request has a wrong value: "
    assert caplog.messages[0].startswith(told)


def test_a_refused_call_with_a_long_name_writes_a_short_line(
    guarded: Callable[[str], HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AccessDenied):
        act(guarded(READER), "begin", queue="q" * 127)
    [line] = caplog.messages
    assert "the token does not give the right shop:put=qqq" in line
    assert len(line) < 600


def test_a_token_that_may_read_begins_a_bounded_number_of_reads_whose_rows_no_client_takes(
    guarded: Callable[[str], HttpConnection], space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_call, "MOST_OF_A_TOKEN", 3)
    space.put_many("orders", [bytes(100_000)] * 300)
    reader, other, writer = guarded(READER), guarded(AUDITOR), guarded(WRITER)
    [ticket] = plan(reader, **reading(queue="orders", partitionBytes="1g"))
    begun = [read(reader, ticket) for _ in range(3)]
    for each in begun:
        next(each)
    with pytest.raises(SystemFailure, match="the token has 3 reads"):
        next(read(reader, ticket))
    assert all(next(read(client, ticket)).num_rows for client in (other, *[writer] * 5))
    assert sum(batch.num_rows for batch in begun[0]) > 0
    [small] = plan(reader, **reading(queue="orders", body="false", partitionBytes="1g"))
    assert sum(batch.num_rows for batch in read(reader, small)) == 300, "the end of a read makes room"
    for each in begun:
        each.close()


def test_one_token_cannot_take_the_writes_of_the_others(
    guarded: Callable[[str], HttpConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "MOST_OF_A_TOKEN", 3)
    begun = [begin(guarded(WRITER)) for _ in range(3)]
    with pytest.raises(SystemFailure, match="the token has 3 writes in progress: end one"):
        act(guarded(WRITER), "begin", queue="orders")
    assert begin(guarded(SECOND))
    act(guarded(WRITER), begun[0], "abort")
    assert begin(guarded(WRITER))


def test_a_client_finds_its_token(
    guarded: Callable[[str], HttpConnection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes before the variable."""
    address = f"{guarded('').server}/shop"
    (tmp_path / "token").write_text(f"{READER}\n")
    monkeypatch.setenv("XASPOOL_TOKEN", WRITER)
    assert HttpConnection.of(address).token == WRITER
    assert newest(HttpConnection.of(address, None, str(tmp_path / "token"), None)) >= 0
    with pytest.raises(InvalidArgument, match="the token cannot be read"):
        HttpConnection.of(address, None, str(tmp_path / "none"), None)


def test_a_client_with_an_unknown_token_learns_the_place_of_this_token(
    guarded: Callable[[str], HttpConnection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{guarded('').server}/shop"
    (tmp_path / "token").write_text("x" * 32)
    for given, place in (
        ((None, str(tmp_path / "token"), None), "the file .*/token"),
        (("y" * 32, None, None), "the option token"),
        ((None, None, None), "the environment variable XASPOOL_TOKEN"),
    ):
        monkeypatch.setenv("XASPOOL_TOKEN", "z" * 32)
        with pytest.raises(AccessDenied, match=rf"token is unknown: .*--token-file.*\(it comes from {place}\)"):
            newest(HttpConnection.of(address, *given))


def test_an_address_of_the_protocol_before_names_the_address_of_today() -> None:
    options = {"path": "spool+grpc+tls://queues.example:8815/shop", "tokenFile": "token"}
    assert is_remote(options), "otherwise tokenFile would be an unknown option"
    with pytest.raises(InvalidArgument, match=r"write https://queues\.example:8815/shop"):
        connection_of({"path": options["path"]})


def test_a_token_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{READER} shop:read\n")
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Tokens.of_file(str(path))
    path.chmod(0o600)
    assert Tokens.of_file(str(path)).exist
    for wrong, why in (
        ("short", "less than 16"),
        (f"{READER} shop", "SPACE:look"),
        (f"{READER} a/b:look", "SPACE:look"),
        (f"{READER} shop:subscribe", "SPACE:subscribe=NAME"),
        (f"{READER} shop:subscribe=", "SPACE:subscribe=NAME"),
        ("# nothing", "has no token"),
    ):
        path.write_text(wrong)
        with pytest.raises(InvalidArgument, match=why) as refused:
            Tokens.of_file(str(path))
        assert READER not in str(refused.value)


def test_a_changed_file_of_tokens_counts_without_a_restart(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong file changes no token, and is logged once."""
    path, now = tmp_path / "tokens", [0.0]
    path.touch(0o600)
    path.write_text(f"{READER} shop:read\n")
    server = serve(TokenFile(str(path), lambda: now[0]))

    def has_access(token: str) -> bool:
        now[0] += 2
        try:
            return newest(HttpConnection.of(server.address("shop"), token)) >= 0
        except AccessDenied:
            return False

    assert (has_access(READER), has_access(WRITER)) == (True, False)
    path.write_text(f"# the reader has gone\n{WRITER} shop:write\n")
    assert (has_access(READER), has_access(WRITER)) == (False, True)
    caplog.clear()
    path.write_text("short\n")
    assert (has_access(WRITER), has_access(WRITER)) == (True, True)
    [line] = caplog.messages
    assert "tokens of before remain valid" in line
    assert f"{path}: the token in line 1 has less than 16 characters" in line


def test_a_right_to_a_space_that_is_not_served_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    serve(Tokens([f"{READER} shop:read stop:read"]))
    assert caplog.messages == ["a token has a right to the space stop, and the server serves only shop"]


def test_a_certificate_or_a_key_of_a_wrong_form_is_refused_with_the_next_step(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out cert.pem 2>/dev/null"
    locked = "openssl pkey -in key.pem -aes256 -passout pass:secret -out locked.pem"
    older = "openssl rsa -traditional -in key.pem -aes256 -passout pass:secret -out older.pem 2>/dev/null"
    binary = "openssl x509 -in cert.pem -outform der -out cert.der"
    assert os.system(f"{made} && {locked} && {older} && {binary}") == 0
    for certificate, key, advice in (
        ("cert.der", "key.pem", "the file of --tls-cert has no certificate as PEM"),
        ("key.pem", "key.pem", "the file of --tls-cert has no certificate as PEM"),
        ("cert.pem", "cert.pem", "the file of --tls-key has no private key as PEM"),
        ("cert.pem", "locked.pem", "has a password: give a key without one"),
        ("cert.pem", "older.pem", "has a password: give a key without one"),
    ):
        with pytest.raises(InvalidArgument, match=advice):
            serve(certificate=certificate, key=key, host="localhost")


def test_a_client_without_tls_and_one_without_the_certificate_reach_nothing(serve: Serve, tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    assert os.system(f"cd {tmp_path} && {command} -keyout key.pem -out cert.pem 2>/dev/null") == 0
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    address = serve(certificate=certificate, key=key, host="localhost").address("shop")
    assert newest(HttpConnection.of(address, None, None, str(tmp_path / "cert.pem"))) >= 0
    assert os.system(f"cd {tmp_path} && {command} -keyout key2.pem -out other.pem 2>/dev/null") == 0
    with pytest.raises(InvalidArgument, match="private key does not belong to the certificate"):
        serve(certificate=certificate, key=str(tmp_path / "key2.pem"), host="localhost")
    plain = serve(host="localhost")
    for wrong, certificate_file, advice in (
        (address, None, r"cannot be used: no authority .*: give the option tlsCertificate"),
        (address, "other.pem", r"other.pem did not sign its certificate"),
        (address.replace("https", "http"), None, "write https://"),
        (address.replace("localhost", "127.0.0.1"), "cert.pem", "its certificate is for another name"),
        (f"https://localhost:{plain.port}/shop", "cert.pem", "it does not speak TLS"),
        ("http://nowhere.invalid:8815/shop", None, "its name has no address"),
    ):
        chosen = None if certificate_file is None else str(tmp_path / certificate_file)
        with pytest.raises(Unreachable, match=advice):
            newest(HttpConnection.of(wrong, None, None, chosen))
    with pytest.raises(InvalidArgument, match=r"key.pem has no certificate"):
        HttpConnection.of(address, None, None, str(tmp_path / "key.pem"))


# -- subscriptions -----------------------------------------------------------------------------------------------------


def subscribe(client: HttpConnection, call: str, start: Any = None, **options: str) -> Any:
    """Make a call of a stream of the queue orders with the subscription audit."""
    asked = reading(queue="orders", **{"subscription": "audit", **options})
    return act(client, "stream", call=call, start=start, **asked)["offset"]


def kept(client: HttpConnection, start: Any, end: Any) -> list[bytes]:
    tickets = plan(client, start=start, end=end, **reading(queue="orders", subscription="audit"))
    return [body for ticket in tickets for batch in read(client, ticket) for body in batch.column("body").to_pylist()]


def test_a_message_that_is_kept_for_a_subscription_outlives_clients_without_its_right(
    guarded: Callable[[str], HttpConnection], space: spool.Space
) -> None:
    """They can neither advance, replace nor read the subscription, even with its name and offsets."""
    auditor = guarded(AUDITOR)
    start = subscribe(auditor, "initialOffset")
    space.put("orders", b"kept")
    space.get("orders")
    end = subscribe(auditor, "latestOffset", start)
    before = space.subscriptions()
    for token in (READER, WRITER, OTHER):
        for call, given, options in (
            ("initialOffset", None, {}),
            ("initialOffset", None, {"failOnDataLoss": "false"}),
            ("latestOffset", {**start, "since": 0}, {"failOnDataLoss": "false"}),
            ("latestOffset", start, {"subscriptionExpiry": "366d"}),
            ("commit", end, {}),
            ("reportLatestOffset", None, {}),
        ):
            with pytest.raises(AccessDenied, match=r"right shop:subscribe=audit"):
                subscribe(guarded(token), call, given, **options)
        with pytest.raises(AccessDenied, match="right shop:subscribe=audit"):
            kept(guarded(token), start, end)
    assert space.subscriptions() == before
    assert kept(auditor, start, end) == [b"kept"]
    subscribe(auditor, "commit", end)
    assert space.subscriptions()["audit"].unread == 0


def test_a_client_with_the_right_to_read_makes_the_space_keep_nothing(
    guarded: Callable[[str], HttpConnection], space: spool.Space
) -> None:
    reader = guarded(READER)
    plain = reading(queue="orders")
    start = act(reader, "stream", call="initialOffset", **plain)["offset"]
    space.put("orders", b"a")
    end = act(reader, "stream", call="latestOffset", start=start, **plain)["offset"]
    act(reader, "stream", call="commit", start=end, **plain)
    with pytest.raises(AccessDenied, match="right shop:subscribe=mine"):
        subscribe(reader, "initialOffset", subscription="mine")
    assert space.subscriptions() == {}
    assert space.engine.durable_number() == end["number"], "it has committed nothing"


def test_a_client_with_several_rights_has_each(guarded: Callable[[str], HttpConnection], space: spool.Space) -> None:
    for name in ("billing", "other"):
        subscribe(guarded(OTHER), "initialOffset", subscription=name)
    assert space.subscriptions().keys() == {"billing", "other"}
    with pytest.raises(AccessDenied, match="right shop:put"):
        act(guarded(OTHER), "begin", queue="orders")


@pytest.mark.parametrize("expiry", ["367d", "100000000d", "99999999999999999999d", "0d", "-1d", "1e9d"])
def test_a_subscription_has_a_bounded_life(client: HttpConnection, space: spool.Space, expiry: str) -> None:
    with pytest.raises(InvalidArgument, match=r"subscriptionExpiry is .*, at most 366d"):
        subscribe(client, "initialOffset", subscriptionExpiry=expiry)
    assert space.subscriptions() == {}
    subscribe(client, "initialOffset", subscriptionExpiry="366d")


def test_an_offset_of_the_future_releases_nothing(client: HttpConnection, space: spool.Space) -> None:
    """Otherwise messages of later commits would be lost to the subscription."""
    start = subscribe(client, "initialOffset")
    space.put("orders", b"a")
    newest = space.engine.durable_number()
    with pytest.raises(InvalidArgument, match=f"read up to commit {newest + 1}: the last one is {newest}"):
        subscribe(client, "commit", {**start, "number": newest + 1})
    space.put("orders", b"b")
    space.get_many("orders", 2)
    assert kept(client, start, subscribe(client, "latestOffset", start)) == [b"a", b"b"]


@pytest.mark.parametrize(
    "offset",
    [{}, [], {"number": -1}, {"number": 2**39}, {"number": True}, {"number": 1.5}, {"number": "1"},
     {"number": 1, "since": 2**63}, {"number": 1, "more": 1}, {"since": 1}],
    ids=str,
)  # fmt: skip
def test_an_offset_beyond_its_bounds_is_refused(client: HttpConnection, space: spool.Space, offset: Any) -> None:
    space.put("orders", b"a")
    for options in ({}, {"subscription": "audit"}):
        asked = reading(queue="orders", **options)
        for call in ("latestOffset", "commit"):
            with pytest.raises(InvalidArgument):
                act(client, "stream", call=call, start=offset, **asked)
        with pytest.raises(InvalidArgument):
            plan(client, start=offset, end={"number": 1, "since": 1}, **asked)
        with pytest.raises(InvalidArgument):
            plan(client, start={"number": 0}, end=offset, **asked)
    assert space.subscriptions() == {}
    assert_serves(client, space)


@pytest.mark.parametrize("names", [3, "x", [3], [None], [["body"]], {"x": 1}, ["nothing"], ["body\0"]], ids=str)
def test_columns_that_are_none_are_a_wrong_value(client: HttpConnection, space: spool.Space, names: Any) -> None:
    for call in (
        lambda: plan(client, options={"queue": "orders"}, columns=names),
        lambda: act(client, "stream", call="initialOffset", options={}, columns=names),
    ):
        with pytest.raises(InvalidArgument, match="wrong value"):
            call()
    assert_serves(client, space)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_token_that_may_read_takes_no_descriptors_and_little_memory_by_many_streams(
    guarded: Callable[[str], HttpConnection], space: spool.Space
) -> None:
    """The readers of all streams use the server's open space, and those of one token are few."""
    reader = guarded(READER)
    space.put("orders", b"a")

    def newest(token: HttpConnection, first: int) -> Any:
        asked = reading(queue="orders", **{"from": str(first)})
        return act(token, "stream", call="reportLatestOffset", **asked)["offset"]

    found = newest(guarded(WRITER), 1)
    assert found == newest(reader, 1)
    before = open_files()
    for first in range(2, 40):
        assert newest(reader, first) == found
    assert open_files() < before + 16, "the space was opened again"
    assert newest(guarded(WRITER), 1) == found
    assert_serves(reader, space)


def test_a_stream_with_options_beyond_their_bounds_is_refused(client: HttpConnection, space: spool.Space) -> None:
    asked = reading(queue=",".join(f"q{number}" for number in range(200_000)))
    with pytest.raises(InvalidArgument, match="limit is"):
        act(client, "stream", call="reportLatestOffset", **asked)
    assert_serves(client, space)


def test_a_read_sends_a_body_once_if_its_column_is_named_often(client: HttpConnection, space: spool.Space) -> None:
    """Otherwise a small request would make the server send, and hold, each message as often as the client likes."""
    space.put("orders", b"a")
    with pytest.raises(InvalidArgument, match="the column body occurs 40 times: name it once"):
        plan(client, options={"queue": "orders"}, columns=["body"] * 40)
    with pytest.raises(InvalidArgument, match="the column body occurs 2 times"):
        act(client, "stream", call="initialOffset", options={}, columns=["body", "body"])
    assert_serves(client, space)


def test_a_plan_with_an_end_has_a_start(client: HttpConnection) -> None:
    for start in ({}, {"start": None}, {"start": {}}):
        with pytest.raises(InvalidArgument, match="no offset of a stream"):
            plan(client, end={"number": 1}, **start, **reading(queue="orders"))


# -- what --------------------------------------------------------------------------------------------------------------


def test_requests_with_wrong_values_are_refused(client: HttpConnection, space: spool.Space) -> None:
    session = begin(client)
    vote = send(client, session, ["a"])["vote"]
    for action, values, kind, why in (
        ("nothing", {}, SystemFailure, "there is no call"),
        ("begin", {"queue": "none"}, QueueNotFound, "none"),
        ("begin", {"key": 7, "queue": "orders"}, InvalidArgument, "'key'"),
        ("begin", {"queue": 7}, InvalidArgument, "queue"),
        ("begin", {"queue": "../x"}, InvalidArgument, "queue"),
        ("commit", {"session": session, "votes": [vote, vote], "rows": 2, "batch": None}, InvalidArgument, "twice"),
        ("commit", {"session": session, "votes": [["00", "", 1, 1]], "rows": 1, "batch": None}, InvalidArgument,
         "not of this write"),
        ("commit", {"session": "another", "votes": [vote], "rows": 1, "batch": None}, SpoolError, "has ended"),
        ("commit", {"session": session, "votes": [1], "rows": 1, "batch": None}, InvalidArgument, "wrong value"),
        ("stream", {**reading(), "call": "stop", "start": None, "limit": None, "target": None}, SpoolError, "stop"),
        *[("stream", {**reading(), "call": "latestOffset", "start": {"number": 0}, "limit": limit, "target": target},
           InvalidArgument, "wrong value") for limit, target in ((["rows", 0], None), (["bytes", -1], None),
           (["rows", 2**64 - 1], None), (["rows", 1.5], None), (["rows"], None), (["days", 1], None), (None, -1),
           (None, 2**39))],
        *[("commit", {"session": session, "votes": [vote], "rows": 1, "batch": batch}, InvalidArgument, "wrong value")
          for batch in ([], ["a"], ["a", -1, ""], ["a", 2**63, ""], ["a", 1, 7], ["a", 1, "x" * 5000], ["", 1, ""],
          ["a" * 256, 1, ""], ["a", "1", ""])],
        *[("commit", {"session": session, "votes": votes, "rows": number, "batch": None}, SpoolError, "wrong value")
          for votes, number in (([vote], -1), ([vote], 2**63), ([[*vote[:2], -1, 0]], 1),
          ([[*vote[:2], 1, 2**32]], 1))],
        ("commit", {"session": session, "votes": [vote], "rows": 2**40, "batch": None}, InvalidArgument, "at most"),
    ):  # fmt: skip
        with pytest.raises(kind, match=why):
            session_of = [values.pop("session")] if "session" in values else []
            act(client, *session_of, action, **values)
    assert bodies(space) == []
    act(client, session, "commit", votes=[vote], rows=1)
    assert bodies(space) == [b"a"]
    assert_serves(client, space)


@pytest.mark.parametrize(
    "data", [b"[" * 5000, b"{", b"[1]", b"\xff", b"x" * (17 << 20)], ids=["deep", "half", "list", "bytes", "large"]
)
def test_bytes_that_are_no_request_are_refused(address: str, client: HttpConnection, space: spool.Space, data: bytes):
    for path in (["begin"], ["plan"], ["read"], [begin(client), "commit"], [begin(client), "write"]):
        with pytest.raises(InvalidArgument):
            client.call("POST", "spark", *path, content=data, params={"task": 0, "attempt": 0})
    assert_serves(client, space)


def test_a_ticket_that_the_server_has_not_sealed_is_refused(serve: Serve, space: spool.Space) -> None:
    """A client knows its token, which may be the only one of the server."""
    client = HttpConnection.of(serve(Tokens([f"{READER} shop:read"])).address("shop"), READER)
    space.put("orders", b"one")
    [ticket] = plan(client, **reading(queue="orders"))
    keys = b"another key", Tokens([f"{READER} shop:read"]).key
    forged = [seal(key, ReadTicket("shop", [], ["body"], Missing.RELOCATE, ())) for key in keys]
    for wrong in (*forged, ticket[:-1], ticket[:40] + b"\0" + ticket[41:], b"\0" * len(ticket)):
        with pytest.raises(InvalidArgument, match="ticket is not of this server"):
            list(read(client, wrong))
    assert_serves(client, space)


def test_rows_with_other_columns_are_refused(client: HttpConnection, space: spool.Space) -> None:
    session = begin(client)
    batch = pa.RecordBatch.from_arrays([pa.array([1])], ["number"])
    with pytest.raises(InvalidArgument, match="no use for 'number'"):
        write(client, iter([batch]), batch.schema, session, task=0, attempt=0, queue="orders")
    assert_serves(client, space)


@pytest.mark.parametrize(("partition", "attempt"), [(-1, 0), (2**31, 0), (0, -1), (0, 2**63)])
def test_a_task_has_a_bounded_number(client: HttpConnection, space: spool.Space, partition: int, attempt: int) -> None:
    session = begin(client)
    with pytest.raises(InvalidArgument, match="wrong value"):
        send(client, session, ["a"], attempt, partition)
    assert_serves(client, space)


def test_a_branch_votes_once(client: HttpConnection, space: spool.Space) -> None:
    session = begin(client)
    vote = send(client, session, ["a"])["vote"]
    with pytest.raises(ProtocolError, match="voted already"):
        send(client, session, ["b"])
    act(client, session, "commit", votes=[vote], rows=1)
    assert bodies(space) == [b"a"]


@contextmanager
def half_a_stream(client: HttpConnection, session: str) -> Iterator[None]:
    """During the block, a call of a task has sent some rows, and sends no more."""
    asked = {"task": 1, "attempt": 0, "queue": "orders"}
    batch, leave, begun = rows(*[b"a" * 1000] * 3000), threading.Event(), threading.Event()

    def sent() -> Iterator[Any]:
        yield from list(pieces(batch.schema, [batch]))[:-1]
        begun.set()
        leave.wait()
        raise EOFError

    def call() -> None:
        with suppress(EOFError, SpoolError, httpx.HTTPError):
            client.call("POST", "spark", session, "write", params=asked, content=sent())

    calling = threading.Thread(target=call)
    calling.start()
    begun.wait()
    yield
    leave.set()
    calling.join()


def test_half_a_stream_leaves_nothing(client: HttpConnection, space: spool.Space) -> None:
    session = begin(client)
    with half_a_stream(client, session):
        pass
    act(client, session, "abort")
    while left_over(space.path):
        pass
    assert bodies(space) == []
    assert_serves(client, space)


def test_an_endless_stream_is_refused_and_leaves_nothing(serve: Serve, space: spool.Space) -> None:
    client = HttpConnection.of(serve(most_bytes=10 << 20).address("shop"))
    session = begin(client)
    batch = rows(bytes(1 << 20))
    with pytest.raises(InvalidArgument, match="at most 10,485,760 bytes: divide the rows among more tasks"):
        write(client, repeat(batch), batch.schema, session, task=0, attempt=0, queue="orders")
    act(client, session, "abort")
    assert left_over(space.path) == []
    assert bodies(space) == []
    assert_serves(client, space)


def test_a_write_of_a_stream_ends_the_one_before(client: HttpConnection, space: spool.Space) -> None:
    first = begin(client, key="checkpoint 1")
    vote = send(client, first, ["a"])["vote"]
    act(client, "begin", key="checkpoint 1", queue="orders")
    with pytest.raises(SpoolError, match="has ended"):
        act(client, first, "commit", votes=[vote], rows=1)
    assert left_over(space.path) == []


def test_a_token_does_not_end_the_write_of_another_token_by_the_name_of_its_stream(
    guarded: Callable[[str], HttpConnection], space: spool.Space
) -> None:
    session = begin(guarded(WRITER), key="checkpoint 1")
    vote = send(guarded(WRITER), session, ["a"])["vote"]
    act(guarded(SECOND), "begin", key="checkpoint 1", queue="orders")
    act(guarded(SECOND), "abort", key="checkpoint 1")
    act(guarded(WRITER), session, "commit", votes=[vote], rows=1)
    assert bodies(space) == [b"a"]
