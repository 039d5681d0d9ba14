"""The demonstration: real files pass through a drop folder, Spark and two-phase commit to two services and back.

It starts the same programs as a user, kills one of them, and counts.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

import spool
from xaspool_scripts import demo_pipeline
from xaspool_scripts.common import Failure, SingleProgram
from xaspool_scripts.demo_services import describe

_QUEUES = ("by-python", "by-http")
_REPLIES, _SAMPLE, _SAMPLE_REPLIES = "replies", "sample", "sample-replies"
_SERVICES = "python:xaspool_scripts.demo_services"
_TIMEOUT_SECONDS = 300.0
_IDLE_SECONDS = "3"  # longer than the second after which a message is tried again
_POLL_SECONDS = 0.002


@click.command("demo", cls=SingleProgram)
@click.option("--keep", is_flag=True, help="Leave the queue space behind, to look at it.")
@click.option("--files", type=click.IntRange(min=50), default=None, help="Take only the first so many files.")
def main(keep: bool, files: int | None) -> None:
    """Send every source file of Python's standard library to two services and back, with a kill -9 in the middle."""
    begun = time.monotonic()
    directory = tempfile.mkdtemp(prefix="xaspool-demo-")
    try:
        with ExitStack() as stack:
            _Demo(directory, stack).run(standard_library()[:files])
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if keep:
        say(f"The queue space is in {directory}/space.")
    say(f"All of it took {time.monotonic() - begun:.0f} s.")


def say(text: str) -> None:
    click.echo(text)


