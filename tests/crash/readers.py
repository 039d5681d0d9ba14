"""Reads of a queue, as Spark plans and makes them, beside puts, takes, compactions and reclaim.

A plan holds no files: it names places in files, and a file can be compacted and reused before a task opens it. So a
read pauses after its plan and before each item of a task, and other processes run.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from unittest import mock

from pyspark.sql.streaming.datasource import ReadMaxRows

import spool
from forwarder.dataframes.columns import StreamOptions, columns
from forwarder.dataframes.stream import StreamReader
from spool.model.layout import MAX_NUMBER
from spool.reading import message_reader
from spool.reading.backlog import Backlog
from spool.reading.places import Item
from tests import door
from tests.compaction import small_compactions
from tests.crash.compactions import COMPACTED, compacting
from tests.crash.interleave import Scenario, Simulation
from tests.crash.operations import OperationLog, Reading
from tests.crash.programs import Program, getting, one_after_the_other, putting, reclaiming, rolling_back
from tests.simdisk import ROOT

_REST_SECONDS = 0.01


def _rows(simulation: Simulation, items: Sequence[Item]) -> Iterator[str]:
    """The rows of a task. Its process opens the space only if a message has moved."""
    disk = simulation.disk(simulation.machine, simulation.schedule)
    with mock.patch.object(message_reader, "Disk", return_value=disk):
        files = message_reader.MessageReader(ROOT, lambda: simulation.open(disk), with_body=True)
    with closing(files):
        for item in items:
            simulation.clock.sleep(_REST_SECONDS)
            for part in files.parts(item):
                yield from (bytes(body).decode() for body in part.bodies)


def reading(simulation: Simulation) -> Program:
    """A batch read of queue a in two tasks."""

    def run(space: spool.Space) -> None:
        read = Reading(simulation.log, "a")
        items = [item for item, _ in Backlog(door.store(space), ["a"]).items(1, MAX_NUMBER)]
        for part in (items[::2], items[1::2]):
            for body in _rows(simulation, part):
                read.found(body)
        read.end()

    return run


def streaming(simulation: Simulation, batches: int) -> Program:
    """A query that reads queue a until there is nothing more, or so many batches."""

    def run(space: spool.Space) -> None:
        source = StreamReader(StreamOptions.of({"path": ROOT, "queue": "a", "from": "earliest"}), columns(True))
        source._space = space
        read = Reading(simulation.log, "a")
        start = source.initialOffset()
        for _ in range(batches):
            read.goes_on()
            end = source.latestOffset(start, ReadMaxRows(2))
            if end == start:
                read.end()
                return
            simulation.log.offset = end["number"]  # Spark keeps it before the batch runs
            for part in source.partitions(start, end):
                for body in _rows(simulation, part.items):  # type: ignore[attr-defined]
                    read.found(body)
            start = end

    return run


def _compacting_again(space: spool.Space) -> None:
    """Two small files of compactions become one: the first round writes one of them, the second merges both."""
    with mock.patch("spool.maintenance.compaction.SMALL_FILES", 2):
        compacting(space)
        compacting(space)


def _compacted(space: spool.Space, log: OperationLog) -> None:
    compacting(space)


def _read_beside_a_sweep(simulation: Simulation) -> None:
    simulation.process("B", reading(simulation))
    simulation.process("S", one_after_the_other(getting(simulation.log, "S"), compacting, putting(simulation.log, "S")))
    simulation.process(
        "A", one_after_the_other(putting(simulation.log, "A", group=2), getting(simulation.log, "A"), reclaiming)
    )


def _read_of_compacted(simulation: Simulation) -> None:
    """The reader plans with a compacted file, which is compacted again and removed."""
    with small_compactions():  # the reader has them as a segment, and not one by one
        simulation.process("B", reading(simulation))
    simulation.process(
        "S", one_after_the_other(putting(simulation.log, "S", 3), _compacting_again, getting(simulation.log, "S"))
    )
    simulation.process(
        "A", one_after_the_other(getting(simulation.log, "A", 2), putting(simulation.log, "A"), reclaiming, reclaiming)
    )


def _stream_beside_a_sweep(simulation: Simulation) -> None:
    simulation.process("Q", streaming(simulation, 5))
    simulation.process(
        "A", one_after_the_other(putting(simulation.log, "A", 2), rolling_back(simulation.log, "A"), compacting)
    )
    simulation.process(
        "R", one_after_the_other(rolling_back(simulation.log, "R"), getting(simulation.log, "R", 2), reclaiming)
    )


def _stream_beside_attempts(simulation: Simulation) -> None:
    """Attempts are counted in commits that a power cut may take; their numbers are then given to other commits."""
    simulation.process(
        "Q", one_after_the_other(lambda space: simulation.clock.sleep(_REST_SECONDS), streaming(simulation, 2))
    )
    simulation.process("A", one_after_the_other(putting(simulation.log, "A"), rolling_back(simulation.log, "A")))


MANY = tuple(f"m{place}" for place in range(9))

READERS = (
    Scenario("a read beside a sweep", _read_beside_a_sweep, COMPACTED),
    Scenario("a read of what is compacted, beside a sweep", _read_of_compacted, MANY, _compacted),
    Scenario("a stream beside a sweep", _stream_beside_a_sweep, ("m0", "m1", "m2")),
    Scenario("a stream beside counted attempts", _stream_beside_attempts, ("m0",)),
)
