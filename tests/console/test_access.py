"""Requests that must change nothing: of other sites and hosts, without a login, or with a wrong form."""

import contextlib
import gc
import os
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import spool
from forwarder.web import connection_limits
from forwarder.web.sockets import is_loopback, listening
from tests.console import sample
from tests.console.conftest import TOKEN, Served, failed_id, serving
from tests.strides import Stride
from xaspool_console.access import COOKIE, Access, known_hosts, token_of_file
from xaspool_console.app import application
from xaspool_console.quarantine_pages import token_of
from xaspool_console.server import ConsoleServer

EVIL = "http://evil.example"


def changes_of(served: Served) -> dict[str, str]:
    """Return the address of each change, by the address in the application's list."""
    id, left = failed_id(served.space), token_of("left.txt")
    Path(served.space.path, "quarantine", "left.txt").write_bytes(b"left")
    return {
        "/messages/{id}/move": f"/messages/{id}/move",
        "/messages/{id}/redrive": f"/messages/{id}/redrive",
        "/messages/{id}/delete": f"/messages/{id}/delete",
        "/queues/{queue}/redrive": "/queues/errors/redrive",
        "/queues/{queue}/purge": "/queues/errors/purge",
        "/queues/{queue}/resume": "/queues/orders/resume",
        "/transactions/{xid}/commit": f"/transactions/{sample.XID}/commit",
        "/transactions/{xid}/rollback": f"/transactions/{sample.XID}/rollback",
        "/transactions/{xid}/forget": f"/transactions/{sample.XID}/forget",
        "/quarantine/{token}/restore": f"/quarantine/{left}/restore",
        "/quarantine/{token}/delete": f"/quarantine/{left}/delete",
        "/quarantined/restore": "/quarantined/restore",
        "/quarantined/delete": "/quarantined/delete",
    }


def state(space: spool.Space) -> Any:
    """Return all that a change could change."""
    messages = {(entry.id, name) for name in space.queues() for entry in space.entries(name)}
    prepared = sorted(os.listdir(Path(space.path, "prepared")))
    return messages, prepared, space.engine.decisions(), [found.name for found in space.quarantined()]


def posting(served: Served) -> set[str]:
    routes = application(served.console)._app.routes  # type: ignore[attr-defined]
    return {route.path for route in routes if "POST" in route.methods}


def without_address(client: Any, headers: dict[str, str]) -> None:
    """Send the cookie of the login, as a program can, to the addresses outside of the login."""
    headers["Cookie"] = f"{COOKIE}={next(iter(client.cookies.values()))}"
    client.base_url = client.base_url.copy_with(path="/")


FAULTS: dict[str, Callable[[Any, dict[str, str], dict[str, str]], object]] = {
    "no login": lambda client, headers, form: client.cookies.clear(),
    "a login that does not exist": lambda client, headers, form: setattr(
        client, "base_url", client.base_url.copy_with(path=f"/s/{'x' * 43}/")
    ),
    "the cookie without the address of its login": lambda client, headers, form: without_address(client, headers),
    "the address of a login with another cookie": lambda client, headers, form: (
        client.cookies.clear(),
        headers.update(Cookie=f"{COOKIE}={'x' * 43}"),
    ),
    "no token in the form": lambda client, headers, form: form.pop("csrf"),
    "a wrong token in the form": lambda client, headers, form: form.update(csrf="x" * 43),
    "a token that is no ASCII": lambda client, headers, form: form.update(csrf="é"),
    "an other origin": lambda client, headers, form: headers.update(Origin=EVIL),
    "no origin but null": lambda client, headers, form: headers.update(Origin="null"),
    "an origin with our host as its user": lambda client, headers, form: headers.update(
        Origin=f"http://{client.base_url.host}:{client.base_url.port}@evil.example"
    ),
    "an other site": lambda client, headers, form: headers.update({"Sec-Fetch-Site": "cross-site"}),
    "an other port of this machine": lambda client, headers, form: headers.update({"Sec-Fetch-Site": "same-site"}),
    "a request that tells no site": lambda client, headers, form: client.headers.pop("Origin"),
    "an other host": lambda client, headers, form: headers.update(Host="evil.example", Origin=EVIL),
    "an other host with our port": lambda client, headers, form: headers.update(
        Host=f"evil.example:{client.base_url.port}", Origin=f"{EVIL}:{client.base_url.port}"
    ),
    "our host with an other port": lambda client, headers, form: headers.update(Host="127.0.0.1:1"),
    "a form of another type": lambda client, headers, form: headers.update({"Content-Type": "text/plain"}),
    "a form that is too large": lambda client, headers, form: form.update(padding="x" * 20_000),
    "a form with too many fields": lambda client, headers, form: form.update({str(n): "x" for n in range(30)}),
}


