"""``spool-admin console`` as a program: its first line, its end, and its refusals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.console.conftest import TOKEN, httpx
from xaspool_scripts.admin import main

PROGRAM = "from xaspool_scripts.start import admin; admin()"


@pytest.fixture
def path(memory: Path) -> Path:
    with spool.create(memory / "shop") as space:
        space.create_queue("orders")
        space.put("orders", "tea")
    return memory / "shop"


def start(path: Path, *arguments: str, code: str = "") -> "subprocess.Popen[str]":
    words = [
        sys.executable,
        "-c",
        f"{code}\n{PROGRAM}",
        "-s",
        str(path),
        "console",
        "--listen",
        "127.0.0.1:0",
        *arguments,
    ]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_console_names_its_address_serves_and_ends_with_a_signal(path: Path, number: signal.Signals) -> None:
    with start(path, "--json") as process:
        first = json.loads(process.stdout.readline())
        assert (first["event"], first["space"]) == ("serving", str(path))
        with httpx.Client(verify=False) as client:
            assert ">orders</a>" in client.get(first["address"]).text
            process.send_signal(number)  # (while a browser keeps its connection)
            out, err = process.communicate(timeout=60)
    assert json.loads(out) == {"event": "ended"}
    assert process.returncode == 0
    assert err == "spool-admin: every user of this machine can read the space here; --token-file asks for a login\n"
    with spool.open(path) as alone:
        assert alone.recovery.alone
        assert not alone.recovery.findings


def test_a_person_reads_the_address_and_each_change(path: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with spool.open(path) as space:
        (message,) = space.browse("orders")
    with start(path, "--allow-changes", "--token-file", str(token), "--host", "console.example") as process:
        words = process.stdout.readline().split()
        assert words[:-1] == ["console", "of", str(path), "at"]
        with httpx.Client(base_url=words[-1], headers={"Origin": words[-1]}, verify=False) as client:
            named = {"Host": "console.example", "Origin": "https://console.example", "X-Forwarded-Proto": "https"}
            cookie = client.post("/login", data={"token": TOKEN}, headers=named).headers["set-cookie"]
            assert "Secure" in cookie
            client.cookies.clear()
            client.base_url = words[-1] + client.post("/login", data={"token": TOKEN}).headers["location"]
            text = client.get(f"/messages/{message.id}/delete").text
            csrf = text.rpartition('name="csrf" value="')[2].partition('"')[0]
            assert client.post(f"/messages/{message.id}/delete", data={"csrf": csrf}).status_code == 303
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", 0)
    change, end = err.splitlines()
    assert re.fullmatch(
        rf"spool-admin: \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d 127\.0\.0\.1: "
        rf"Message {message.id} was deleted from queue orders\.", change,
    )  # fmt: skip
    assert end == "spool-admin: the console has ended"
    with spool.open(path) as space:
        assert space.stats("orders").ready == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "give --token-file, or --insecure"),
        (["--listen", "10.1.2.3:80"], "10.1.2.3 can be reached from other machines"),
        (["--listen", "8765"], "is not HOST:PORT"),
        (["--allow-changes"], "--allow-changes needs a login: give --token-file"),
        (["--allow-changes", "--token-file", "none", "--published"], "leave out --allow-changes"),
        (["--token-file", "none"], "the token cannot be read from none: No such file or directory"),
        (["--token-file", "/dev/null"], "/dev/null is no regular file"),
    ],
)
def test_wrong_usage_is_one_line(path: Path, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, ["-s", str(path), "console", *arguments])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert words in done.stderr


def test_an_address_in_use_is_one_line(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = CliRunner().invoke(main, ["-s", str(path), "console", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert done.exit_code == 1
    text = re.sub(r":\d+:", ":PORT:", done.stderr)
    assert text == (
        "spool-admin: cannot listen at 127.0.0.1:PORT: address already in use; does another program listen there?\n"
    )


def test_a_name_that_does_not_resolve_is_told_before_any_rule(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    for name in ("nosuch.example", "a..b"):
        done = CliRunner().invoke(main, ["-s", str(path), "console", "--listen", f"{name}:80"])
        text = f"spool-admin: cannot listen at {name}:80: the name does not resolve to an address\n"
        assert (done.exit_code, done.stderr) == (1, text)


def test_a_space_that_publishes_nothing_is_one_line(path: Path) -> None:
    done = CliRunner().invoke(main, ["-s", str(path), "console", "--published", "--listen", "127.0.0.1:0"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.slow
def test_other_commands_need_no_package_of_the_console(path: Path) -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(('starlette', 'uvicorn', 'jinja2')))"
    words = [sys.executable, "-c", f"{code}\n{PROGRAM}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0
    assert "console" in done.stdout


def test_x20_one_console_serves_several_spaces_by_their_names(path: Path, memory: Path) -> None:
    spool.create(memory / "bakery").close()
    with start(path, "--json", str(path), f"oven={memory / 'bakery'}") as process:
        events = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [each["space"] for each in events] == [str(path), str(memory / "bakery")]
        assert [each["address"].rpartition("/space/")[2] for each in events] == ["shop", "oven"]
        with httpx.Client(verify=False) as client:
            assert ">orders</a>" in client.get(events[0]["address"]).text
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
