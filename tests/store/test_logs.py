"""X13: a hostile space cannot forge a line of a log, or control the terminal that shows it."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spool
from spool.intake.intake import Intake
from spool.store.logs import LOGGERS

EVIL = "\x1b[31mred\n2026-01-01 CRITICAL forged\r\u202e\x07"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log of an application with the handler that most applications have."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    yield text
    for logger in loggers:
        logger.removeHandler(handler)
        logger.propagate = True


def test_x13_names_of_dropped_and_stray_files_forge_no_line(tmp_path: Path, lines: io.StringIO) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        (tmp_path / "space/drop/orders" / f"{EVIL}.msgpack").write_bytes(b"bad")
        (tmp_path / "space/drop" / EVIL).mkdir()
        Intake(space).run(once=True)
    found = lines.getvalue()
    assert "forged" in found
    assert len(found.splitlines()) == 2
    assert all(line.isprintable() for line in found.splitlines())


@pytest.mark.parametrize("name", LOGGERS)
@given(text=st.text(max_size=50))
def test_x13_no_argument_of_a_record_has_control_characters(name: str, text: str) -> None:
    output = io.StringIO()
    handler, logger = logging.StreamHandler(output), logging.getLogger(name)
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        logger.error("%s: %d of %s", text, 7, ValueError(text))
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
    assert output.getvalue().rstrip("\n").isprintable()
    assert output.getvalue().count("\n") == 1


class Faulty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_x13_an_argument_without_a_text_raises_nothing(lines: io.StringIO) -> None:
    logging.getLogger("spool").warning("it failed: %s", Faulty())
    assert lines.getvalue() == "it failed: <Faulty>\n"


def test_x13_a_traceback_forges_no_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("bad a\nERROR:root:forged \x1b[31m")
    except ValueError:
        logging.getLogger("spool").exception("a call failed")
    first, *more = lines.getvalue().splitlines()
    assert first == "a call failed"
    assert all(line.isprintable() for line in more)
    assert not any(line.startswith("ERROR") for line in more)


def test_x13_named_arguments_are_escaped(lines: io.StringIO) -> None:
    logging.getLogger("spool").warning("%(name)s", {"name": EVIL})
    assert len(lines.getvalue().splitlines()) == 1