def test_a_request_with_one_fault_changes_nothing(changing: Served, stride: Stride) -> None:
    """Each fault at each address with --long, and at some addresses without, which differ from fault to fault."""
    addresses = changes_of(changing)
    assert posting(changing) == {*addresses, "/login", "/logout"}
    before = state(changing.space)
    for place, (fault, spoil) in enumerate(FAULTS.items()):
        for address in [*addresses.values()][place % stride(6) :: stride(6)]:
            with changing.logged_in() as (client, csrf):
                headers: dict[str, str] = {}
                form = {"csrf": csrf, "queue": "oven"}
                spoil(client, headers, form)
                answer = client.post(address, data=form, headers=headers)
            assert answer.status_code in (403, 413, 421), (fault, address, answer.status_code)
            assert len(answer.text.splitlines()) == 1
        assert state(changing.space) == before, fault
        assert changing.records == [], fault


def test_the_same_request_without_a_fault_changes_the_space(changing: Served) -> None:
    addresses = changes_of(changing)
    with changing.logged_in() as (client, csrf):
        answer = client.post(addresses["/messages/{id}/move"], data={"csrf": csrf, "queue": "oven"})
        leads = client.base_url.path.rstrip("/") + addresses["/messages/{id}/move"][:-5]
        assert (answer.status_code, answer.headers["location"]) == (303, leads)
        assert "is in queue oven now" in client.get(addresses["/messages/{id}/move"][:-5]).text
        assert client.post(addresses["/messages/{id}/delete"], data={"csrf": csrf}).status_code == 303
        assert client.post(addresses["/quarantine/{token}/delete"], data={"csrf": csrf}).status_code == 303
        assert client.post(addresses["/transactions/{xid}/rollback"], data={"csrf": csrf}).status_code == 303
    assert changing.space.stats("errors").ready == 0
    assert changing.space.stats("oven").ready == 7
    assert changing.space.quarantined() == []
    assert list(changing.space.engine.decisions().values()) == ["rolled back"]
    assert len(changing.records) == 4
    time, address, sentence = changing.records[1].split(" ", 2)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert address == "127.0.0.1:"
    assert sentence.endswith("was deleted from queue oven.")


def test_a_change_that_the_engine_refuses_is_one_sentence(changing: Served) -> None:
    addresses = changes_of(changing)
    with changing.logged_in() as (client, csrf), changing.space.transaction() as tx:
        tx.get("errors")
        answer = client.post(addresses["/messages/{id}/delete"], data={"csrf": csrf})
        assert answer.status_code == 409
        assert 'role="alert"' in answer.text
        answer = client.post(addresses["/messages/{id}/move"], data={"csrf": csrf, "queue": "nowhere"})
        assert answer.status_code == 404
        assert "there is no queue &#39;nowhere&#39;" in answer.text
        assert client.post(addresses["/transactions/{xid}/forget"], data={"csrf": csrf}).status_code == 409
        tx.rollback()
    assert changing.space.stats("errors").ready == 1


def test_a_console_for_reading_has_no_address_that_changes(reading: Served) -> None:
    assert posting(reading) == set()
    before = state(reading.space)
    with reading.client(Origin=reading.url) as client:
        for address in [*changes_of(reading).values(), "/", "/login", "/logout"]:
            answer = client.post(address, data={"csrf": "", "queue": "oven", "token": TOKEN})
            assert answer.status_code in (403, 404, 405), address
            assert client.get(address).status_code == (200 if address == "/" else 404), address
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            assert client.request(method, "/").status_code == 405
    messages, prepared, decisions, _ = state(reading.space)
    assert (messages, prepared, decisions) == before[:3]


def test_no_page_answers_another_host(reading: Served) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1:1", "localhost", "", "127.0.0.1@evil"):
        with reading.client(Host=host) as client:
            for address in ("/", "/flow", "/static/console.js", "/login", "/nothing"):
                answer = client.get(address)
                assert answer.status_code in (400, 421), (host, address)
                assert "bakery" not in answer.text


