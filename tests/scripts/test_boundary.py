"""After any failure the user of a command sees a line with the next step, and never a traceback."""

import errno
import itertools
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import spool
from tests.scripts.conftest import PROGRAMS, Run, execute, leaves, mounted, one_line
from tests.strides import Stride
from xaspool_scripts.admin import main
from xaspool_scripts.commands import console as admin_console
from xaspool_scripts.commands import queue as admin_queue

GARBAGE = [
    "", " ", "-", "--", "--nonsense", "-x", "orders", "nowhere", "0", "-1", "1e400", "nan", "inf", "../..", "/",
    "/dev/null", "/dev/full", "\udcff", "ü\u202e", "a" * 5000, "0" * 32, "7.Zw.Yg", "7.Zw", "2147483648.Zw.", "=",
    "NAME=VALUE", "--json", "--body", "--file", "--priority", "--delay", "--not-before", "--timeout", "--id", "--order",
    "--retries", "--limit", "--repair", "--dry-run", "-s", "--space", "--help", "--version", "--header", "%s%n",
    "[bold]", "\x1b[31m",
]  # fmt: skip


def _walk(many: int, every: int) -> Iterator[tuple[str, list[str]]]:
    """Every command with no arguments, with pieces of garbage, and with so many random handfuls of it.

    Each command gets every so-manieth piece; the first one differs from command to command.
    """
    dice = random.Random(1)
    for name, program in PROGRAMS.items():
        at_once = ["--once"] if any("--once" in option.opts for option in program.params) else []  # else it goes on
        commands = [at_once, *(at_once + words for words, _ in leaves(program))]
        for place, words in enumerate(commands):
            yield name, words
            for piece in GARBAGE[place % every :: every]:
                yield name, [*words, piece]
            for _ in range(many):
                yield name, [*words, *dice.choices(GARBAGE, k=dice.randint(2, 6))]


@pytest.mark.every(2)
@pytest.mark.parametrize("directory", ["space", "elsewhere"])
def test_no_arguments_lead_to_a_traceback(
    path: Path, directory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stride: Stride
) -> None:
    monkeypatch.chdir(tmp_path / directory)
    monkeypatch.setattr(admin_console, "wait_for_end", lambda *_: None)  # the console ends at once
    runner = CliRunner()
    for name, words in _walk(24 // stride(24), stride(15)):
        words = [
            str(tmp_path / "made") if words[:1] == ["init"] and word in ("", " ", "/", "../..") else word
            for word in words
        ]
        done = runner.invoke(PROGRAMS[name], words, input=b"\x00garbage\xff", env={"LC_ALL": "C.UTF-8"})
        assert isinstance(done.exception, SystemExit | None), (name, words, done.exc_info)
        assert done.exit_code in (0, 1, 2, 3, 4, 5, 6, 8), (name, words)
        assert "Traceback" not in done.output, (name, words)
        assert "please report" not in done.stderr, (name, words, done.stderr)
        if done.exit_code in (1, 8) and not done.stdout:
            assert len(done.stderr.strip().splitlines()) == 1, (name, words, done.stderr)


def test_a_few_of_them_in_processes_of_their_own(path: Path) -> None:
    for one in (["queue", "show", "\udcff"], ["message", "put", "orders", "--file", "/"], ["-s", "/dev/null", "check"]):
        done = execute("spool-admin", "-s", path, *one)
        assert done.code in (1, 2, 8)
        assert "Traceback" not in done.err
    assert execute("spool-recover", "-s", "/dev/null").code == 1


def test_every_command_has_help_with_an_example_that_it_understands() -> None:
    for words, command in leaves(main):
        done = CliRunner().invoke(main, [*words, "--help"])
        assert done.exit_code == 0, words
        example = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith("spool-admin "))
        plain = list(itertools.takewhile(lambda word: word not in (">", "|"), example))[1:]
        assert plain[: len(words)] == words
        parsed = [word for word in plain[len(words) :] if word != "order.xml"]
        command.make_context(words[-1], parsed, resilient_parsing=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_tells_its_version_and_has_help(name: str) -> None:
    done = CliRunner().invoke(PROGRAMS[name], ["--version"])
    assert (done.exit_code, done.stdout.split()[0]) == (0, name)
    assert CliRunner().invoke(PROGRAMS[name], ["--help"]).exit_code == 0


def test_a_bug_is_one_line_that_says_how_to_see_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(admin_queue, "_object", broken)
    one_line(run("queue", "list"), "ZeroDivisionError", "division by zero", "please report", "SPOOL_DEBUG=1", code=1)
    monkeypatch.setenv("SPOOL_DEBUG", "1")
    assert "Traceback" in run("queue", "list").err


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "words", [["--help"], ["queue", "list"], ["queue", "show", "orders", "--json"], ["export", "-"], ["check"]]
)
def test_output_that_cannot_be_written_is_said_once(path: Path, words: list[str]) -> None:
    (path / "committed" / "stray").touch()
    with open("/dev/full", "wb") as full:
        done = execute("spool-admin", "-s", path, *words, stdout=full)
    one_line(done, "No space left on device", code=1)


