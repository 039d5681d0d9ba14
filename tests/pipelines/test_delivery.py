"""Destinations that are stopped, down or full; a pipeline that runs until it is stopped; and pipelines that cannot
run."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from forwarder import MessagesLeft, MissingQueue, Pipeline, ServiceError, ThreadForwarder
from forwarder.events import Begun, Done, Down, Event, Paused, Stopping, Up
from tests.pipelines import hooks
from tests.pipelines.conftest import HOOKS, Run, declared
from tests.ports import free_port
from tests.shown import bodies
from tests.threads import beside
from xaspool_scripts.forward import main


@contextmanager
def listening(port: int) -> Iterator[list[bytes]]:
    """A web service; yields the bodies that it got."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        with beside(partial(server.serve_forever, 0.01), server.shutdown):
            yield got


def with_web(port: int, **options: object) -> Pipeline:
    web = {"service": f"http://127.0.0.1:{port}/", **options}
    return declared(destinations={"one": web, "two": {"service": f"python:{HOOKS}:two"}})


@pytest.mark.every(2)
def test_c05_a_destination_that_is_down_keeps_its_messages_in_sequence_and_delays_no_other(
    run: Run, space: spool.Space, delivered: list
) -> None:
    pipeline = with_web(port := free_port())
    pipeline.create_queues(space)
    texts = [f"message {n}" for n in range(5)]
    space.put_many("p", texts)
    summary = run(pipeline)
    assert [body for _, body in delivered] == texts
    assert "the service was not reached" in summary.down["p.to.one"]
    assert summary.left == {"p.to.one": 5}
    assert [message.attempts for message in space.browse("p.to.one")] == [0] * 5
    with listening(port) as got:
        assert run(pipeline).down == {}
    assert got == [text.encode() for text in texts]


def test_c05_a_destination_that_is_stopped_keeps_them_too(run: Run, space: spool.Space, delivered: list) -> None:
    two = {"service": f"python:{HOOKS}:two", "outbound": f"{HOOKS}:upper"}
    destinations = {"one": {"service": f"python:{HOOKS}:one"}, "two": two | {"stopped": True}}
    declared().create_queues(space)
    space.put_many("p", ["a", "b"])
    run(declared(destinations=destinations))
    assert (delivered, bodies(space, "p.to.two")) == ([("one", "a"), ("one", "b")], ["a", "b"])
    run(declared(destinations=destinations | {"two": two}))
    assert delivered[2:] == [("two", "A"), ("two", "B")]


@pytest.mark.every(2)
def test_a_full_destination_holds_up_the_source_and_counts_no_attempt(run: Run, space: spool.Space) -> None:
    pipeline = with_web(free_port(), max_messages=2)
    pipeline.create_queues(space)
    ids = space.put_many("p", list("abcd"))
    assert run(pipeline).down["p"] == "there is no room (queue p.to.one is full)"
    assert (bodies(space, "p.to.one"), bodies(space, "p")) == (["a", "b"], ["c", "d"])
    assert space.show(ids[2]).attempts == 0


@pytest.mark.every(2, first=1)
def test_once_goes_on_while_a_full_destination_is_emptied_by_its_own_service(
    run: Run, space: spool.Space, delivered: list
) -> None:
    """The run attempts no message twice."""
    one = {"service": f"python:{HOOKS}:one", "max_messages": 2}
    gone = {"service": f"http://127.0.0.1:{free_port()}/"}
    pipeline = declared(destinations={"one": one, "two": gone}, inbound=f"{HOOKS}:upper", ordered=False)
    pipeline.create_queues(space)
    failing = space.put("p", "bad")
    space.put_many("p", list("abcdefg"))
    summary = run(pipeline)
    assert sorted(delivered) == [("one", body) for body in "ABCDEFG"]
    assert set(summary.down) == {"p.to.two"}
    assert space.show(failing).attempts == 1
    assert summary.left == {"p": 1, "p.to.two": 7}


@pytest.mark.every(2, first=1)
def test_a_full_destination_that_a_hook_sends_to_counts_no_attempt(run: Run, space: spool.Space) -> None:
    one = {"service": f"http://127.0.0.1:{free_port()}/", "max_messages": 1}
    pipeline = declared(
        inbound=f"{HOOKS}:decide", destinations={"one": one, "two": {"service": f"python:{HOOKS}:two"}}, retries=0
    )
    pipeline.create_queues(space)
    ids = space.put_many("p", ["send one", "send one"])
    assert "queue p.to.one holds 1 message of at most 1" in run(pipeline).down["p"]
    assert (bodies(space, "p.to.one"), bodies(space, "p"), bodies(space, "p.errors")) == (["sent"], ["send one"], [])
    assert space.show(ids[1]).attempts == 0


