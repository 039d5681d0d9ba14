"""A queue space and a database of ``zope.sqlalchemy`` are in one transaction."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transaction

import spool
from tests.xa.data_manager.outcomes import check_committed, check_rolled_back
from xa.zope import join


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    """A session of SQLAlchemy on a database with an empty table; zope.sqlalchemy joins it to each transaction."""
    zope_sqlalchemy = pytest.importorskip("zope.sqlalchemy")
    import sqlalchemy
    from sqlalchemy.orm import scoped_session, sessionmaker

    with sqlite3.connect(tmp_path / "database") as database:
        database.execute("create table bookings (text unique)")
    database.close()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/database")
    session = scoped_session(sessionmaker(engine))
    zope_sqlalchemy.register(session)
    yield session
    transaction.abort()
    session.remove()
    engine.dispose()


def book(space: spool.Space, session: Any, text: str | None = None) -> None:
    """Take a message, insert its text as a row, and put a receipt."""
    import sqlalchemy
    from zope.sqlalchemy import mark_changed

    join(space)
    body = space.get("in").body
    session.execute(sqlalchemy.text("insert into bookings values (:text)"), {"text": text or body})
    mark_changed(session())
    space.put("out", body)


def rows(tmp_path: Path) -> list[str]:
    database = sqlite3.connect(tmp_path / "database")
    try:
        return [text for (text,) in database.execute("select text from bookings order by 1")]
    finally:
        database.close()


def test_x03_a_row_of_zope_sqlalchemy_and_a_message_are_one_transaction(
    space: spool.Space, session: Any, tmp_path: Path
) -> None:
    book(space, session)
    transaction.abort()
    assert rows(tmp_path) == []
    check_rolled_back(space)
    book(space, session)
    transaction.commit()
    assert rows(tmp_path) == ["1"]
    check_committed(space)


def test_x03_a_commit_that_the_database_refuses_rolls_the_message_back(
    space: spool.Space, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zope.sqlalchemy commits in its vote, after our vote."""
    book(space, session)
    assert space.stats("in").in_doubt == 0

    def refuse() -> None:
        assert space.stats("in").in_doubt == 1, "our vote is durable before the database commits"
        raise sqlite3.OperationalError("the database is busy")

    from sqlalchemy import event

    event.listen(session().get_bind(), "commit", lambda _: refuse())
    with pytest.raises(sqlite3.OperationalError):
        transaction.commit()
    transaction.abort()
    assert rows(tmp_path) == []
    check_rolled_back(space)
