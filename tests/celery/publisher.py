"""A program that publishes tasks: ``python -m tests.celery.publisher COUNT SECONDS``. Each task takes SECONDS."""

import sys

from tests.celery.tasks import app


def main() -> None:
    for number in range(int(sys.argv[1])):
        app.tasks["logged_early" if number % 4 == 3 else "logged"].delay(float(sys.argv[2]))


if __name__ == "__main__":
    main()
