"""A program that orders: ``python -m tests.django_backend.orders FIRST COUNT WAYS``; killed in the middle of orders.

Each order is a row and a task, enqueued in nested blocks. WAYS has a letter for each order, in turn: ``c`` kills this
process after the commit and before the move, ``d`` between the put and the deletion of the row, ``u`` undoes the
order, ``s`` undoes a savepoint with another task, ``.`` orders.
"""

import os
import signal
import sys
from contextlib import suppress

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_backend.conf")


class Undone(Exception):
    pass


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def order(number: int, way: str) -> None:
    from django.db import connection, transaction

    from django_xaspool.outbox import Outbox
    from tests.django_backend import jobs

    if way == "d":
        Outbox.delete = die  # type: ignore[method-assign]
    with transaction.atomic():
        connection.cursor().execute("insert into orders (number) values (%s)", [number])
        if way == "c":
            transaction.on_commit(die)
        with transaction.atomic():
            jobs.cook.enqueue(number)
            try:
                with transaction.atomic():
                    if way == "s":
                        jobs.cook.enqueue(number)
                        raise Undone
            except Undone:
                pass
        if way == "u":
            raise Undone


def main(first: int, count: int, ways: str) -> None:
    django.setup()
    for number in range(first, first + count):
        with suppress(Undone):
            order(number, ways[(number - first) % len(ways)])
        print(number, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
