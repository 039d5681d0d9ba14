"""Two intakes at work on the same drop folder, beside a process that takes what they put."""

import spool
from spool.intake import Intake
from spool.model import layout
from tests.crash.book import DONE, Book, text
from tests.crash.interleave import Scenario, Stage
from tests.crash.programs import Program
from tests.machine import OF_ANOTHER


def taking_in(space: spool.Space) -> None:
    Intake(space).run(once=True)


def _two_intakes(stage: Stage) -> None:
    stage.process("I", taking_in)
    stage.process("J", taking_in)
    stage.process("C", _getting_dropped(stage.book))


DROPPED = ("d", "e")


def drop(space: spool.Space, book: Book, owner: str = "") -> None:
    disk = space._store.files.disk
    for name in DROPPED:
        handle = disk.create(f"{layout.DROP}/a/{owner}{name}")
        disk.write_at(handle, 0, name.encode())
        disk.flush(handle)
        disk.close(handle)
        book.begin("dropped", ("a", name)).may(DONE)
    disk.flush_directory(f"{layout.DROP}/a")


def _drop_as_another_user(space: spool.Space, book: Book) -> None:
    drop(space, book, OF_ANOTHER)


def _getting_dropped(book: Book) -> Program:
    """Whether anything is there yet depends on the intakes."""

    def run(space: spool.Space) -> None:
        for _ in DROPPED:
            deed = book.begin("C gets", from_queue="a")
            try:
                with book.ending(deed):
                    body = text(space.get("a", transaction=None))
                    deed.takes, deed.from_queue = [("a", body)], None
            except spool.Empty:
                deed.from_queue = None

    return run


INTAKES = (
    Scenario("two intakes", _two_intakes, (), drop, afterwards=taking_in),
    Scenario("two intakes and another user's files", _two_intakes, (), _drop_as_another_user, afterwards=taking_in),
)
