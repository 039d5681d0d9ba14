"""A table as a queue: insert, and delete in order of the row id, one transaction a commit."""

import sqlite3

from bench.peers.base import BODY, Line, Peer


class SQLite(Peer):
    name = "SQLite"
    how = "WAL, synchronous=FULL: the log is flushed at each commit"

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
        self.db.executemany("insert into queue (body) values (?)", [(BODY,)] * count)
        self.db.execute("commit")

    def get(self, count: int) -> int:
        self.db.execute("begin immediate")
        rows = self.db.execute("select id, body from queue order by id limit ?", (count,)).fetchall()
        if rows:
            self.db.execute("delete from queue where id <= ?", (rows[-1][0],))
        self.db.execute("commit")
        return len(rows)

    def close(self) -> None:
        self.db.close()
