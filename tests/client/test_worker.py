"""``spool-worker -s ADDRESS``: as for a directory, with the same exit codes."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.client.conftest import served
from tests.ports import free_port
from tests.scripts.conftest import Result
from xaspool_scripts.admin import main as admin
from xaspool_scripts.worker import main

TOKEN = "a-token-for-everything"


@pytest.fixture(autouse=True)
def _functions(own_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SPOOL_SPACE", "XASPOOL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    Path("work_by_http.py").write_text(
        "import spool\n"
        "def shout(message): return message.body.upper()\n"
        "def fail(message): raise ValueError('no such article')\n"
        "def reject(message): raise spool.Reject('never')\n"
    )
    Path("token").write_text(TOKEN + "\n")


def work(*args: str) -> Result:
    done = CliRunner().invoke(main, args)
    return Result(done.exit_code, done.stdout_bytes, done.stderr)


def test_the_outcomes_and_exit_codes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(directory, TOKEN) as address, spool.connect(address, token=TOKEN) as space:
        given = ("-s", address, "--once", "--token-file", "token")
        space.put_many("orders", ["a", "b"])
        space.put("orders", "c", delay=1000)
        done = work("orders=work_by_http:shout", *given)
        assert (done.code, done.text, done.err) == (0, "orders: 2 delivered; 1 delayed\n", "")
        assert [message.body for message in space.get_many("replies", 9)] == ["A", "B"]
        space.put("other", "x")
        monkeypatch.setenv("XASPOOL_TOKEN", TOKEN)
        monkeypatch.setenv("SPOOL_SPACE", address)
        done = work("other=work_by_http:fail", "--once", "--json")
        assert (done.code, done.objects[0]["retried"], done.objects[0]["left"]) == (5, 1, 1)
        space.put("orders", "x")
        assert work("orders=work_by_http:reject", *given).code == 6


def test_what_is_wrong_is_said(directory: Path) -> None:
    with served(directory, TOKEN) as address:
        refused = work("orders=work_by_http:shout", "-s", address, "--once")
        assert refused.code == 1
        assert "it sends no token" in refused.err
        missing = work("none=work_by_http:shout", "-s", address, "--once", "--token-file", "token")
        assert (missing.code, "there is no queue" in missing.err or "none" in missing.err) == (1, True)
    gone = work("orders=work_by_http:shout", "-s", f"http://127.0.0.1:{free_port()}/shop")
    assert gone.code == 1
    assert "cannot be reached: start it" in gone.err
    wrong = work("orders=work_by_http:shout", "-s", "http://host")
    assert (wrong.code, "https://HOST:PORT/NAME" in wrong.err) == (2, True)


@pytest.mark.parametrize(("command", "code"), [("queue list", 2), ("check", 8), ("message put orders --body x", 2)])
def test_a_command_that_needs_the_directory_says_so(command: str, code: int) -> None:
    done = CliRunner().invoke(admin, ["-s", "https://queue.example:8815/shop", *command.split()])
    assert done.exit_code == code
    assert "this command needs the directory of the space: run it on the server's machine" in done.stderr