def test_with_a_token_only_the_login_can_be_read(changing: Served) -> None:
    id = failed_id(changing.space)
    with changing.client() as client:
        for address in ("/", "/flow", "/transactions", "/activity", "/quarantine", "/queues/errors", f"/messages/{id}"):
            answer = client.get(address)
            assert (answer.status_code, answer.text) == (303, "")
            assert answer.headers["location"].startswith("/login?next=%2F")
            assert client.get(address, headers={"X-Fragment": "1"}).status_code == 403
        assert client.get(f"/messages/{id}/body").status_code == 303
        assert client.get("/login").status_code == 200
        assert client.get("/static/console.css").status_code == 200


def test_a_login_leads_back_to_this_console_only(changing: Served) -> None:
    for asked, after in {
        "/queues/errors?after=25": "/queues/errors?after=25", "//evil.example/": "/", "https://evil.example": "/",
        "/\\evil.example": "/", "": "/", "/login": "/", "javascript:alert(1)": "/", "/a\r\nSet-Cookie: x=1": "/",
    }.items():  # fmt: skip
        with changing.client(Origin=changing.url) as client:
            answer = client.post("/login", data={"token": TOKEN, "next": asked})
            address, key, rest = re.fullmatch(r"(/s/([A-Za-z0-9_-]{43}))(/.*)", answer.headers["location"]).groups()
            assert rest == after
            cookie = answer.headers["set-cookie"]
            assert f"Path={address}/" in cookie
            assert key not in cookie.partition(";")[0]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert TOKEN not in cookie


def test_a_cookie_without_the_address_of_its_login_reads_no_message_and_changes_none(changing: Served) -> None:
    """A program of another user has got the cookie."""
    id = failed_id(changing.space)
    with changing.logged_in() as (client, csrf):
        cookie = f"{COOKIE}={next(iter(client.cookies.values()))}"
        with changing.client(Origin=changing.url, Cookie=cookie) as thief:
            for root in ("", f"/s/{'x' * 43}", "/s", f"/s/{csrf}", f"/s/{cookie[len(COOKIE) + 1 :]}"):
                for page in ("/", f"/messages/{id}", f"/messages/{id}/body", f"/messages/{id}/delete"):
                    answer = thief.get(root + page)
                    assert (answer.status_code, answer.text) == (303, "")
                    assert client.base_url.path.strip("/") not in str(answer.headers)
                for page in (f"/messages/{id}/delete", "/logout"):
                    assert thief.post(f"{root}{page}", data={"csrf": csrf}).status_code == 403
        assert client.get(f"/messages/{id}").status_code == 200
    assert changing.space.entry(id).state == "ready"


def test_the_address_of_a_login_without_its_cookie_reads_no_message(changing: Served) -> None:
    with changing.logged_in() as (client, csrf), changing.client(Origin=changing.url) as reader:
        reader.base_url = client.base_url
        answer = reader.get("/queues/errors?after=0")
        assert answer.headers["location"] == "/login?next=%2Fqueues%2Ferrors%3Fafter%3D0"
        assert reader.post(f"/messages/{failed_id(changing.space)}/delete", data={"csrf": csrf}).status_code == 403


def test_a_further_cookie_of_another_server_ends_no_login(changing: Served) -> None:
    with changing.logged_in() as (client, _):
        client.headers["Cookie"] = f"{COOKIE}=x; {COOKIE}={next(iter(client.cookies.values()))}; {COOKIE}=y"
        client.cookies.clear()
        assert client.get("/").status_code == 200


def test_the_address_of_a_login_without_its_last_slash_leads_into_the_login(changing: Served) -> None:
    with changing.logged_in() as (client, _):
        root = client.base_url.path.rstrip("/")
        answer = client.get(f"{changing.url}{root}")
        assert (answer.status_code, answer.headers["location"]) == (303, f"{root}/")
        assert client.get(f"{changing.url}{root}/").status_code == 200
        client.cookies.clear()
        assert client.get(f"{changing.url}{root}/").headers["location"] == "/login?next=%2F"