def standard_library() -> list[tuple[str, Path]]:
    """(name, path) of every source file of the running Python's standard library, the path flattened with dots."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if path.is_file() and not {"site-packages", "dist-packages"} & set(parts):
            files.append((".".join(parts), path))
    return files


class Kill(NamedTuple):
    """The forwarder at the moment of its SIGKILL."""

    claimed: int
    prepared: int
    workers: int
    replies: int


class _Demo:
    """The steps, in order. `stack` ends the programs that were started."""

    def __init__(self, directory: str, stack: ExitStack) -> None:
        self.path = f"{directory}/space"
        self.stack = stack
        self.step = 0

    def announce(self, text: str) -> None:
        self.step += 1
        say(f"\n{self.step}. {text}")

    def run(self, files: list[tuple[str, Path]]) -> None:
        self.announce("Making a queue space, which is a directory, with two queues for work and one for replies.")
        space = self.stack.enter_context(spool.create(self.path))
        space.create_queue(_REPLIES)
        space.create_queue(_SAMPLE_REPLIES)
        for queue in _QUEUES:
            space.create_queue(queue, reply_queue=_REPLIES)
        space.create_queue(_SAMPLE, reply_queue=_SAMPLE_REPLIES)

        self.announce("Starting spool-intake, which turns dropped files into messages, and a small web service.")
        port = self._start_web_service()
        intake = self._start("intake")

        self.announce(f"Dropping {len(files):,} source files of Python's standard library into each of {_folders()}.")
        for queue in _QUEUES:
            drop(files, Path(self.path, "drop", queue))
        space.put(_SAMPLE, "this is a q example", correlation_id="sample-1")

        self.announce("Starting spool-forward: one queue goes to a Python function, the other to the web service.")
        routes = {
            "by-python": f"{_SERVICES}:describe_message",
            "by-http": f"http://127.0.0.1:{port}/describe",
            _SAMPLE: f"{_SERVICES}:upper",
        }
        forwarder = self._start("forward", *_route_options(routes))
        killed = self._kill_half_way(space, forwarder, 2 * len(files))
        say(
            f"   Killed it with SIGKILL after {killed.replies:,} replies, while it held {killed.claimed:,} messages and"
        )
        say(f"   {killed.prepared:,} branches were prepared, by {killed.workers} of Spark's Python workers and none")
        say("   by the forwarder itself.")

        self.announce("Waiting until every dropped file was taken, then starting spool-forward again.")
        self._wait(lambda: not waiting_files(self.path), "the intake", intake)
        _end(intake, signal.SIGTERM)
        # Not --once: a call that the web service drops would be left for later, and here it is made again.
        again = self._start("forward", "--idle-exit", _IDLE_SECONDS, *_route_options(routes))
        if again.wait(_TIMEOUT_SECONDS) != 0:
            raise Failure("the second spool-forward failed; what it said stands above")

        self.announce("Comparing every reply with what this program works out itself from the files.")
        comparison = compare(files, drained(space, _REPLIES))
        for line in comparison.lines():
            say(f"   {line}")
        sample = space.get(_SAMPLE_REPLIES).body
        say(f'   the sample application: "this is a q example" in, "{sample}" out')

        self.announce(f"Running a pipeline: each of {demo_pipeline.ORDERS} orders becomes three lines and a total.")
        whole = demo_pipeline.kill_and_finish(space, os.path.dirname(self.path), self._start)
        say(f"   Killed it with SIGKILL: {whole} orders were translated, each of them whole, in one commit.")
        say("   Started again, it translated the others. None is there twice, or in part.")
        self._judge(space, comparison, sample)

    def _judge(self, space: spool.Space, comparison: "Comparison", sample: str) -> None:
        left = {
            name: stats.ready + stats.delayed + stats.claimed + stats.in_doubt for name, stats in space.stats().items()
        }
        damaged = [finding for finding in space.check() if finding.kind == "damaged"]
        left = {name: count for name, count in left.items() if count}
        if not comparison.perfect or sample != "THIS IS A Q EXAMPLE" or left or damaged:
            raise Failure(f"that is not right: left in queues {left}, damaged {damaged}; please report it")
        counts = f"{comparison.expected:,} files in, {comparison.equal:,} right answers out"
        say(f"\nNothing lost, nothing doubled: {counts}.")

    # -- programs ---------------------------------------------------------------------------------------------------

    def _start(self, program: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", f"xaspool_scripts.{program}", "--space", self.path, *options]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.stack.callback(_end, started, signal.SIGKILL)
        return started

    def _start_web_service(self) -> int:
        command = [sys.executable, "-m", "xaspool_scripts.demo_services"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.stack.callback(_end, server, signal.SIGKILL)
        assert server.stdout is not None
        return int(server.stdout.readline())

    def _wait(self, condition: Any, who: str, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not condition():
            if process.poll() is not None:
                raise Failure(f"{who} ended early, with exit code {process.returncode}; what it said stands above")
            if time.monotonic() > deadline:
                raise Failure(f"{who} did not get there within {_TIMEOUT_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _kill_half_way(self, space: spool.Space, forwarder: "subprocess.Popen[bytes]", total: int) -> Kill:
        """Wait until half of the work is done and branches are prepared, stop the forwarder to count, then kill it."""
        prepared = Path(self.path, "prepared")
        kills: list[Kill] = []

        def killed() -> bool:
            if not any(prepared.iterdir()) or space.stats(_REPLIES).ready < total // 4:
                return False
            with _stopped(forwarder):
                kill = self._count(space, forwarder.pid)
                if kill is None:
                    return False
                kills.append(kill)
                forwarder.kill()
            return True

        self._wait(killed, "the forwarder", forwarder)
        forwarder.wait()
        return kills[0]

    def _count(self, space: spool.Space, driver: int) -> Kill | None:
        """Count what the forwarder holds; None if nothing is claimed or no branch is prepared.

        Raises:
            Failure: the forwarder itself wrote a branch.
        """
        writers = [writer_of(path) for path in Path(self.path, "prepared").glob("*.msgpack")]
        pids = [pid for pid in writers if pid is not None]
        stats = space.stats()
        claimed = sum(stats[queue].claimed for queue in _QUEUES)
        if not claimed or not pids:
            return None
        others = [pid for pid in pids if pid == driver or not descends_from_spark(pid)]
        if others:
            raise Failure(f"branches were written by {others}, which are none of Spark's Python workers")
        return Kill(claimed, len(pids), len(set(pids)), stats[_REPLIES].ready)


def _route_options(routes: dict[str, str]) -> Iterator[str]:
    for queue, service in routes.items():
        yield from ("--route", f"{queue}={service}")


def _folders() -> str:
    return " and ".join(f"drop/{queue}/" for queue in _QUEUES)


def _end(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def _stopped(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Stop a process meanwhile, so that nothing changes between the count and the kill."""
    process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        yield
    finally:
        process.send_signal(signal.SIGCONT)


