"""The demonstration, with real files: a drop folder, Spark, two-phase commit, two services, and their replies.

The demonstration starts the same programs as a user would, kills two of them, and compares the replies with the files.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

import spool
from forwarder import Pipeline
from xaspool_scripts.sample import PIPELINE, SENTENCE, describe
from xaspool_scripts.terminal.program import Boundary, Failure

_QUEUES = ("by-python", "by-http")
_REPLIES, _SAMPLE, _SAMPLE_REPLIES = "replies", "sample", "sample-replies"
_SERVICES = "python:xaspool_scripts.sample"
_TIMEOUT_SECONDS = 300.0
_IDLE_SECONDS = "3"  # longer than the delay of a second after each failed attempt
_POLL_SECONDS = 0.002
ORDERS, _LINES = 400, 3
_DESTINATIONS = ("shop.to.warehouse", "shop.to.accounts")

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]


@click.command("demo", cls=Boundary)
@click.option("--keep", is_flag=True, help="Keep the queue space.")
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
        click.echo(f"The queue space is in {directory}/space.")
    click.echo(f"All of it took {time.monotonic() - begun:.0f} s.")


def standard_library() -> list[tuple[str, Path]]:
    """Return (name, path) for every source file of this Python's standard library. In the name, dots replace the path's
    slashes."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [(path.relative_to(root).parts, path) for path in sorted(root.rglob("*.py")) if path.is_file()]
    return [(".".join(parts), path) for parts, path in found if not {"site-packages", "dist-packages"} & set(parts)]


class _Demo:
    """The steps of the demonstration, in order. ``stack`` ends the started programs."""

    def __init__(self, directory: str, stack: ExitStack) -> None:
        self.path = f"{directory}/space"
        self.stack = stack
        self.step = 0

    def announce(self, text: str) -> None:
        self.step += 1
        click.echo(f"\n{self.step}. {text}")

    def run(self, files: list[tuple[str, Path]]) -> None:
        self.announce("Making a queue space, which is a directory, with two queues for work and one for replies.")
        space = self.stack.enter_context(spool.create(self.path))
        for queue in (_REPLIES, _SAMPLE_REPLIES):
            space.create_queue(queue)
        for queue in _QUEUES:
            space.create_queue(queue, reply_queue=_REPLIES)
        space.create_queue(_SAMPLE, reply_queue=_SAMPLE_REPLIES)

        self.announce("Starting spool-intake, which turns dropped files into messages, and a small web service.")
        server = self._begin("sample", stdout=subprocess.PIPE)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        intake = self._start("intake")

        folders = " and ".join(f"drop/{queue}/" for queue in _QUEUES)
        self.announce(f"Dropping {len(files):,} source files of Python's standard library into each of {folders}.")
        for queue in _QUEUES:
            drop(files, Path(self.path, "drop", queue))
        space.put(_SAMPLE, SENTENCE, correlation_id="sample-1")

        self.announce("Starting spool-forward: one queue goes to a Python function, the other to the web service.")
        routes = (
            f"--route=by-python={_SERVICES}:describe_message",
            f"--route=by-http=http://127.0.0.1:{port}/describe",
            f"--route={_SAMPLE}={_SERVICES}:capitals",
        )
        claimed, prepared, replies = self._kill_half_way(space, self._start("forward", *routes), len(files) // 2)
        click.echo(
            f"   Killed it with SIGKILL after {replies:,} replies, while it held {claimed:,} messages and\n"
            f"   {prepared:,} branches of two-phase commits were prepared."
        )

        self.announce("Waiting until every dropped file was taken, then starting spool-forward again.")
        wait(lambda: not waiting_files(self.path), "the intake", intake)
        _end(intake, signal.SIGTERM)
        # If the web service drops a call, this run repeats the call. With --once, a later run would have to repeat it.
        again = self._start("forward", "--idle-exit", _IDLE_SECONDS, *routes)
        if again.wait(_TIMEOUT_SECONDS) != 0:
            raise Failure("the second spool-forward failed; its messages stand above")

        self.announce("Comparing every reply with the one that this program computes from the file.")
        counts = compare(files, drained(space, _REPLIES))
        for name, count in counts.items():
            click.echo(f"   {name:<12} {count:,}")
        sample = space.get(_SAMPLE_REPLIES).body
        click.echo(f'   the sample application: "{SENTENCE}" in, "{sample}" out')

        self.announce(f"Running a pipeline: each of {ORDERS} orders becomes three lines and a total.")
        whole = kill_pipeline(space, os.path.dirname(self.path), self._start)
        click.echo(
            f"   Killed it with SIGKILL: {whole} orders were translated, each of them whole, in one commit.\n"
            "   Started again, it translated the others. None is there twice, or in part."
        )
        left = {
            name: count
            for name, stats in space.stats().items()
            if (count := stats.ready + stats.delayed + stats.claimed + stats.in_doubt)
        }
        damaged = [finding for finding in space.check() if finding.kind == "damaged"]
        if not is_perfect(counts) or sample != SENTENCE.upper():
            raise Failure(f"that is not right: counts {counts}, sample {sample!r}; please report it")
        if left or damaged:
            raise Failure(f"that is not right: left in queues {left}, damaged {damaged}; please report it")
        click.echo(
            f"\nNothing lost, nothing doubled: {2 * len(files):,} files in, {counts['equal']:,} right answers out."
        )

    def _start(self, program: str, *options: str) -> Process:
        return self._begin(program, "--space", self.path, *options, stdout=subprocess.DEVNULL)

    def _begin(self, program: str, *options: str, stdout: int) -> Process:
        command = [sys.executable, "-m", f"xaspool_scripts.{program}", *options]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout)
        self.stack.callback(_end, started, signal.SIGKILL)
        return started

    def _kill_half_way(self, space: spool.Space, forwarder: Process, least: int) -> tuple[int, int, int]:
        """Kill the forwarder after ``least`` replies. Return the numbers of claimed messages, of prepared branches and
        of replies at this time."""
        counts: list[tuple[int, int, int]] = []

        def killed() -> bool:
            if space.stats(_REPLIES).ready < least or not _prepared(self.path):
                return False
            with _stopped(forwarder):
                stats = space.stats()
                claimed, prepared = sum(stats[queue].claimed for queue in _QUEUES), _prepared(self.path)
                if claimed and prepared:
                    counts.append((claimed, prepared, stats[_REPLIES].ready))
                    forwarder.kill()
            return bool(counts)

        wait(killed, "the forwarder", forwarder)
        forwarder.wait()
        return counts[0]


