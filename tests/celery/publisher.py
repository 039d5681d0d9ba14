"""A program that publishes tasks: ``python -m tests.celery.publisher COUNT SECONDS``. A logged task takes SECONDS.

Of eight tasks, one has early acks, and one is a chord. The log gets a line for the chord and its total.
"""

import os
import sys

from celery import chord

from tests.celery.tasks import LOG, app, write_line


def main() -> None:
    add, total = app.tasks["add"], app.tasks["logged_total"].s().on_error(app.tasks["logged_loss"].s())
    for number in range(int(sys.argv[1])):
        if number % 8 == 7:
            result = chord(add.s(number, one) for one in range(3))(total.clone())
            write_line(os.environ[LOG], "chord", result.id, 3 * number + 3)
        else:
            app.tasks["logged_early" if number % 4 == 3 else "logged"].delay(float(sys.argv[2]))


if __name__ == "__main__":
    main()
