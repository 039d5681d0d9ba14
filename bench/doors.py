"""The doors of a space that ``bench.before`` compares: Spark, workers, dropped files, and packages for frameworks.

A door has some steps. The player of ``bench.before`` opens the door with its own tree's packages, and then prepares and
runs a step in each turn. Only the run is timed. This module imports the tree's packages only in functions, also
through modules of ``bench``.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bench.cases.celery import Publisher
    from spool import Space

PACKAGES = ("celery_xaspool", "django_xaspool", "dramatiq_xaspool", "pyspark_xaspool")
"""The packages of ``scripts/`` that the doors use."""

_BODY = os.urandom(1024)
_A_COMMIT = 1_000


class Step(NamedTuple):
    """A step of a door. ``run`` returns its seconds, or None if the whole call is to be timed."""

    prepare: Callable[[], object]
    run: Callable[[], float | None]


class Door(NamedTuple):
    """A door: the numbers of messages in a turn, by step, and the function that opens the door.

    opened: called with the directory of the player's tree's packages, a new directory, and the numbers of messages. It
        yields the steps in their order, or raises Missing if this machine or the tree lacks a package.
    """

    steps: Mapping[str, int]
    opened: Callable[[Path, Path, Sequence[int]], AbstractContextManager[Sequence[Step]]]


def nothing(message: object) -> None:
    """A service that costs nothing."""


def need(packages: Path, *names: str) -> None:
    """Import packages of the tree. Raises Missing if the tree or this machine lacks one."""
    from bench.peers.base import Missing

    for name in names:
        if not (packages / name).exists():
            raise Missing(f"the tree has no {name}")
        try:
            import_module(name)
        except ImportError as error:
            raise Missing(f"it takes an extra of xaspool: {error}") from error


@contextmanager
def _space(path: Path) -> Iterator["Space"]:
    import spool

    with spool.create(str(path)) as space:
        space.create_queue("q")
        yield space


def _fill(space: "Space", count: int) -> None:
    for begun in range(0, count, _A_COMMIT):
        space.put_many("q", [_BODY] * min(_A_COMMIT, count - begun))


def _expect(wanted: object, found: object) -> None:
    if wanted != found:
        raise RuntimeError(f"{found} instead of {wanted}")


# -- Spark -------------------------------------------------------------------------------------------------------------


@contextmanager
def _spark(packages: Path, directory: Path, counts: Sequence[int]) -> Iterator[Sequence[Step]]:
    need(packages, "pyspark_xaspool")
    from bench.peers.base import Missing
    from bench.sessions import session_on
    from forwarder import Forwarder, SparkUnavailable, register

    forwards, reads, writes = counts
    with ExitStack() as opened:
        try:
            session = opened.enter_context(session_on("local[2]"))
        except SparkUnavailable as error:
            raise Missing(str(error)) from error
        register(session)
        _expect({str(packages)}, set(session.sparkContext.parallelize([0, 0], 2).map(_place_of_spool).collect()))
        space, full, written = (opened.enter_context(_space(directory / name)) for name in ("on", "full", "written"))
        _fill(full, reads)
        rows = session.range(writes).selectExpr("cast(string(id) as binary) as body", "'q' as queue").cache()
        rows.count()

        def forward() -> None:
            summary = Forwarder(space.path, {"q": "python:bench.doors:nothing"}, session).run(once=True)
            _expect({"q": {"delivered": forwards}}, summary.effects)

        def read() -> None:
            _expect(reads, session.read.format("spool").load(full.path).count())

        def write() -> None:
            rows.write.format("spool").mode("append").save(written.path)

        yield (
            Step(partial(_fill, space, forwards), forward),
            Step(lambda: None, read),
            Step(lambda: None, write),
        )


def _place_of_spool(_: int) -> str:
    return str(Path(import_module("spool").__file__ or "").parents[1])


# -- without Spark -----------------------------------------------------------------------------------------------------


@contextmanager
def _threads(packages: Path, directory: Path, counts: Sequence[int]) -> Iterator[Sequence[Step]]:
    from forwarder import ThreadForwarder
    from spool.intake import Intake

    forwards, works, drops = counts
    with _space(directory / "s") as space:
        folder = Path(space.path, "drop", "q")
        folder.mkdir(exist_ok=True)

        def forward() -> None:
            summary = ThreadForwarder(space.path, {"q": "python:bench.doors:nothing"}).run(once=True)
            _expect({"q": {"delivered": forwards}}, summary.effects)

        def work() -> None:
            space.work("q", nothing, once=True)

        def drop() -> None:
            while space.stats("q").ready:  # the files of the last turn
                space.get_many("q", _A_COMMIT)
            for number in range(drops):
                folder.joinpath(f"{number}.bin").write_bytes(_BODY)

        def take() -> None:
            _expect(drops, Intake(space).run(once=True).files)

        yield (
            Step(partial(_fill, space, forwards), forward),
            Step(partial(_fill, space, works), work),
            Step(drop, take),
        )
        space.work("q", nothing, once=True)


# -- frameworks --------------------------------------------------------------------------------------------------------


@contextmanager
def _celery(packages: Path, directory: Path, counts: Sequence[int]) -> Iterator[Sequence[Step]]:
    need(packages, "celery_xaspool")
    from bench.cases.celery import Broker

    publishes, drains = counts
    with ExitStack() as opened:
        doors: list[tuple[Broker, Publisher]] = []
        for name in ("published", "drained"):
            broker = Broker(name, f"xaspool://{directory}/{name}", directory / f"{name}.log", (str(packages), *_HERE))
            broker.log.touch()
            doors.append((broker, opened.enter_context(broker.publisher())))
        (_, publisher), (drained, filler) = doors
        workers = opened.enter_context(ExitStack())

        def fill() -> None:
            workers.close()  # the worker of the last turn
            drained.clear()
            filler.publish(drains)

        def drain() -> float:
            workers.enter_context(drained.worker(2))
            starts = sorted(drained.wait_for(drains))
            return starts[-1] - starts[0]

        yield (
            Step(lambda: None, lambda: publisher.publish(publishes) and None),
            Step(fill, drain),
        )


_HERE = (str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "scripts"))


@contextmanager
def _django(packages: Path, directory: Path, counts: Sequence[int]) -> Iterator[Sequence[Step]]:
    need(packages, "django_xaspool")
    from django.conf import settings
    from django.core.management import call_command

    backend = {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": {"space": str(directory / "django")}}
    tasks = {"default": {**backend, "QUEUES": ["default", "enqueued", "run"]}}
    settings.configure(TASKS=tasks, INSTALLED_APPS=["django_xaspool"], LOGGING_CONFIG=None, USE_TZ=True)
    import_module("django").setup()
    nothing: Any = import_module("bench.django_tasks").nothing
    enqueued, run = (nothing.using(queue_name=name) for name in ("enqueued", "run"))
    enqueues, runs = counts

    def enqueue(task: Any, count: int) -> None:
        for _ in range(count):
            task.enqueue()

    yield (
        Step(lambda: None, partial(enqueue, enqueued, enqueues)),
        Step(partial(enqueue, run, runs), partial(call_command, "spool_worker", queue=["run"], once=True, verbosity=0)),
    )


@contextmanager
def _dramatiq(packages: Path, directory: Path, counts: Sequence[int]) -> Iterator[Sequence[Step]]:
    need(packages, "dramatiq_xaspool")
    import dramatiq

    made: Any = import_module("dramatiq_xaspool").XaspoolBroker
    broker = made(str(directory / "dramatiq"))
    sent, run = (
        dramatiq.actor(actor_name=name, queue_name=name, broker=broker)(lambda: None) for name in ("sent", "run")
    )
    sends, runs = counts

    def send(actor: Any, count: int) -> None:
        for _ in range(count):
            actor.send()

    worker = dramatiq.Worker(broker, queues={"run"}, worker_threads=2)
    worker.start()

    def fill() -> None:
        worker.pause()
        send(run, runs)

    def work() -> None:
        worker.resume()
        broker.join("run", interval=1)

    yield Step(lambda: None, partial(send, sent, sends)), Step(fill, work)
    worker.stop()
    broker.close()


DOORS = (
    Door({"forward on Spark": 60_000, "Spark, read": 60_000, "Spark, write": 20_000}, _spark),
    Door({"forward without Spark": 300, "worker": 300, "dropped files": 300}, _threads),
    Door({"Celery, publish": 200, "Celery, drain": 300}, _celery),
    Door({"Django, enqueue": 100, "Django, run": 100}, _django),
    Door({"Dramatiq, send": 100, "Dramatiq, run": 200}, _dramatiq),
)
"""All doors, in the order of the table."""


def tree_seconds() -> float:
    """Return the processor seconds of this process and of the processes that it started, as far as they still live."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(") ")[2].split()
        except OSError:  # no process, or one that has ended
            continue
        parents[int(entry.name)] = int(fields[1])
        seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours = more = {os.getpid()}
    while more:
        more = {process for process, parent in parents.items() if parent in ours} - ours
        ours = ours | more
    return sum(seconds[process] for process in ours)
