"""``python -m bench.before``: compare the speed of this tree with the speed of the commit in ``bench/baseline``.

The baseline is pinned, so that small losses add up visibly. Another tree can be named instead. Three processes, one of
this tree and two of the older tree, take turns of a few milliseconds in random order. Each process has a space on the
same disk. Teams of producing and consuming processes are compared in the same way. The difference between the two
processes of the older tree is the noise of the run. Only a larger difference is a difference of this tree. The printed
figures are medians of the turns' ratios, for the time and the processor time; above 1 is slower.

The other doors of a space (``bench.doors``) are steps of the same table: Spark, workers, dropped files, Celery, Django
and Dramatiq. Their turns last up to seconds, so each door has a quarter of the turns, and processes without other work.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.doors import DOORS, PACKAGES, Door, Step, tree_seconds

if TYPE_CHECKING:
    from bench.cases.processes import Team
    from spool import Space
    from xa import ResourceManager

HERE = Path(__file__).parents[1]
BASELINE = Path(__file__).with_name("baseline")
_JOURNAL_MEGABYTES = 2_000
# The repetitions of each step in one turn. With these numbers, all turns take about the same time.
STEPS = {
    "put, 1 a commit": 100,
    "get, 1 at a time": 100,
    "put, 1 a commit, of mixed sizes": 100,
    "get, 1 at a time, of mixed sizes": 100,
    "put, 100 a commit": 20,
    "get, 100 at a time": 20,
    "get and put in a transaction": 60,
    "100 puts with a call each": 10,
    "100 gets with a call each": 3,
    "two-phase commit of a put": 30,
    "submit 1,000, wait for all": 1,
    "through 1 + 1 processes": 60,
    "through 4 + 4 processes": 80,
}
ALL = (*STEPS, *(step for door in DOORS for step in door.steps))
_SHARE = 4  # a step of a door has a turn in each fourth round
_OF_EACH = {"through 1 + 1 processes": 1, "through 4 + 4 processes": 4}
_OLDER, _AGAIN, _NEWER = "before", "before, again", "now"
_BODY = os.urandom(1024)
_MIXED = [os.urandom(200 + 700 * place % 2_801) for place in range(97)]  # bodies of 200 to 3,000 bytes
_READY = 4_500  # the least number of messages in the queue before a step


class Turn(NamedTuple):
    """The seconds of one step: the elapsed time and the processor time."""

    elapsed: float
    busy: float


class Ratios(NamedTuple):
    """The results of a step: microseconds in the older and in this tree, and the ratios to the older tree's turns."""

    older_us: float
    newer_us: float
    noise: float
    elapsed: float
    busy_noise: float
    busy: float


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.before", description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?", help="the older tree; default: the commit of bench/baseline")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure; default: here")
    parser.add_argument("--journal", action="store_true", help="on ext4 with a journal, in a file there (as root)")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each (40)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only steps with this in their name")
    parser.add_argument("--play", type=Path, metavar="SPACE", help=argparse.SUPPRESS)  # run as one of the processes
    asked = parser.parse_args(arguments)
    if asked.play is not None:
        play(asked.checkout, asked.play)
        return
    from bench.journal import ext4_with_a_journal  # imports ``spool``, but a player needs its own tree's ``spool``
    from bench.peers.base import Missing

    if asked.checkout is not None and not (asked.checkout / "spool" / "__init__.py").exists():
        parser.error(f"{asked.checkout} holds no spool/: name a checkout of this repository")
    steps = [step for step in ALL if asked.only in step]
    with ExitStack() as opened:
        directory = Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="xaspool-before-", dir=asked.directory))
        )
        checkout = asked.checkout or extracted(BASELINE.read_text().split()[0], directory / "baseline")
        try:
            if asked.journal:
                directory = Path(opened.enter_context(ext4_with_a_journal(str(directory), _JOURNAL_MEGABYTES)))
        except Missing as error:
            parser.error(str(error))
        print(f"{'':34} {'before':>10} {'now':>10}   time: noise, now   processor: noise, now")
        for step, found in compare(checkout, directory, asked.rounds, steps):
            if isinstance(found, str):
                print(f"{step:34} {found}", flush=True)
            else:
                print(
                    f"{step:34} {found.older_us:7,.0f} µs {found.newer_us:7,.0f} µs "
                    f"{found.noise:12.2f} {found.elapsed:6.2f} {found.busy_noise:17.2f} {found.busy:6.2f}",
                    flush=True,
                )