# -- files --


def drop(files: list[tuple[str, Path]], folder: Path) -> None:
    """Drop files as any program would: write under a hidden name, rename when complete."""
    for name, path in files:
        hidden = folder / f".{name}"
        shutil.copyfile(path, hidden)
        hidden.rename(folder / name)


def waiting_files(path: str) -> bool:
    """Tell whether a dropped file is not a message yet."""
    dropped = any(any(folder.iterdir()) for folder in Path(path, "drop").iterdir())
    taken = (folder for folder in Path(path, "active").iterdir() if folder.name.startswith("drop."))
    return dropped or any(any(folder.iterdir()) for folder in taken)


# -- the process that wrote a branch --


def writer_of(path: Path) -> int | None:
    """Return the process that a branch's header names; None if the file is gone or not complete."""
    import msgpack

    try:
        with path.open("rb") as file:
            return int(msgpack.Unpacker(file).unpack()["writer"]["pid"])
    except (OSError, ValueError, KeyError, TypeError, msgpack.UnpackException):
        return None


def descends_from_spark(pid: int) -> bool:
    """Tell whether a process has Spark's Python daemon among its ancestors."""
    while pid > 1:
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes():
                return True
        except (OSError, ValueError, IndexError):
            return False
        pid = parent
    return False


# -- comparing --


class Comparison(NamedTuple):
    """The replies compared with the expected ones, as counts of (service, file) pairs."""

    expected: int
    replies: int
    missing: int
    doubled: int
    unexpected: int
    equal: int
    different: int
    bytes: int
    smallest: int
    largest: int

    @property
    def perfect(self) -> bool:
        wrong = self.missing or self.doubled or self.unexpected or self.different
        return not wrong and self.replies == self.expected == self.equal

    def lines(self) -> list[str]:
        return [
            f"files        {self.expected:,} of {self.smallest:,} to {self.largest:,} bytes, {self.bytes:,} in all",
            f"replies      {self.replies:,}",
            f"missing      {self.missing:,}",
            f"doubled      {self.doubled:,}",
            f"unexpected   {self.unexpected:,}",
            f"equal        {self.equal:,}",
            f"different    {self.different:,}",
        ]


def drained(space: spool.Space, queue: str) -> Iterator[spool.Message]:
    """Take all messages of a queue."""
    while True:
        try:
            yield from space.get_many(queue, 1000)
        except spool.Empty:
            return


def compare(files: list[tuple[str, Path]], replies: Iterator[spool.Message]) -> Comparison:
    import json

    right = {name: describe(path.read_bytes()) for name, path in files}
    expected = {(service, name) for service in ("python", "http") for name in right}
    seen: Counter[tuple[str, str]] = Counter()
    equal = 0
    for reply in replies:
        answer = dict(reply.body) if isinstance(reply.body, dict) else json.loads(reply.body)
        key = (answer.pop("service"), reply.headers["filename"])
        seen[key] += 1
        equal += answer == right.get(key[1])
    sizes = [answer["size"] for answer in right.values()]
    return Comparison(
        expected=len(expected),
        replies=seen.total(),
        missing=len(expected - set(seen)),
        doubled=sum(count - 1 for count in seen.values()),
        unexpected=len(set(seen) - expected),
        equal=equal,
        different=seen.total() - equal,
        bytes=2 * sum(sizes),
        smallest=min(sizes),
        largest=max(sizes),
    )


if __name__ == "__main__":
    main()