def test_queues_are_made_once_and_changed_to_the_described_options(space: spool.Space) -> None:
    pipeline = with_web(1, max_messages=9, retries=5)
    assert set(pipeline.create_queues(space).values()) == {"created"}
    assert set(pipeline.create_queues(space).values()) == {"as it was"}
    made = space.queues()
    assert (made["p"].ordered, made["p"].error_queue, made["p"].retries) == (True, "p.errors", 3)
    assert (made["p.to.one"].max_messages, made["p.to.one"].retries, made["p.to.two"].retries) == (9, 5, None)
    done = with_web(1, ordered=False).create_queues(space)
    assert {queue: what for queue, what in done.items() if what != "as it was"} == {"p.to.one": "changed"}
    assert (space.queues()["p.to.one"].max_messages, space.queues()["p.to.one"].ordered) == (None, False)


def test_queues_of_a_pipeline_without_a_longest_delay_are_made_without_it(space: spool.Space) -> None:
    pipeline = with_web(1, retry_delay_max=None)
    pipeline.create_queues(space)
    assert space.queues()["p.to.one"].retry_delay_max is None
    assert set(pipeline.create_queues(space).values()) == {"as it was"}


def test_a_warning_about_a_destination_in_another_space_is_logged_once(
    space: spool.Space, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with spool.create(tmp_path / "other") as other:
        other.create_queue("next", deduplication_window=60.0)
    pipeline = declared(
        routes=[{"name": "all", "to": "one"}], destinations={"one": {"service": f"queue:next@{tmp_path}/other"}}
    )
    pipeline.create_queues(space)
    pipeline.work(space.path, once=True)
    expected = [f"queue next of {tmp_path}/other remembers the key of a put for only 60 s:"]
    assert [record.getMessage().split(" if ")[0] for record in caplog.records] == expected


def test_a_queue_that_is_not_there_is_named_before_a_message_is_taken(space: spool.Space) -> None:
    with pytest.raises(MissingQueue, match=r"there is no queue 'p' in .*: create it"):
        declared().work(space.path, once=True)


def test_a_function_that_only_this_process_knows_runs_in_threads_alone(space: spool.Space, delivered: list) -> None:
    pipeline = declared(inbound=lambda message: None)
    pipeline.create_queues(space)
    space.put("p", "x")
    pipeline.work(space.path, once=True)
    assert delivered == [("one", "x"), ("two", "x")] or delivered == [("two", "x"), ("one", "x")]
    with pytest.raises(ServiceError, match="cannot be imported by Spark's processes: define it at the top of a module"):
        pipeline.routes()


def test_threads_go_on_until_they_are_stopped_and_try_again_after_a_pause(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spool.workers.pauses.FIRST_PAUSE_SECONDS", 0.01)
    pipeline = with_web(port := free_port())
    pipeline.create_queues(space)
    space.put("p", "x")
    events, told = list[Event](), threading.Condition()

    def tell(*event: Event) -> None:
        with told:
            events.extend(event)
            told.notify_all()

    def wait_for(kind: type[Done | Down | Up], queue: str) -> None:
        with told:
            assert told.wait_for(lambda: ran.done() or _has(events, kind, queue), 60), f"no {kind.__name__} of {queue}"
            assert _has(events, kind, queue), ran.result()

    forwarder = ThreadForwarder(space.path, pipeline.routes(), on_event=tell)
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(forwarder.run)
        ran.add_done_callback(lambda _: tell())
        try:
            wait_for(Done, "p.to.two")
            wait_for(Down, "p.to.one")
            with listening(port) as got:
                wait_for(Up, "p.to.one")
        finally:
            forwarder.stop()
    assert got == [b"x"]
    assert (ran.result().down, ran.result().errors) == ({}, [])
    of_one = [type(event) for event in events if getattr(event, "queue", "p.to.one") == "p.to.one"]
    assert of_one[:4] == [Begun, Done, Down, Paused]
    assert of_one.count(Stopping) == 1
    assert [kind for kind in of_one if kind is not Stopping][-2:] == [Done, Up]


def _has(events: list[Event], kind: type[Done | Down | Up], queue: str) -> bool:
    return any(isinstance(event, kind) and event.queue == queue for event in events)


# -- the command ------------------------------------------------------------------------------------------------------

TOML = f"""
name = "adt"
inbound = "{HOOKS}:upper"

[[routes]]
name = "all"
to = ["one", "two"]

[destinations.one]
service = "python:{HOOKS}:one"

[destinations.two]
service = "python:{HOOKS}:two"
stopped = true
"""


def test_spool_forward_makes_the_queues_of_a_pipeline_and_runs_it(space: spool.Space, tmp_path: Path) -> None:
    (tmp_path / "adt.toml").write_text(TOML)
    words = ["-s", space.path, "--pipeline", str(tmp_path / "adt.toml")]
    made = CliRunner().invoke(main, [*words, "--create-queues"])
    assert made.stdout.splitlines()[:2] == ["adt.errors: created", "adt.failures: created"]
    again = CliRunner().invoke(main, [*words, "--create-queues", "--json"])
    assert json.loads(again.stdout.splitlines()[0]) == {"queue": "adt.errors", "done": "as it was"}
    space.put("adt", "x")
    ran = CliRunner().invoke(main, [*words, "--no-spark", "--once"])
    assert (ran.exit_code, ran.stdout.splitlines()) == (
        0, ["adt: 1 delivered", "adt.to.one: 1 delivered", "adt.translate: 1 delivered"],
    )  # fmt: skip
    assert hooks.delivered == [("one", "X")]
    assert bodies(space, "adt.to.two") == ["X"]
    space.put("adt", "y")
    told = [
        json.loads(line)
        for line in CliRunner().invoke(main, [*words, "--no-spark", "--once", "--json"]).stdout.splitlines()
    ]
    assert [(event["event"], event.get("queue")) for event in told] == [
        ("begun", None), ("done", "adt"), ("done", "adt.translate"), ("done", "adt.to.one"), ("stopped", None),
    ]  # fmt: skip


def test_spool_forward_tells_each_mistake_of_a_file_on_a_line(space: spool.Space, tmp_path: Path) -> None:
    (tmp_path / "adt.toml").write_text(TOML.replace("stopped = true", "stoped = true\ntimeout = 0"))
    result = CliRunner().invoke(main, ["-s", space.path, "--pipeline", str(tmp_path / "adt.toml")])
    assert result.exit_code == 2
    assert [line.split("adt.toml: ")[1].split(":")[0] for line in result.stderr.splitlines()] == [
        "destinations.two.timeout", "destinations.two.stoped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is nothing to forward: give --route QUEUE=SERVICE, or --pipeline FILE"),
        (["--route", "a=queue:b", "--create-queues"], "--create-queues makes the queues of pipelines"),
        (
            ["--pipeline", "adt.toml", "--route", "a=queue:b", "--once", "--create-queues"],
            "--create-queues makes queues and exits: leave --once, --route out",
        ),
        (
            ["--pipeline", "adt.toml", "--master", "local[*]", "--conf", "spark.cores.max=1", "--no-spark"],
            "--no-spark starts no Spark: leave --conf, --master out",
        ),
        (
            ["--pipeline", "adt.toml", "--timeout", "5", "--threads", "2", "--on-failure", "retry"],
            "options of a pipeline's services are in its FILE: leave --on-failure, --threads, --timeout out",
        ),
        (["--pipeline", "nowhere.toml"], "nowhere.toml: it cannot be read (No such file or directory)"),
        (["--pipeline", "adt.toml", "--pipeline", "adt.toml", "--no-spark"], "the queue adt has two routes"),
    ],
)
def test_spool_forward_names_a_wrong_or_missing_option(
    words: list[str], said: str, space: spool.Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adt.toml").write_text(TOML)
    result = CliRunner().invoke(main, ["-s", space.path, *words])
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


# -- a pipeline that was changed ---------------------------------------------------------------------------------------

PLAIN = """
name = "p"
[[routes]]
name = "all"
to = "one"
[destinations.one]
service = "python:tests.pipelines.hooks:one"
"""


def changed_while_messages_wait(space: spool.Space, tmp_path: Path) -> Path:
    """Messages wait in three queues of its former shape; returns the file of the new one."""
    destinations = {
        "one": {"service": f"python:{HOOKS}:one", "outbound": f"{HOOKS}:same"},
        "two": {"service": f"python:{HOOKS}:two"},
    }
    declared(inbound=f"{HOOKS}:same", destinations=destinations).create_queues(space)
    space.put_many("p.translate", range(3))
    space.put("p.to.one.deliver", "x")
    space.put("p.to.two", "x", delay=1000.0)
    space.put("p.errors", "for a person")
    file = tmp_path / "p.toml"
    file.write_text(PLAIN)
    return file


LEFT = "p.to.one.deliver (1), p.to.two (1), p.translate (3); run the former file with --once first, or move them"


@pytest.mark.parametrize("step", ["--create-queues", "--once"])
def test_a_changed_pipeline_leaves_no_messages_behind_without_a_word(space: spool.Space, tmp_path: Path, step: str):
    file = changed_while_messages_wait(space, tmp_path)
    before = space.queues()
    arguments = ["-s", space.path, "--pipeline", str(file), step, *(["--no-spark"] if step == "--once" else [])]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert LEFT in result.stderr
    assert space.queues() == before
    result = CliRunner().invoke(main, [*arguments, "--leave"])
    if step == "--once":
        assert (result.exit_code, "nothing was forwarded" in result.stdout) == (5, False)
        assert "p.translate: 3 left for later" in result.stdout
    else:
        assert result.exit_code == 0, result.output


def test_messages_of_a_former_shape_may_be_moved_or_forwarded(space: spool.Space, tmp_path: Path) -> None:
    file = changed_while_messages_wait(space, tmp_path)
    pipeline = Pipeline.load(file)
    for run in (pipeline.work, lambda path: pipeline.create_queues(space)):
        with pytest.raises(MessagesLeft) as left:
            run(space.path)
        assert (
            left.value.queues == pipeline.left_queues(space) == {"p.to.one.deliver": 1, "p.to.two": 1, "p.translate": 3}
        )
    assert space.redrive("p.translate", to="p") == 3
    space.redrive("p.to.two", to="p")
    arguments = ["-s", space.path, "--pipeline", str(file), "--no-spark", "--once"]
    result = CliRunner().invoke(main, [*arguments, "--route", "p.to.one.deliver=queue:p.to.one"])
    assert result.exit_code == 0, result.output
    assert pipeline.left_queues(space) == {}
