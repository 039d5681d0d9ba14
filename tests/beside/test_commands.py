"""Each command that changes a space ends beside two processes that commit all the while as it ends alone."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
import xa
from tests.beside.committer import QUEUE
from tests.beside.company import two_that_commit
from tests.branches import voting
from tests.reference_pages import commands
from xaspool_scripts.admin import main as spool_admin

# In the order in which they are typed. An upper-case name stands for the id that the command with this body printed.
SESSION = (
    "queue create extra --out-of-order top,before --max-messages 50 --if-missing",
    "queue change extra --retries 2 --error-queue errors",
    "queue resume extra",
    "message put extra --body ONE --priority 80 --correlation-id c --header k=v --expires-at 2100-01-01",
    "message put extra --body TWO --top --deduplication-key key",
    "message put extra --body TWICE --deduplication-key key",
    "message put extra --body THREE --before ONE --group g",
    "message put orders --body FOUR --delay 0.001 --reply-queue errors --user-code 7",
    "message list extra",
    "message change ONE --priority 9 --not-before none",
    "message move TWO errors",
    "message list errors",
    "message redrive errors --to orders",
    "message get orders --timeout 5",
    "message get orders --timeout 5",
    "message get extra --id THREE",
    "message show ONE",
    "message delete ONE --yes",
    "message put extra --body FIVE",
    "message put extra --body SIX",
    "queue purge extra --yes",
    "queue delete extra",
    "schedule create nightly orders --cron '0 3 29 2 *' --body SEVEN",
    "schedule change nightly --missed skip",
    "schedule run nightly",
    "schedule delete nightly",
    "transaction list",
    "transaction commit 7.Y29tbWl0.",
    "transaction rollback 7.cm9sbGJhY2s.",
    "transaction list",
    "transaction forget 7.Y29tbWl0.",
    "message list orders",
    "quarantine delete deleted.txt --yes",
    "quarantine restore restored.txt",
    "subscription delete seen --yes",
    "export SPACE.tar",
    "check --repair",
    "check",
)
# A part that leaves no branch in doubt and nothing in quarantine.
SHORT = (*SESSION[:5], *SESSION[SESSION.index("transaction list") :])
# These change no space that exists, serve until they are stopped, or refuse a space that others have open.
ELSEWHERE = {"archive", "console", "docs", "doctor", "import", "init", "metrics", "mirror begin", "mirror drop",
    "mirror restore", "mirror show", "quarantine list", "quarantine show", "queue list", "queue show",
    "schedule list", "schedule show", "subscription list", "top", "tour", "transaction show"}  # fmt: skip
# Records of the log about another process that has a lock at this moment.
_ABOUT_OTHERS = re.compile(r"^spool-admin: warning: (waiting for|files that are not needed remain).*\n", re.MULTILINE)


def test_the_session_has_each_command_that_changes_something() -> None:
    known = {path.removeprefix("spool-admin ") for path in commands.paths() if path.startswith("spool-admin ")}
    groups = {name for name in known if any(other.startswith(f"{name} ") for other in known)}
    typed = {name for name in known - groups for line in SESSION if f"{line} ".startswith(f"{name} ")}
    assert known - groups == typed | ELSEWHERE


@pytest.mark.parametrize("typed", [SHORT, pytest.param(SESSION, marks=pytest.mark.slow)], ids=["short", "whole"])
def test_a_session_of_commands_ends_as_it_ends_alone(typed: Sequence[str], tmp_path: Path) -> None:
    alone = list(session(furnished(tmp_path / "alone"), typed))
    path = furnished(tmp_path / "beside")
    with two_that_commit(path):
        assert list(session(path, typed)) == alone


def furnished(path: Path) -> Path:
    """Create a space with branches in doubt, files in quarantine and a subscription."""
    with spool.create(path) as space:
        for queue in ("orders", "errors", QUEUE):
            space.create_queue(queue)
        manager = xa.ResourceManager(space)
        for name in (b"commit", b"rollback"):
            with voting(manager, xa.Xid(7, name, b"")):
                space.put("orders", name)
        space.engine.register_subscription("seen", ("orders",), 3600.0)
    for name in ("deleted.txt", "restored.txt"):
        (path / "quarantine" / name).write_text(name)
    return path


def session(path: Path, typed: Sequence[str]) -> Iterator[str]:
    """Type these commands. Yield each command with its exit code and output, without ids, times and sizes."""
    ids = {"SPACE.tar": f"{path}.tar"}
    for line in typed:
        words = line.split()
        bodies = [word for before, word in pairwise(words) if before == "--body"]
        words = [word if word in bodies else ids.get(word, word) for word in words]
        done = CliRunner().invoke(spool_admin, ["-s", str(path), *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
        ids.update({body: done.stdout.strip() for body in bodies})
        yield f"$ {line}\n{_masked((done.stdout + done.stderr).replace(str(path), 'SPACE'))}exit code {done.exit_code}"


def _masked(text: str) -> str:
    text = re.sub(r"[0-9a-f]{32}", "ID", text)
    text = re.sub(r"(position +|exported )[\d,]+( files with [\d,]+ messages?)?", r"\1…", text)
    text = re.sub(r"\d{4}-\d\d-\d\d\S*( \d\d:\d\d\S*)?|\b\d+(\.\d+)? (ms|s|min|KiB|B|MiB)\b", "…", text)
    return re.sub(" +", " ", _ABOUT_OTHERS.sub("", text))  # (the width of a column depends on what was masked)
