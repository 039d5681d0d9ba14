"""spool-serve: its addresses, its refusals, and its end."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import Result, one_line, start
from xaspool_scripts.serve import main

pytest.importorskip("pyspark")


def serve(*args: object) -> Result:
    done = CliRunner().invoke(main, [*map(str, args)])
    return Result(done.exit_code, done.stdout_bytes, done.stderr)


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_spool_serve_names_the_address_of_each_space_and_ends_with_a_signal(
    path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    from forwarder.flight.client import Client

    spool.create(tmp_path / "second").close()
    process = start("spool-serve", path, f"other={tmp_path / 'second'}", "--listen", "127.0.0.1:0", "--json")
    with process:
        served = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [one["space"] for one in served] == [str(path), str(tmp_path / "second")]
        assert served[1]["address"].endswith("/other")
        for one in served:
            assert Client.of(one["address"], None, None, None).act("health")["number"] >= 0
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
    ("module", "command", "words"),
    [
        ("serve", "spool-serve", ["-s"]),
        ("commands.console", "spool-admin", ["console", "-s"]),
        ("watch.metrics", "spool-admin", ["metrics", "-s"]),
    ],
)
def test_a_signal_that_comes_with_the_address_ends_the_program(
    module: str, command: str, words: list[str], path: Path
) -> None:
    """The program gets the signal while it prints its address."""
    code = (
        "import os, signal, sys\n"
        f"import xaspool_scripts.{module} as program\n"
        "write = program.write_json\n"
        "program.write_json = lambda data: (write(data), os.kill(os.getpid(), signal.SIGTERM))\n"
        f"from xaspool_scripts.start import {command.removeprefix('spool-')} as main\n"
        "main()\n"
    )
    words = [*words, str(path), "--listen", "127.0.0.1:0", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["serving", "ended"], done.stderr
    assert done.returncode == 0


def test_a_client_that_neither_reads_nor_leaves_does_not_hold_up_the_end(path: Path) -> None:
    from forwarder.dataframes.columns import columns
    from forwarder.flight.client import Client

    with spool.open(path) as space:
        space.put_many("orders", [b"x" * 65_536] * 1000)
    before = "from forwarder.serving.server import SpaceServer; SpaceServer.close.__defaults__ = (1.0,)"
    with start("spool-serve", "-s", path, "--listen", "127.0.0.1:0", "--json", before=before) as process:
        client = Client.of(json.loads(process.stdout.readline())["address"], None, None, None)
        [ticket, *_] = client.plan(options={"queue": "orders"}, schema=columns(True).json())
        rows = client.read(ticket)
        next(rows)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert json.loads(out) == {"event": "ended"}
    assert process.returncode == 0


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
