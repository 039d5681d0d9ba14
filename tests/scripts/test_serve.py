"""spool-serve: its addresses, its refusals, and its end."""

import contextlib
import grp
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import Result, one_line, start
from xaspool_scripts.serve import main
from xaspool_scripts.terminal.exit_codes import WRONG_USAGE

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")


def serve(*args: object) -> Result:
    done = CliRunner().invoke(main, [*map(str, args)])
    return Result(done.exit_code, done.stdout_bytes, done.stderr)


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_spool_serve_names_the_address_of_each_space_and_ends_with_a_signal(
    path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    spool.create(tmp_path / "second").close()
    process = start("spool-serve", path, f"other={tmp_path / 'second'}", "--listen", "127.0.0.1:0", "--json")
    with process:
        served = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [one["space"] for one in served] == [str(path), str(tmp_path / "second")]
        assert served[1]["address"].endswith("/other")
        for one in served:
            server, _, name = one["address"].rpartition("/")
            assert httpx.get(f"{server}/v1/{name}/queues").status_code == 200
            assert httpx.get(f"{server}/healthz").json()["status"] == "ok"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert json.loads(out) == {"event": "ended"}
    assert process.returncode == 0
    sentence = "every user of this machine can read and write these spaces here; --token-file asks for a token"
    assert err.decode() == f"spool-serve: {sentence}\n"
    with spool.open(path) as alone:
        assert alone.recovery.alone


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("command", "words"), [("serve", ["-s"]), ("admin", ["console", "-s"]), ("admin", ["metrics", "-s"])]
)
def test_a_signal_that_comes_with_the_address_ends_the_program(command: str, words: list[str], path: Path) -> None:
    """The program gets the signal while it prints its address."""
    code = (
        "import os, signal\n"
        "from xaspool_scripts.terminal import listening\n"
        "write = listening.write_json\n"
        "def announced(data):\n"
        "    listening.write_json = write\n"
        "    write(data)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "listening.write_json = announced\n"
        f"from xaspool_scripts.start import {command} as main\n"
        "main()\n"
    )
    words = [*words, str(path), "--listen", "127.0.0.1:0", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["serving", "ended"], done.stderr
    assert done.returncode == 0


def test_a_client_that_neither_reads_nor_leaves_does_not_hold_up_the_end(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"x" * 65_536] * 1000)
    before = "import forwarder.web.server as server; server._GRACE_SECONDS = 1"
    with start("spool-serve", "-s", path, "--listen", "127.0.0.1:0", "--json", before=before) as process:
        server = json.loads(process.stdout.readline())["address"].rpartition("/")[0]
        with httpx.stream(
            "GET", f"{server}/v1/space/queues/orders/messages", headers={"Accept": "application/x-ndjson"}
        ) as answer:
            next(answer.iter_bytes())
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
    assert json.loads(out) == {"event": "ended"}
    assert process.returncode == 0
    assert b"Traceback" not in err


def put(client: Any, body: str) -> None:
    assert client.post("/v1/space/queues/orders/messages", content=body).status_code == 201


def claim(client: Any) -> Any:
    answer = client.post("/v1/space/queues/orders/claims")
    assert answer.status_code == 200
    return answer


def test_a_unix_socket_is_for_this_user_and_replaces_the_one_of_a_dead_server(path: Path, tmp_path: Path) -> None:
    at = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(at))
    with start("spool-serve", "-s", path, "--listen", f"unix:{at}", "--json") as process:
        assert json.loads(process.stdout.readline())["address"] == f"http://unix:{at}:/space"
        assert at.stat().st_mode & 0o777 == 0o600
        one_line(serve("-s", path, "--listen", f"unix:{at}"), "does another program listen there?", code=1)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(at)), base_url="http://spool") as client:
            put(client, "by a socket")
            assert claim(client).text == "by a socket"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def test_the_members_of_a_group_may_connect_to_the_unix_socket(path: Path, tmp_path: Path) -> None:
    at, group = tmp_path / "socket", grp.getgrgid(os.getgroups()[-1] if os.getgroups() else os.getgid())
    words = ["-s", path, "--listen", f"unix:{at}", "--socket-group"]
    one_line(serve(*words, "nobody-here"), "this machine has no group 'nobody-here'", code=WRONG_USAGE)
    one_line(serve("-s", path, "--socket-group", group.gr_name), "give --listen unix:PATH", code=WRONG_USAGE)
    with start("spool-serve", *words, group.gr_name) as process:
        assert b"serving" in process.stdout.readline()
        found = at.stat()
        assert (found.st_mode & 0o777, found.st_gid) == (0o660, group.gr_gid)
        process.terminate()
        process.communicate(timeout=60)


