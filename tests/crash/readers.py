"""Reads of a queue, as Spark plans and makes them, beside puts, takes, compactions and reclaim.

A plan holds nothing: it names places in files, which may be swept away, and used again, before a task opens them. So a
read rests here behind its plan, and before each item of a task; then others go on.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from unittest import mock

from pyspark.sql.streaming.datasource import ReadMaxRows

import spool
from forwarder.dataframes.columns import StreamOptions, columns
from forwarder.dataframes.reading.look import Look
from forwarder.dataframes.reading.pieces import Files
from forwarder.dataframes.reading.places import Item
from forwarder.dataframes.stream import StreamReader
from spool.model.layout import MAX_NUMBER
from tests.compaction import small_compactions
from tests.crash.book import Book, Reading
from tests.crash.compactions import COMPACTED, compacting
from tests.crash.interleave import Scenario, Stage
from tests.crash.programs import Program, getting, one_after_the_other, putting, reclaiming, rolling_back
from tests.simdisk import ROOT

_REST_SECONDS = 0.01


def _rows(stage: Stage, items: Sequence[Item]) -> Iterator[str]:
    """What a task reads, in a process of its own, which opens the space only if something is not where it was."""
    disk = stage.disk(stage.machine, stage.schedule)
    with closing(Files(disk, lambda: stage.open(disk), with_body=True)) as files:
        for item in items:
            stage.clock.sleep(_REST_SECONDS)
            for piece in files.pieces(item):
                yield from (bytes(body).decode() for body in piece.bodies)


def reading(stage: Stage) -> Program:
    """A batch read of queue a in two tasks."""

    def run(space: spool.Space) -> None:
        read = Reading(stage.book, "a")
        items = [item for item, _ in Look(space, ["a"]).items(1, MAX_NUMBER)]
        for part in (items[::2], items[1::2]):
            for body in _rows(stage, part):
                read.found(body)
        read.end()

    return run


def streaming(stage: Stage, batches: int) -> Program:
    """A query that reads queue a until there is nothing more, or so many batches."""

    def run(space: spool.Space) -> None:
        source = StreamReader(StreamOptions.of({"path": ROOT, "queue": "a", "from": "earliest"}), columns(True))
        source._space = space
        read = Reading(stage.book, "a")
        start = source.initialOffset()
        for _ in range(batches):
            read.goes_on()
            end = source.latestOffset(start, ReadMaxRows(2))
            if end == start:
                read.end()
                return
            stage.book.offset = end["number"]  # Spark keeps it before the batch runs
            for part in source.partitions(start, end):
                for body in _rows(stage, part.items):  # type: ignore[attr-defined]
                    read.found(body)
            start = end

    return run


def _compacting_again(space: spool.Space) -> None:
    """Two small files of compactions become one: the first round writes one of them, the second merges both."""
    with mock.patch("spool.maintenance.compaction.SMALL_FILES", 2):
        compacting(space)
        compacting(space)


def _compacted(space: spool.Space, book: Book) -> None:
    compacting(space)


def _read_beside_a_sweep(stage: Stage) -> None:
    stage.process("B", reading(stage))
    stage.process("S", one_after_the_other(getting(stage.book, "S"), compacting, putting(stage.book, "S")))
    stage.process("A", one_after_the_other(putting(stage.book, "A", group=2), getting(stage.book, "A"), reclaiming))


def _read_of_compacted(stage: Stage) -> None:
    """Its file is compacted once more, and goes."""
    with small_compactions():  # the reader has them as a segment, and not one by one
        stage.process("B", reading(stage))
    stage.process("S", one_after_the_other(putting(stage.book, "S", 3), _compacting_again, getting(stage.book, "S")))
    stage.process("A", one_after_the_other(getting(stage.book, "A", 2), putting(stage.book, "A"), reclaiming))


def _stream_beside_a_sweep(stage: Stage) -> None:
    stage.process("Q", streaming(stage, 5))
    stage.process("A", one_after_the_other(putting(stage.book, "A", 2), rolling_back(stage.book, "A"), compacting))
    stage.process("R", one_after_the_other(rolling_back(stage.book, "R"), getting(stage.book, "R", 2), reclaiming))


def _stream_beside_attempts(stage: Stage) -> None:
    """They are counted in commits that a power cut may forget, and whose numbers are then given to others."""
    stage.process("Q", one_after_the_other(lambda space: stage.clock.sleep(_REST_SECONDS), streaming(stage, 2)))
    stage.process("A", one_after_the_other(putting(stage.book, "A"), rolling_back(stage.book, "A")))


MANY = tuple(f"m{place}" for place in range(9))

READERS = (
    Scenario("a read beside a sweep", _read_beside_a_sweep, COMPACTED),
    Scenario("a read of what is compacted, beside a sweep", _read_of_compacted, MANY, _compacted),
    Scenario("a stream beside a sweep", _stream_beside_a_sweep, ("m0", "m1", "m2")),
    Scenario("a stream beside counted attempts", _stream_beside_attempts, ("m0",)),
)
