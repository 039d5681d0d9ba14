"""A table as a queue: insert rows, and delete rows in the order of the row id, with one transaction per commit."""

import sqlite3
from collections.abc import Callable

from bench.peers.base import Line, Peer

_PUT_ONE = "insert into queue (body) values (?)"
_GET_ONE = "delete from queue where id = (select id from queue order by id limit 1) returning body"


class SQLite(Peer):
    name = "SQLite"
    how = "WAL, synchronous=FULL: the log is flushed at each commit"
    transactions = True

    def line(self, queue: str) -> Line:
        return SQLiteLine(f"{self.directory}/{queue}.sqlite")

    def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}, WAL/FULL"


class SQLiteLine(Line):
    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute("pragma synchronous=full")
        self.db.execute("create table if not exists queue (id integer primary key autoincrement, body blob)")

    def put(self, count: int) -> None:
        self.db.execute("begin immediate")
        self.db.executemany(_PUT_ONE, [(self.body,)] * count)
        self.db.execute("commit")

    def get(self, count: int) -> int:
        self.db.execute("begin immediate")
        rows = self.db.execute("select id, body from queue order by id limit ?", (count,)).fetchall()
        if rows:
            self.db.execute("delete from queue where id <= ?", (rows[-1][0],))
        self.db.execute("commit")
        return len(rows)

    def put_each(self, count: int) -> None:
        self.db.execute("begin immediate")
        for _ in range(count):
            self.db.execute(_PUT_ONE, (self.body,))
        self.db.execute("commit")

    def get_each(self, count: int) -> int:
        self.db.execute("begin immediate")
        taken = sum(len(self.db.execute(_GET_ONE).fetchall()) for _ in range(count))
        self.db.execute("commit")
        return taken

    def move(self, work: Callable[[bytes], bytes]) -> None:
        self.db.execute("begin immediate")
        ((body,),) = self.db.execute(_GET_ONE).fetchall()
        self.db.execute(_PUT_ONE, (work(body),))
        self.db.execute("commit")

    def close(self) -> None:
        self.db.close()