def test_the_sockets_of_systemd_are_used(path: Path) -> None:
    """systemd gives the listening sockets as the descriptors from 3 on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = (
            "import os, sys; listener = int(sys.argv.pop(1)); os.dup2(listener, 3); os.set_inheritable(3, True);"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
            "os.execv(sys.executable, [sys.executable, '-c', 'from xaspool_scripts.start import serve; serve()',"
            " *sys.argv[1:]])"
        )
        words = [sys.executable, "-c", code, str(listener.fileno()), "-s", str(path), "--json"]
        with subprocess.Popen(words, pass_fds=[listener.fileno()], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["address"] == f"http://127.0.0.1:{port}/space"
            assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert json.loads(process.stdout.read())["event"] == "ended"
    assert process.returncode == 0


def test_any_process_of_the_server_ends_a_lease_and_a_dead_one_starts_again(path: Path) -> None:
    """A call for the receipt of another process is passed on. A process that was killed has released its messages."""
    words = ["spool-serve", "-s", path, "--listen", "127.0.0.1:0", "--processes", "2", "--json"]
    with start(*words) as process:
        server = json.loads(process.stdout.readline())["address"].rpartition("/")[0]
        receipts: dict[str, str] = {}
        while len(receipts) < 2:  # (the kernel chooses the process of a connection)
            with httpx.Client(base_url=server) as client:
                put(client, "x" * 100_000)
                receipt = claim(client).headers["spool-receipt"]
                receipts[receipt.partition(".")[0]] = receipt
        with httpx.Client(base_url=server) as client:
            for receipt in receipts.values():
                at = f"/v1/space/claims/{receipt}"
                assert client.post(f"{at}/extend?lease=30").json() == {"lease": 30.0}
                given = json.dumps({"put": [{"queue": "errors", "body": "y" * 300_000}]}).encode()
                answers = [client.post(f"{at}/commit", content=content) for content in (given, iter([given]))]
                assert [answer.status_code for answer in answers] == [200, 200]
                assert answers[0].json() == answers[1].json()
            put(client, "held by a process that dies")
            receipt = claim(client).headers["spool-receipt"]
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGKILL)
        assert "every user of this machine" in process.stderr.readline().decode()
        assert "starts again" in process.stderr.readline().decode()
        with httpx.Client(base_url=server, timeout=60) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):  # (while no process runs)
                    answer = client.delete(f"/v1/space/claims/{receipt}")
                    break
            assert answer.status_code == 410
            assert "held by a process that dies" in client.post("/v1/space/queues/orders/claims?wait=20&max=99").text
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert json.loads(out) == {"event": "ended"}
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_a_process_that_cannot_open_its_space_ends_the_server(tmp_path: Path) -> None:
    words = ["-s", str(tmp_path), "--listen", "127.0.0.1:0", "--processes", "2"]
    code = "from xaspool_scripts.start import serve; serve()"
    words = [sys.executable, "-c", code, *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "give --tls-cert, --tls-key and --token-file, or --insecure"),
        (["--listen", "example.com:8815"], "can be reached from other machines"),
        (["--listen", "8815"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is not HOST:PORT"),
        (["--tls-cert", "cert.pem"], "belong together"),
        (["--token-file", "none"], "cannot be read"),
        (["--tls-cert", "none", "--tls-key", "none"], "its key cannot be read: none"),
        (["--processes", "0"], "1<=x<=64"),
    ],
)
def test_wrong_usage_is_refused(path: Path, arguments: list[str], words: str) -> None:
    done = serve("-s", path, *arguments)
    assert done.code == 2
    assert words in done.err


def test_an_address_in_use_is_a_failure_of_one_line(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = serve("-s", path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    one_line(done, "does another program listen there?", code=1)


def test_names_are_letters_and_differ(path: Path) -> None:
    assert "cannot be a space's name" in serve(f"../x={path}").err
    assert "two spaces have the name space" in serve(path, f"space={path}").err


def test_a_space_that_is_none_is_a_failure(tmp_path: Path) -> None:
    done = serve("-s", tmp_path, "--listen", "127.0.0.1:0")
    assert done.code == 1
    assert "space" in done.err
