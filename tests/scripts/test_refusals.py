"""A command that cannot do its work is refused in one line with the remedy, and changes nothing."""

import os
import shlex
from pathlib import Path

import pytest

import xa
from tests.scripts.conftest import Run, execute, one_line

LONE = os.fsdecode(b"caf\xe9")
NO_ID = "0" * 32
XID = xa.Xid(7, b"order-17", b"\xff1")
NAME_RULE = ("1 to 127 letters, digits, '.', '_' or '-'", "does not start with a dot")
SUFFIXES = "ends in one of .tar, .tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz, .txz"
MISTYPED = ("there is no queue 'oders'", "errors, orders", "did you mean orders?", "queue create oders")
PUT = "message put orders --body x"

# The command, its exit code, and words of its line.
REFUSED: list[tuple[str, int, tuple[str, ...]]] = [
    ("export out.zip", 2, ("out.zip", SUFFIXES)),
    ("export tar", 2, ("tar", SUFFIXES)),
    *((f"{verb} -- '{name}'", 2, NAME_RULE)
      for verb in ("queue create", "queue show", "message put", "message get", "message list")
      for name in ("a b", "../x")),
    *((f"{words} oders", 1, MISTYPED) for words in ("queue show", "queue change --retries 1", "message put --body x")),
    ("queue change orders", 2, ("name an option to change, e.g. --retries 3", "--help")),
    ("message get orders --all", 2, ()),
    ("message get orders --count 2", 2, ()),
    ("message get orders --count 2 --all --json", 2, ()),
    (f"message get orders --all --json --id {NO_ID}", 2, ()),
    (f"message get orders --correlation-id {LONE}", 2, ("--correlation-id cannot be written as UTF-8: ",)),
    (f"message list orders --header a={LONE}", 2, ("a header cannot be written as UTF-8: ",)),
    ("message list orders --limit 0", 2, ()),
    *((words, 1, ("there is no message", NO_ID))
      for words in (f"message delete {NO_ID}", f"message move {NO_ID} errors", f"message change {NO_ID} --priority 1")),
    (f"message show {NO_ID}", 1, (NO_ID, "taken, or never committed")),
    ("message show zz", 2, ("zz", "32 hexadecimal digits")),
    (f"{PUT} --client-id {LONE}", 2, ("--client-id cannot be written as UTF-8: ",)),
    (f"{PUT} --header a={LONE}", 2, ("a header cannot be written as UTF-8: ",)),
    (f"{PUT} --header novalue", 2, ()),
    (f"{PUT} --header =x", 2, ()),
    (f"{PUT} --header a=1 --header a=2", 2, ()),
    (f"{PUT} --header big={'x' * 9000}", 2, ("headers", "8192")),
    (f"{PUT} --file /dev/null", 2, ("--body", "--file")),
    (f"{PUT} --delay 1 --not-before 1", 2, ("--delay and --not-before exclude each other",)),
    ("message put orders --content-type application/json --body '{\"a\": }'", 2,
     ("the body is not json", "line 1 column 7")),
    *((f"transaction {verb} {XID}", 1, ("XAER_NOTA", str(XID))) for verb in ("commit", "rollback", "forget")),
    *((f"transaction {verb} garbage", 2, ("is not an xid", "format.gtrid.bqual"))
      for verb in ("commit", "rollback", "forget")),
    ("message put", 2, ("spool-admin message put: missing argument 'QUEUE'; see spool-admin message put --help",)),
    ("queue list --nix", 2, ("spool-admin queue list: no such option",)),
    ("nix", 2, ("spool-admin: no such command 'nix'",)),
    ("docs worker", 1, ("there is no page worker; did you mean workers? The pages are ",)),
    ("docs nix", 1, ("there is no page nix. The pages are ",)),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "code", "words"), REFUSED, ids=lambda value: ascii(value)[1:80])
def test_a_command_that_cannot_do_its_work_is_refused_in_one_line_and_changes_nothing(
    run: Run, path: Path, typed: str, code: int, words: tuple[str, ...]
) -> None:
    before = (path / "space.toml").read_text()
    line = one_line(run(*shlex.split(typed)), *words, code=code)
    assert line.startswith("spool-admin")
    assert line.count("--help") <= 1
    assert (path / "space.toml").read_text() == before
    assert run("message", "get", "orders").code == 3, "nothing was put"
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("service", ["foo", "python:no_such_module:f"])
def test_a_service_that_cannot_be_used_as_it_is_named_is_wrong_usage(path: Path, service: str) -> None:
    one_line(execute("spool-forward", "-s", path, "--route", f"orders={service}"), code=2)


def test_an_export_names_the_file_that_was_typed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "nix" / "shop.tar"
    assert ".part" not in one_line(run("export", file), str(file), code=1)
