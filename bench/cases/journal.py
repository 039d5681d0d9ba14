"""Repeat cases on ext4 with a journal, in a file on the measured disk. Most users have such a file system, which needs
other flushes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bench.cases.base import Case, Result
from bench.peers.base import Missing
from bench.setting import Bench
from bench.table import Outcome, Row, unmeasured

_WORDS = ", on ext4 with a journal"


def on_journal(case: Case) -> Case:
    """Return a case with the same rows, measured on ext4 with a journal. Only the measured disk itself has charts."""
    return Case(f"{case.key}-journal", tuple(map(_there, case.rows)), partial(_measure, case))


def _there(row: Row) -> Row:
    return replace(row, key=f"{row.key}-journal", case=row.case + _WORDS)


def _measure(case: Case, bench: Bench) -> Iterator[Result]:
    there = bench.on_journal
    if isinstance(there, Missing):
        yield from (unmeasured(_there(row), str(there)) for row in case.rows)
        return
    for result in case.measure(there):
        if isinstance(result, Outcome):
            yield replace(result, row=_there(result.row))
