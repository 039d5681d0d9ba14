"""A service that writes to PostgreSQL, as docs/services.md has it: the message's id is the key of its row.

``BOOKINGS`` in the environment says where the database is.
"""

import os

import psycopg

import spool

BOOK = "insert into bookings (id, number) values (%s, %s) on conflict (id) do nothing"

database = psycopg.connect(os.environ["BOOKINGS"], autocommit=True)


def book(message: spool.Message) -> None:
    database.execute(BOOK, (message.id, int(message.body)))
