"""The setting of a run: the directory, the sizes, the available peers, and the machine."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from bench.journal import ext4_with_a_journal
from bench.peers import PEERS
from bench.peers.base import Line, Missing, Peer
from bench.spaces import Spaces
from spool.disk import Disk


@dataclass(frozen=True)
class Sizes:
    """The sizes of the cases. The defaults are for the short run, which takes minutes and only shows that all works."""

    label: str = "short: small sizes, for trying only"
    calm_seconds: float = 5.0
    rounds: int = 300
    warm_up: int = 600
    slices: int = 5
    thread_commits: int = 40
    outstanding: int = 1_000
    submitted: int = 5_000
    process_messages: int = 100
    latencies: int = 100
    idle_seconds: float = 3.0
    opens: int = 5
    opened: int = 20_000
    waiting: tuple[int, ...] = (20_000, 100_000)
    backlogs: tuple[int, ...] = (1_000, 10_000, 100_000)
    starts: int = 10
    spark_messages: int = 200_000
    spark_reads: int = 5
    forwarded: int = 10_000
    forwards: int = 3
    tasks: int = 1_000
    image_megabytes: int = 1_500


FULL = Sizes(
    label="full",
    calm_seconds=120.0,
    rounds=3_000,
    warm_up=1_200,
    slices=15,
    thread_commits=250,
    submitted=50_000,
    process_messages=500,
    latencies=1_000,
    idle_seconds=10.0,
    opens=7,
    opened=1_000_000,
    waiting=(1_000_000, 10_000_000),
    backlogs=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    starts=50,
    spark_messages=1_000_000,
    spark_reads=15,
    forwarded=50_000,
    forwards=5,
    tasks=10_000,
    image_megabytes=6_000,
)

ONCE = Sizes(
    label="once: only shows that all works",
    calm_seconds=0.0,
    rounds=10,
    warm_up=10,
    slices=1,
    thread_commits=5,
    outstanding=100,
    submitted=500,
    process_messages=10,
    latencies=10,
    idle_seconds=0.2,
    opens=1,
    opened=2_000,
    waiting=(1_000, 2_000),
    backlogs=(1_000, 2_000),
    starts=1,
    spark_messages=2_000,
    spark_reads=1,
    forwarded=200,
    forwards=1,
    tasks=100,
    image_megabytes=64,
)

# The peers in the targets of the cases on ext4 with a journal.
_DATABASE_MEGABYTES = 300  # the size of an empty database
_ON_JOURNAL = ("raw append", "xaspool", "SQLite", "SimpleBroker", "persist-queue", "Redis", "PostgreSQL")


@dataclass
class Bench:
    """The argument of every case."""

    directory: str
    sizes: Sizes
    peers: dict[str, Peer] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    ending: ExitStack = field(default_factory=ExitStack)  # the actions at the end of the run, with the last first

    @cached_property
    def on_journal(self) -> "Bench | Missing":
        """The same bench on ext4 with a journal, with the peers for these cases; or the error ``Missing``."""
        try:
            megabytes = self.sizes.image_megabytes + _DATABASE_MEGABYTES * ("PostgreSQL" in self.peers)
            directory = self.ending.enter_context(ext4_with_a_journal(self.directory, megabytes))
        except Missing as missing:
            return missing
        there = Bench(directory, self.sizes, ending=self.ending)
        for name, peer in self.peers.items():
            if name in _ON_JOURNAL:
                _start(there, type(peer)())
        return there

    @cached_property
    def spaces(self) -> Spaces:
        """The spaces with a backlog, which several cases share."""
        return Spaces(self.directory)

    @cached_property
    def has_journal(self) -> bool:
        """Whether the disk is ext4 with a journal, for which some targets are higher."""
        from spool.disk.durability import Journaled  # (``bench.before`` also runs this module with older trees)

        return isinstance(Disk(self.directory).durability, Journaled)

    def lines(self, queue: str, names: Iterable[str] | None = None) -> dict[str, Line]:
        """Return a line to the queue of this name for each named contender that is available."""
        wanted = self.peers if names is None else [name for name in names if name in self.peers]
        return {name: self.peers[name].line(queue) for name in wanted}

    def best_durable(self, medians: dict[str, float]) -> str | None:
        """Return the durable peer with the least time, apart from xaspool and the raw append."""
        names = [n for n in medians if self.peers[n].durable and n not in ("xaspool", "raw append")]
        return min(names, key=medians.__getitem__, default=None)

    @contextmanager
    def scratch(self, what: str) -> Iterator[str]:
        """Yield a directory for one case. It is removed afterwards."""
        path = tempfile.mkdtemp(prefix=f"{what}-", dir=self.directory)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def running(where: str, sizes: Sizes, names: Iterable[str]) -> Iterator[Bench]:
    """Yield a bench with the named peers, in a separate directory that is removed afterwards."""
    directory = tempfile.mkdtemp(prefix="xaspool-bench-", dir=os.path.abspath(where))
    os.chmod(directory, 0o711)  # a server of another user needs to pass through
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, directory, ignore_errors=True)
        bench = Bench(directory, sizes, ending=ending)
        for kind in PEERS:
            if kind.name in names:
                _start(bench, kind())
        yield bench


def _start(bench: Bench, peer: Peer) -> None:
    own = f"{bench.directory}/{type(peer).__name__.lower()}"
    os.mkdir(own)
    bench.ending.callback(peer.stop)
    try:
        peer.start(own)
    except Missing as missing:
        bench.skipped.append(f"{peer.name}: {missing}")
    else:
        bench.peers[peer.name] = peer


def describe(directory: str, sizes: Sizes) -> dict[str, str]:
    """Return a description of the machine and its disk for readers of the document."""
    disk = Disk(directory)
    return {
        "sizes": sizes.label,
        "processor": f"{len(os.sched_getaffinity(0))} cores, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "file system": f"{disk.file_system().kind}; {disk.durability.description}",
        "system": f"{platform.system()} {platform.release()}, {platform.python_implementation()} "
        f"{platform.python_version()}",
    }


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
