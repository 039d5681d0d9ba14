"""A space, and the programs run on it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import spool
import xa
from tests.branches import voting
from tests.spaces import path_with
from xaspool_scripts.admin import main as spool_admin
from xaspool_scripts.intake import main as spool_intake
from xaspool_scripts.recover import main as spool_recover

PROGRAMS: dict[str, click.Command] = {
    "spool-admin": spool_admin,
    "spool-intake": spool_intake,
    "spool-recover": spool_recover,
}


@dataclass
class Result:
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def objects(self) -> list[Any]:
        """Return the JSON objects of the output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_space_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SPOOL_SPACE", "SPOOL_DEBUG", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


path = path_with("orders", "errors")


@pytest.fixture
def run(path: Path) -> Run:
    """spool-admin in this process, on the space."""

    def call(*args: object, stdin: bytes = b"", program: str = "spool-admin", space: object = path) -> Result:
        options = [] if space is None else ["-s", str(space)]
        done = CliRunner().invoke(PROGRAMS[program], [*options, *map(str, args)], input=stdin)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Result(done.exit_code, done.stdout_bytes, done.stderr)

    return call


@pytest.fixture
def figures(path: Path) -> spool.SpaceMetrics:
    """The metrics of the space."""
    with spool.open(path) as space:
        return space.metrics()


def start(program: str, *args: object, before: str = "", **options: Any) -> "subprocess.Popen[bytes]":
    """Start a program in a separate process. ``before``: a line of Python that runs before the program."""
    code = f"{before}\nfrom xaspool_scripts.start import {program.removeprefix('spool-')} as main; main()"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], **options)


def execute(program: str, *args: object, stdin: bytes = b"", **options: Any) -> Result:
    """Run a program in a separate process until it ends."""
    with start(program, *args, **options) as process:
        out, err = process.communicate(stdin, timeout=60)
    return Result(process.returncode, out or b"", (err or b"").decode())


def killed_python(source: str, *args: object) -> None:
    """Run Python code in a process that kills itself at the last line, as a power cut would."""
    ending = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", source + ending, *map(str, args)], check=False, timeout=60)
    assert done.returncode == -9


def one_line(result: Result, *words: str, code: int | None = None) -> str:
    """The command complained in one line with these words in it; returns the line.

    code: the exit code of a command that wrote nothing to the standard output.
    """
    assert code is None or (result.code, result.out) == (code, b""), result
    lines = result.err.splitlines()
    assert len(lines) == 1, result
    assert all(word in lines[0] for word in words), (lines[0], words)
    return lines[0]


def newest(path: Path) -> Path:
    """The space's last commit."""
    return max((path / "committed").iterdir())


def prepare(path: Path, xid: xa.Xid, body: bytes = b"x") -> None:
    """A coordinator prepares a branch that puts a message, and is gone."""
    with spool.open(path) as space, voting(xa.ResourceManager(space), xid):
        space.put("orders", body)


def flip(file: Path, offset: int) -> None:
    """Flip one bit of a file; a negative offset counts from the file's end."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def snapshot(path: Path) -> dict[str, Any]:
    """Return the inode, time of change, mode and bytes of every file and directory."""
    found: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        state = os.lstat(file)
        content = file.read_bytes() if file.is_file() else None
        found[str(file.relative_to(path))] = (state.st_ino, state.st_mtime_ns, state.st_mode, content)
    return found


def mounted(directory: Path, size: str) -> Iterator[Path]:
    """A small file system in memory; for root, where mounting is allowed."""
    directory.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(directory)]
    if subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def leaves(command: click.Command, words: Sequence[str] = ()) -> Iterator[tuple[list[str], click.Command]]:
    """Every command of a program, with the words that lead to it."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, [*words, name])
    else:
        yield [*words], command