def test_every_link_of_a_login_lies_below_its_address(changing: Served, stride: Stride) -> None:
    """On each page with --long, and on one page of each kind without."""
    seen, pages = set(), ["/"]
    with changing.logged_in() as (client, _):
        root = client.base_url.path.rstrip("/")
        while pages:
            page = pages.pop()
            answer = client.get(page)
            assert answer.status_code == 200, page
            for link in re.findall(r'(?:href|action|formaction)="(/[^"]*)"', answer.text):
                assert link.startswith(f"{root}/"), (page, link)
                path = link.removeprefix(root).partition("#")[0].replace("&amp;", "&")
                kind = path if stride(2) == 1 else re.sub(r"[0-9a-f]{8,}|\d+|(?<=queues/)\w+|(?<=id=)[^&]*", "…", path)
                if kind not in seen and not path.endswith(("/body", "/logout")):
                    seen.add(kind)
                    pages.append(path)
    assert len(seen) > 12


def test_another_program_cannot_listen_at_the_other_address_of_localhost(reading: Served) -> None:
    port = int(reading.url.rpartition(":")[2])
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with pytest.raises(OSError, match=r"in use|assign requested|not supported"):
            socket.create_server((host, port), family=family).close()


def test_the_console_does_not_begin_beside_another_server_of_localhost() -> None:
    try:
        taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("needs IPv6")
    with taken, pytest.raises(OSError, match="in use"):
        listening("127.0.0.1", taken.getsockname()[1])


def test_a_wrong_token_is_refused_and_attempts_are_limited(changing: Served) -> None:
    now = [100.0]
    changing.console.access.clock = lambda: now[0]
    with changing.client(Origin=changing.url) as client:
        for wrong in ("", "x", TOKEN[:-1], f"{TOKEN}x", "é\udcff".encode("utf-8", "surrogatepass")):
            answer = client.post("/login", data={"token": wrong})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert client.post("/login", data={"token": "y"}).status_code == 429
        now[0] += 61
        answers = [client.post("/login", data={"token": "wrong"}).status_code for _ in range(7)]
        assert answers == [403] * 5 + [429] * 2
        assert client.post("/login", data={"token": TOKEN}).status_code == 303, "the right token is always accepted"


def test_a_login_ends(changing: Served) -> None:
    now = [100.0]
    changing.console.access.clock = lambda: now[0]
    with changing.logged_in() as (client, csrf):
        assert client.get("/").status_code == 200
        now[0] += 9 * 3600
        assert client.get("/").status_code == 303
    with changing.logged_in() as (client, csrf):
        client.headers["Cookie"] = f"{COOKIE}={next(iter(client.cookies.values()))}"
        assert client.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
        assert client.get("/").status_code == 303


def test_logins_and_failed_attempts_need_bounded_memory() -> None:
    access = Access(frozenset(), TOKEN)
    for number in range(2_000):
        access.log_in("wrong", f"10.0.{number // 256}.{number % 256}")
        access.log_in(TOKEN, "127.0.0.1")
    assert len(access._failed) == 1_000
    assert len(access._sessions) == 100


def test_every_answer_has_the_headers_of_security(changing: Served) -> None:
    with changing.client() as client:
        for address in ("/", "/login", "/static/console.js", "/nothing", "/static/nothing"):
            headers = client.get(address).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "same-origin"
            assert "server" not in headers


def test_no_template_has_a_script_or_a_style_of_its_own() -> None:
    import xaspool_console

    templates = sorted((Path(xaspool_console.__file__).parent / "templates").iterdir())
    assert len(templates) > 10
    for template in templates:
        text = template.read_text().replace('<script src="/@/static/console.js" defer></script>', "")
        assert not [word for word in ("<script", "<style", " style=", " onclick", "|safe", "| safe") if word in text]


# -- the settings ------------------------------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"\n  \n{TOKEN}\nanother\n")
    file.chmod(0o600)
    return file


def test_the_token_is_the_first_line_with_text(token_file: Path) -> None:
    assert token_of_file(str(token_file)) == TOKEN


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (TOKEN, 0o640, "other users may read"), (TOKEN, 0o604, "chmod 600"), ("\n \n", 0o600, "has no token"),
        ("short", 0o600, "less than 16 characters"), (None, 0o600, "cannot be read from .*: No such file"),
        ("\udcff" * 20, 0o600, "is no text in UTF-8"),
    ],
)  # fmt: skip
def test_a_token_file_that_is_not_good_is_refused(token_file: Path, text: str | None, mode: int, words: str) -> None:
    token_file.unlink()
    if text is not None:
        token_file.write_text(text, errors="surrogateescape")
        token_file.chmod(mode)
    with pytest.raises(spool.InvalidArgument, match=words) as raised:
        token_of_file(str(token_file))
    assert TOKEN not in str(raised.value)
    assert not {"Errno", "codec"} & set(str(raised.value).replace("'", " ").replace("[", " ").split())