def wait(condition: Callable[[], bool], name: str, process: Process) -> None:
    """Wait until a condition holds. Raise Failure if the process ends earlier, or if five minutes have passed."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if process.poll() is not None:
            raise Failure(f"{name} ended early, with exit code {process.returncode}; its messages stand above")
        if time.monotonic() > deadline:
            raise Failure(f"{name} did not get there within {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _end(process: Process, number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def _stopped(process: Process) -> Iterator[None]:
    """Pause a process, so that no number changes between the counting and the kill."""
    process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def drop(files: list[tuple[str, Path]], folder: Path) -> None:
    """Drop files in the usual way: write each file under a hidden name, and rename the complete file."""
    for name, path in files:
        hidden = folder / f".{name}"
        shutil.copyfile(path, hidden)
        hidden.rename(folder / name)


def waiting_files(path: str) -> bool:
    """Return whether a dropped file exists that is not yet a message."""
    captured = Path(path, "active").glob("drop.*")
    return any(any(folder.iterdir()) for folder in (*Path(path, "drop").iterdir(), *captured))


def _prepared(path: str) -> int:
    return len(os.listdir(f"{path}/prepared"))


def drained(space: spool.Space, queue: str) -> Iterator[spool.Message]:
    """Take all messages of a queue."""
    while True:
        try:
            yield from space.get_many(queue, 1000)
        except spool.Empty:
            return


def compare(files: list[tuple[str, Path]], replies: Iterable[spool.Message]) -> dict[str, int]:
    """Compare the replies of both services with the expected replies. Return counts by name, e.g. "missing"."""
    right = {name: describe(path.read_bytes()) for name, path in files}
    expected = {(service, name) for service in ("python", "http") for name in right}
    seen: Counter[tuple[str, str]] = Counter()
    equal = 0
    for reply in replies:
        answer = dict(reply.body) if isinstance(reply.body, dict) else json.loads(reply.body)
        key = (answer.pop("service"), reply.headers["filename"])
        seen[key] += 1
        equal += answer == right.get(key[1])
    return {
        "replies": seen.total(),
        "equal": equal,
        "missing": len(expected - set(seen)),
        "doubled": sum(count - 1 for count in seen.values()),
        "unexpected": len(set(seen) - expected),
        "different": seen.total() - equal,
    }


def is_perfect(counts: dict[str, int]) -> bool:
    """Return whether every expected reply arrived once and is right."""
    return not any(counts[name] for name in ("missing", "doubled", "unexpected", "different"))


def kill_pipeline(space: spool.Space, directory: str, start: Start) -> int:
    """Translate orders, kill the program halfway, and let another program do the rest.

    Return the number of orders that were translated before the kill. Raise Failure if an order was translated in part,
    twice or never.
    """
    file = Path(directory, "shop.toml")
    file.write_text(PIPELINE)
    Pipeline.load(file).create_queues(space)
    orders = [{"lines": [{"item": n, "count": line} for line in range(1, _LINES + 1)]} for n in range(ORDERS)]
    expected = set(space.put_many("shop", orders))
    program = start("forward", "--no-spark", "--pipeline", str(file))
    wait(lambda: space.stats(_DESTINATIONS[1]).enqueued >= ORDERS // 3, "the pipeline", program)
    program.kill()
    program.wait()
    translated = _whole(space)
    if start("forward", "--no-spark", "--once", "--pipeline", str(file)).wait(_TIMEOUT_SECONDS) != 0:
        raise Failure("the pipeline failed when it was started again; its messages stand above")
    if _whole(space) != expected or space.stats("shop").ready:
        raise Failure("not every order was translated; please report it")
    for queue in _DESTINATIONS:
        space.purge(queue)
    return len(translated)


def _whole(space: spool.Space) -> set[str]:
    """Return the translated orders. Raise Failure if an order was translated in part, twice, or in several commits."""
    parts = defaultdict[str, list[tuple[str, int]]](list)
    for queue in _DESTINATIONS:
        for message in space.browse(queue):
            parts[message.correlation_id or ""].append((queue, message.position.number))
    whole = [_DESTINATIONS[1], *[_DESTINATIONS[0]] * _LINES]
    for order, found in parts.items():
        if sorted(queue for queue, _ in found) != whole or len({number for _, number in found}) > 1:
            raise Failure(f"order {order} was translated in part, or twice: {found}; please report it")
    return set(parts)


if __name__ == "__main__":
    main()