def test_commands_work_without_standard_streams(path: Path, stride: Stride) -> None:
    """With --long, each command in each of four ways; else each command in one way."""
    commands = ("queue list", "message put orders --body x", "message get orders", "message list orders")
    for place, redirect in enumerate(("<&-", ">&-", "2>&-", "<&- >&- 2>&-")):
        for words in commands[place % stride(4) :: stride(4)]:
            command = f'exec "$0" -c "from xaspool_scripts.admin import main; main()" -s "$1" {words} {redirect}'
            done = subprocess.run(["sh", "-c", command, sys.executable, path], capture_output=True, check=False)
            assert done.returncode in (0, 1, 3), (redirect, words, done)
            assert b"Traceback" not in done.stderr, (redirect, words)
    with spool.open(path) as space:
        assert not space.recovery.damaged
        assert space.check() == []


def test_the_log_of_the_engine_is_one_liners_on_stderr(run: Run, path: Path) -> None:
    @main.command("warn-for-the-test")
    def warn() -> None:
        logging.getLogger("spool").warning("a file\nwas moved to %s", "quarantine/x")
        logging.getLogger("spool").info("nobody needs to know")

    try:
        done = run("warn-for-the-test")
    finally:
        del main.commands["warn-for-the-test"]
    assert (done.code, done.out) == (0, b"")
    assert done.err == "spool-admin: warning: a file was moved to quarantine/x\n"


@pytest.fixture
def read_only(path: Path) -> Iterator[Path]:
    """The space, where this user cannot write."""
    if os.geteuid() == 0:  # permissions do not stop root, a read-only mount does
        mount = subprocess.run(["mount", "--bind", path, path], capture_output=True, check=False)
        if mount.returncode:
            pytest.skip("mounting is not allowed here")
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield path
        subprocess.run(["umount", "-l", path], check=True)
        return
    directories = [path, *(d for d in path.rglob("*") if d.is_dir())]
    files = [file for file in path.rglob("*") if file.is_file()]
    for each in (*files, *directories):
        each.chmod(0o500 if each in directories else 0o400)
    yield path
    for each in (*directories, *files):
        each.chmod(0o700 if each in directories else 0o600)


def test_a_read_only_directory_is_one_line_that_says_why(run: Run, read_only: Path) -> None:
    reasons = (os.strerror(errno.EROFS), os.strerror(errno.EACCES))
    for words in (["queue", "list"], ["message", "put", "orders", "--body", "x"], ["queue", "create", "q"]):
        done = run(*words)
        assert (done.code, done.out) == (1, b"")
        assert any(reason in one_line(done, "then try again") for reason in reasons)
    assert run("check").code == 8
    done = run("init", read_only / "new", space=None)
    assert done.code == 1
    assert any(reason in one_line(done, "then try again") for reason in reasons)
    with pytest.raises(spool.DiskFailure):
        spool.open(read_only)


def test_a_dry_run_works_where_nothing_can_be_written(run: Run, read_only: Path) -> None:
    assert run("--dry-run", program="spool-recover").code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "small", "1m")


@pytest.mark.root
def test_a_full_disk_is_one_line_with_advice_and_loses_nothing(run: Run, small_disk: Path) -> None:
    path = small_disk / "space"
    run("init", path, space=None)
    run("queue", "create", "orders", space=path)
    put = 0
    while (done := run("message", "put", "orders", stdin=b"%04d" % put + bytes(50_000), space=path)).code == 0:
        put += 1
    assert 5 < put < 30
    one_line(done, f"{os.strerror(errno.ENOSPC)}: {path}", "free space on the disk, then try again", code=1)
    assert run("message", "put", "orders", stdin=bytes(900_000), space=path).code == 1
    assert len(run("message", "list", "orders", "--json", space=path).objects) == put
    assert run("check", space=path).code == 0
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    assert run("message", "put", "orders", stdin=b"later", space=path).code == 0
    got = [run("message", "get", "orders", space=path).out[:5] for _ in range(put + 1)]
    assert got == [*(b"%04d\0" % i for i in range(put)), b"later"]
    assert run("check", space=path).code == 0