@pytest.mark.timeout(30)
def test_a_token_file_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in ("/dev/null", str(tmp_path / "pipe")):
        with pytest.raises(spool.InvalidArgument, match="is no regular file") as raised:
            token_of_file(path)
        assert "chmod" not in str(raised.value)


def test_hosts_that_are_known() -> None:
    known = known_hosts("127.0.0.1", 8765, ["Console.example", "console.example:8443"])
    assert known == {
        "127.0.0.1:8765", "localhost:8765", "[::1]:8765", "console.example", "console.example:8765",
        "console.example:8443",
    }  # fmt: skip
    assert "localhost" in known_hosts("::1", 80, ())
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "LocalHost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")] == [False] * 5


def test_a_further_host_is_served(bakery: spool.Space) -> None:
    with serving(bakery) as served:
        served.console.access.hosts |= {"console.example"}
        with served.client(Host="console.example") as client:
            assert client.get("/").status_code == 200


def test_a_message_that_another_administrator_has_moved_is_not_changed(changing: Served) -> None:
    id = failed_id(changing.space)
    with changing.logged_in() as (client, csrf):
        for change in ("move", "redrive", "delete"):
            assert 'name="seen_in" value="errors"' in client.get(f"/messages/{id}/{change}").text
        changing.space.move(id, "oven")
        for change in ("move", "redrive", "delete"):
            form = {"csrf": csrf, "seen_in": "errors", "queue": "labels"}
            answer = client.post(f"/messages/{id}/{change}", data=form)
            assert (answer.status_code, "is in queue oven now" in answer.text) == (409, True)
    assert changing.space.show(id).queue == "oven"


def test_a_message_that_a_transaction_holds_is_not_changed(changing: Served) -> None:
    id = failed_id(changing.space)
    with changing.space.transaction() as transaction, changing.logged_in() as (client, csrf):
        transaction.get("errors", message_id=id)
        for change in ("move", "redrive", "delete"):
            form = {"csrf": csrf, "seen_in": "errors", "queue": "labels"}
            answer = client.post(f"/messages/{id}/{change}", data=form)
            assert (answer.status_code, "try again later" in answer.text) == (409, True), change


# -- clients that take their time --------------------------------------------------------------------------------------


def test_a_huge_cookie_takes_no_time(changing: Served) -> None:
    """``http.cookies`` takes 20 seconds for this cookie (CVE-2024-7592)."""
    with changing.client(Cookie=f'{COOKIE}="' + '\\"' * 15_000) as client:
        assert client.get("/login", timeout=10).status_code == 200


@pytest.mark.every(2)
@pytest.mark.parametrize("origin", ["http://[", "null", "http://", EVIL, "http://127.0.0.1:1]"])
def test_a_malformed_origin_is_refused(changing: Served, origin: str) -> None:
    with changing.client(Origin=origin) as client:
        assert client.post("/login", data={"token": TOKEN}).status_code == 403