def extracted(commit: str, target: Path) -> Path:
    """Extract a commit of this repository into a new directory, and return the directory."""
    archive = target.with_suffix(".tar")
    done = subprocess.run(["git", "archive", "--output", str(archive), commit], cwd=HERE, check=False)
    if done.returncode:
        raise SystemExit(f"commit {commit} is not in this repository: clone it with its whole history, or name a tree")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    archive.unlink()
    return target


def compare(checkout: Path, directory: Path, rounds: int, steps: list[str]) -> Iterator[tuple[str, Ratios | str]]:
    """Yield the ratios of each step, or the reason why a tree cannot do the step."""
    trees = {_OLDER: checkout.resolve(), _AGAIN: checkout.resolve(), _NEWER: HERE}
    groups = [([step for step in STEPS if step in steps], rounds)]
    groups += [([step for step in door.steps if step in steps], -(-rounds // _SHARE)) for door in DOORS]
    for place, (group, turns) in enumerate(groups):
        if group:
            (directory / str(place)).mkdir()
            yield from _compare(trees, directory / str(place), turns, group)


def _compare(
    trees: dict[str, Path], directory: Path, rounds: int, steps: list[str]
) -> Iterator[tuple[str, Ratios | str]]:
    turns, missing = dict[tuple[str, str], list[Turn]](), dict[str, str]()
    with ExitStack() as opened:
        askers = {
            name: opened.enter_context(player(tree, directory / str(place)))
            for place, (name, tree) in enumerate(trees.items())
        }
        for number in range(rounds + 1):  # the first round warms up
            for step in steps:
                for name in random.sample(list(askers), len(askers)):
                    turn = missing.get(step) or askers[name](step)
                    if isinstance(turn, str):
                        missing[step] = turn
                    elif number:
                        turns.setdefault((step, name), []).append(turn)
    for step in steps:
        yield step, missing.get(step) or _ratios(*(turns[step, name] for name in (_OLDER, _AGAIN, _NEWER)))


def _ratios(older: list[Turn], again: list[Turn], newer: list[Turn]) -> Ratios:
    def ratio(of: list[Turn], which: int) -> float:
        return statistics.median(turn[which] / before[which] for turn, before in zip(of, older, strict=True))

    return Ratios(
        older_us=statistics.median(turn.elapsed for turn in older) * 1e6,
        newer_us=statistics.median(turn.elapsed for turn in newer) * 1e6,
        noise=ratio(again, 0),
        elapsed=ratio(newer, 0),
        busy_noise=ratio(again, 1),
        busy=ratio(newer, 1),
    )


# -- a process that does steps when it is asked to ---------------------------------------------------------------------


@contextmanager
def player(tree: Path, space: Path) -> Iterator[Callable[[str], Turn | str]]:
    """Start a process with the tree's ``spool``; yield a function that runs a step in the process.

    The function returns a text if the process cannot do the step.
    """
    command = [sys.executable, "-m", "bench.before", str(tree), "--play", str(space)]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, heard = process.stdin, process.stdout

        def ask(step: str) -> Turn | str:
            print(step, file=told, flush=True)
            line = heard.readline()
            if not line:
                raise RuntimeError(f"the process of {tree} has ended: what it said is above")
            told_back = json.loads(line)
            return told_back if isinstance(told_back, str) else Turn(*told_back)

        try:
            yield ask
        finally:
            told.close()


def play(tree: Path, path: Path) -> None:
    """Run each step that the input names, until the input ends."""
    packages = path.with_name(f"{path.name}-packages")  # no bench: child processes use this tree's bench
    packages.mkdir()
    for name in ("forwarder", "recovery", "spool", "xa", *(f"scripts/{name}" for name in PACKAGES)):
        if (tree / name).exists():
            (packages / Path(name).name).symlink_to(tree / name)
    sys.path.insert(0, str(packages))
    os.chdir(packages)  # the current directory is the first place in which child processes look for modules
    import recovery
    import spool
    import xa

    for module in (recovery, spool, xa):
        if module.__file__ is None or Path(module.__file__).resolve().parents[1] != tree:
            raise SystemExit(f"{module.__file__} was imported, which is not of {tree}")
    told, sys.stdout = sys.stdout, sys.stderr  # (programs of the doors print)
    doors = {step: door for door in DOORS for step in door.steps}
    with ExitStack() as opened:
        played, open_doors = None, dict[int, Sequence[Step] | str]()
        for line in sys.stdin:
            step = line.strip()
            if step in doors:
                answer = _door_turn(doors[step], step, packages, path, opened, open_doors)
            else:
                played = played or opened.enter_context(_played(path))
                answer = played(step)
            print(json.dumps(answer), file=told, flush=True)


def _door_turn(
    door: Door, step: str, packages: Path, path: Path, opened: ExitStack, open_doors: dict[int, Sequence[Step] | str]
) -> list[float] | str:
    """Return the seconds per message, or the reason why this process cannot open the door."""
    from bench.peers.base import Missing

    if id(door) not in open_doors:
        directory = path.with_name(f"{path.name}-door")
        directory.mkdir()
        try:
            open_doors[id(door)] = opened.enter_context(door.opened(packages, directory, [*door.steps.values()]))
        except Missing as missing:
            open_doors[id(door)] = str(missing)
    steps = open_doors[id(door)]
    if isinstance(steps, str):
        return steps
    prepare, run = steps[[*door.steps].index(step)]
    prepare()
    begun, busy = time.perf_counter(), tree_seconds()
    elapsed = run()
    spent = elapsed or time.perf_counter() - begun, tree_seconds() - busy
    return [seconds / door.steps[step] for seconds in spent]


@contextmanager
def _played(path: Path) -> Iterator[Callable[[str], list[float]]]:
    """Open a space; yield a function that runs a step of ``STEPS``, and returns the seconds per repetition."""
    import spool
    import xa

    with spool.create(path) as space:
        space.create_queue("q")
        space.create_queue("mixed")
        manager, teams = xa.ResourceManager(space), dict[str, "Team"]()

        def turn(step: str) -> list[float]:
            while space.stats("q").ready < _READY:  # (with --only, no other step may put messages for the gets)
                space.put_many("q", [_BODY] * 500)
            while "mixed" in step and space.stats("mixed").ready < _READY:
                for body in _MIXED:  # (one file per message, as by usual puts)
                    space.put("mixed", body)
            begun, busy = time.perf_counter(), time.process_time()
            if step in _OF_EACH:
                team = teams.get(step) or teams.setdefault(step, _team(f"{path}-processes", _OF_EACH[step]))
                begun = time.perf_counter()  # (without the start of the team's processes)
                team.slice(STEPS[step] // _OF_EACH[step])
                spent = time.perf_counter() - begun, team.busy[-1] * STEPS[step]
            else:
                for place in range(STEPS[step]):
                    _do(space, step, manager, place)
                spent = time.perf_counter() - begun, time.process_time() - busy
            return [seconds / STEPS[step] for seconds in spent]

        yield turn
        for team in teams.values():
            team.end()


def _team(directory: str, of_each: int) -> "Team":
    """Return a team of producing and consuming processes with this process's ``spool``."""
    from bench.cases.processes import Team
    from bench.peers.ours import Ours

    peer = Ours()
    peer.directory = directory
    os.makedirs(directory, exist_ok=True)
    return Team(peer, f"q{of_each}", of_each)


def _do(space: "Space", step: str, manager: "ResourceManager", place: int) -> None:
    if step == "put, 1 a commit":
        space.put("q", _BODY)
    elif step == "get, 1 at a time":
        space.get("q")
    elif step == "put, 1 a commit, of mixed sizes":
        space.put("mixed", _MIXED[place % len(_MIXED)])
    elif step == "get, 1 at a time, of mixed sizes":
        space.get("mixed")
    elif step == "put, 100 a commit":
        space.put_many("q", [_BODY] * 100)
    elif step == "get, 100 at a time":
        space.get_many("q", 100)
    elif step == "get and put in a transaction":
        with space.transaction() as tx:
            tx.put("q", tx.get("q").body)
    elif step == "100 puts with a call each":
        with space.transaction() as tx:
            for _ in range(100):
                tx.put("q", _BODY)
    elif step == "100 gets with a call each":
        with space.transaction() as tx:
            for _ in range(100):
                tx.get("q")
    elif step == "two-phase commit of a put":
        _commit_in_two_phases(space, manager)
    else:
        for future in [space.submit("q", _BODY) for _ in range(1000)]:
            future.result()


def _commit_in_two_phases(space: "Space", manager: "ResourceManager") -> None:
    from xa import Xid

    xid = Xid(1, os.urandom(16), b"")
    manager.start(xid)
    space.put("q", _BODY)
    manager.end(xid)
    manager.prepare(xid)
    manager.commit(xid)


if __name__ == "__main__":
    main()
