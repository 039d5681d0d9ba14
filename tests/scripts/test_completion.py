"""Shell completion, as a shell asks for it."""

import os
from pathlib import Path

import pytest

import xa
from tests.scripts.conftest import execute, prepare, snapshot


def _complete(line: str, **environment: str) -> list[str]:
    """Return the completions that bash gets at the end of a line."""
    words = line.split(" ")
    asked = {"_SPOOL_ADMIN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = execute("spool-admin", env={**os.environ, **asked, **environment})
    assert (done.code, done.err) == (0, "")
    return [offer.partition(",")[2] for offer in done.text.split()]


@pytest.mark.every(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    done = execute("spool-admin", env={**os.environ, "_SPOOL_ADMIN_COMPLETE": f"{shell}_source"})
    assert "_SPOOL_ADMIN_COMPLETE" in done.text


def test_nouns_verbs_and_options_are_completed() -> None:
    assert _complete("spool-admin q") == ["quarantine", "queue"]
    assert set(_complete("spool-admin message ")) == {
        "change", "delete", "get", "list", "move", "put", "redrive", "show",
    }  # fmt: skip
    assert "--correlation-id" in _complete("spool-admin message get --c")


def test_queue_names_come_from_the_space_which_is_not_opened(path: Path) -> None:
    before = snapshot(path)
    assert _complete("spool-admin message get o", SPOOL_SPACE=str(path)) == ["orders"]
    assert _complete(f"spool-admin -s {path} queue show ") == ["errors", "orders"]
    assert _complete(f"spool-admin queue create new -s {path} --error-queue e") == ["errors"]
    assert snapshot(path) == before


def test_xids_come_from_the_space(path: Path) -> None:
    xid = xa.Xid(7, b"g", b"b")
    prepare(path, xid)
    assert _complete("spool-admin transaction commit ", SPOOL_SPACE=str(path)) == [str(xid)]


@pytest.mark.slow
def test_where_there_is_no_space_nothing_is_offered_and_nothing_complains(path: Path) -> None:
    assert _complete("spool-admin message get o") == []
    assert _complete("spool-admin message get o", SPOOL_SPACE="/nonexistent") == []
    (path / "space.toml").write_text("nonsense")
    assert _complete("spool-admin message get o", SPOOL_SPACE=str(path)) == []