def test_silent_connections_are_ended(bakery: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(connection_limits, "_SILENT_SECONDS", 0.5)
    with serving(bakery) as served:
        port = int(served.url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(70)]
        for number, each in enumerate(silent):
            with contextlib.suppress(OSError):
                each.sendall(b"GET / HT" if number % 2 else b"")
        for each in silent:
            with contextlib.suppress(ConnectionError):
                while each.recv(4096):
                    pass
            each.close()
        with served.client() as client:
            assert client.get("/").status_code == 200


def test_few_bodies_are_sent_at_a_time(reading: Served) -> None:
    """A client that does not read keeps a body in the console's memory."""
    reading.space.create_queue("big")
    ids = [reading.space.put("big", b"x" * (8 << 20)) for _ in range(6)]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(reading.client())
        answers = [stack.enter_context(client.stream("GET", f"/messages/{each}/body")) for each in ids]
        assert [answer.status_code for answer in answers] == [200] * 4 + [503] * 2
        assert sum(map(len, answers[0].iter_bytes())) == 8 << 20


@pytest.mark.timeout(60)
def test_downloads_that_no_client_reads_make_room_for_a_further_one(
    bakery: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "_SILENT_SECONDS", 0.5)
    bakery.create_queue("big")
    address = f"/messages/{bakery.put('big', b'x' * (8 << 20))}/body"
    with serving(bakery) as served, contextlib.ExitStack() as stack:
        client = stack.enter_context(served.client())
        unread = [stack.enter_context(client.stream("GET", address)) for _ in range(4)]
        assert [answer.status_code for answer in unread] == [200] * 4
        assert client.get(address).status_code == 503
        while (answer := client.get(address)).status_code == 503:
            pass
        assert (answer.status_code, len(answer.content)) == (200, 8 << 20)


def test_each_of_many_downloads_in_a_row_is_sent(reading: Served) -> None:
    """The end of an answer makes room for the next one, without the garbage collector."""
    id = failed_id(reading.space)
    gc.disable()
    try:
        with reading.client() as client:
            assert [client.get(f"/messages/{id}/body").status_code for _ in range(12)] == [200] * 12
            assert [client.get(f"/messages/{'0' * 32}/body").status_code for _ in range(6)] == [404] * 6
            assert [client.head(f"/messages/{id}/body").status_code for _ in range(6)] == [200] * 6
            assert client.get(f"/messages/{id}/body").content
    finally:
        gc.enable()


MALFORMED = {
    "a wrong token": b"POST /login HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Length: 7\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=x",
    "no request": b"\0\r\n\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED)
def test_a_client_cannot_fill_the_log(
    changing: Served, sent: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("forwarder.refusals.monotonic", lambda: now[0])
    changing.console._refusals._begun = 0.0
    host = changing.url.removeprefix("http://")
    data = MALFORMED[sent].replace(b"HOST", host.encode())
    for number in range(31):
        now[0] = 0.0 if number < 30 else 61.0
        with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=60) as client:
            client.sendall(data)
            assert client.recv(4096)
    assert (len(changing.records), caplog.records) == (22, [])
    lines = [re.sub(r"^\S+ ", "", line) for line in changing.records]
    assert lines[20] == "The console refused 10 further requests."
    assert {*lines[:20], lines[21]} in (
        {"127.0.0.1: The console refused a login."}, {"127.0.0.1: Invalid HTTP request received."},
    )  # fmt: skip


HALF = {
    "half a header": b"GET / HTTP/1.1\r\nHost: x\r\n",
    "half a form": b"POST /login HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Length: 900\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=",
    "nothing": b"",
}


@pytest.mark.every(3, first=1)
@pytest.mark.parametrize("sent", HALF)
def test_a_client_is_served_beside_many_clients_that_send_half_a_request(changing: Served, sent: str) -> None:
    host = changing.url.removeprefix("http://")
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=30))
            half.sendall(HALF[sent].replace(b"HOST", host.encode()))
        with changing.logged_in() as (client, _):
            assert client.get("/").status_code == 200


def test_a_request_is_answered_although_a_hundred_connections_arrive_at_once_after_it() -> None:
    """The server accepts few connections before it reads from them, so new ones do not end the one with a request."""
    asked, go_on = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/busy":  # (the server's only thread waits meanwhile)
            asked.set()
            assert go_on.wait(60)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    listeners = listening("127.0.0.1", 0)
    address = listeners[0].getsockname()
    server = ConsoleServer(app, listeners, lambda address, sentence: None)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        busy = stack.enter_context(socket.create_connection(address, timeout=60))
        busy.sendall(b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n")
        assert asked.wait(60)
        asking = stack.enter_context(socket.create_connection(address, timeout=60))
        asking.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(100):
            half = stack.enter_context(socket.socket())
            half.setblocking(False)
            half.connect_ex(address)
        go_on.set()
        assert asking.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_client_that_sends_half_a_request_ends_no_answer(changing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further connections end the oldest that waits for its client, although the answer's connection is older."""
    asked, answer = threading.Event(), threading.Event()
    metrics = changing.console.samples.snapshot()

    def snapshot() -> Any:
        asked.set()
        assert answer.wait(60)
        return metrics

    with contextlib.ExitStack() as stack, changing.logged_in() as (client, _), ThreadPoolExecutor() as pool:
        monkeypatch.setattr(changing.console.samples, "snapshot", snapshot)
        page = pool.submit(client.get, "/")
        assert asked.wait(60)
        port = int(changing.url.rpartition(":")[2])
        halves = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(80)]
        assert halves[0].recv(1) == b""
        answer.set()
        assert page.result(60).status_code == 200
