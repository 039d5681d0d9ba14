"""A wrong command line is reported on one line, with the exit code for wrong usage or for a failure."""

from pathlib import Path

import pytest

from tests.scripts.conftest import Run, execute


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("message", "put"), "spool-admin message put: missing argument 'QUEUE'; see spool-admin message put --help\n"),
        (("queue", "list", "--nix"), "spool-admin queue list: no such option"),
        (("nix",), "spool-admin: no such command 'nix'"),
    ],
)
def test_a_usage_error_is_one_line_that_begins_with_the_command(run: Run, words: tuple[str, ...], told: str) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith(told)
    assert done.err.count("\n") == 1


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("service", ["foo", "python:no_such_module:f"])
def test_a_service_that_cannot_be_used_as_it_is_named_is_wrong_usage(path: Path, service: str) -> None:
    done = execute("spool-forward", "-s", path, "--route", f"orders={service}")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_an_export_names_the_file_that_was_typed(run: Run, tmp_path: Path) -> None:
    done = run("export", str(tmp_path / "nix" / "shop.tar"))
    assert done.code == 1
    assert ".part" not in done.err
    assert str(tmp_path / "nix" / "shop.tar") in done.err
