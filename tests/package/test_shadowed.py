"""The files of a program may have the names of this project's packages: the engine imports none of these files."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.package.conftest import ROOT

NAMES = ("recovery", "xa", "forwarder")
PROGRAM = """
import recovery, spool
with spool.create("space", exist_ok=True) as space:
    space.create_queue("orders", exist_ok=True)
    space.put("orders", "tea")
    assert space.check() == space.check(repair=True) == []
with spool.open("space") as space:
    print(space.get("orders").body, recovery.OWNER)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a program with modules of these names."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("OWNER = 'the program'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def _run(*command: str | Path, cwd: Path, path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(path)} if path is not None else None
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_program_with_its_own_recovery_opens_and_repairs_a_space(directory: Path) -> None:
    done = _run(sys.executable, "program.py", cwd=directory)
    assert (done.stdout, done.stderr) == ("tea the program\n", "")
    for command, code in ((["spool-recover", "--dry-run"], 0), (["spool-admin", "mirror", "show"], 3)):
        done = _run(
            Path(sys.executable).with_name(command[0]), *command[1:], "-s", "space", cwd=directory, path=directory
        )
        assert done.returncode == code, done.stderr


@pytest.mark.slow
def test_a_zip_file_of_the_packages_finds_its_recovery_too(directory: Path) -> None:
    with zipfile.ZipFile(directory / "packages.zip", "w") as archive:
        for package in ("spool", "recovery"):
            for file in (ROOT / package).rglob("*.py"):
                archive.write(file, file.relative_to(ROOT))
    done = _run(sys.executable, "program.py", cwd=directory, path=directory / "packages.zip")
    assert (done.stdout, done.stderr) == ("tea the program\n", "")
    told = _run(
        sys.executable, "-c", "import spool.recovery as r; print(r.__path__)",
        cwd=directory, path=directory / "packages.zip",
    )  # fmt: skip
    assert told.stdout == f"['{directory}/packages.zip/recovery']\n"


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("spool-admin", "-s", "space", "transaction", "list"), "xa"),
        (("spool-forward", "-s", "space", "--route", "orders=file:replies", "--once", "--no-spark"), "forwarder"),
    ],
    ids=["xa", "forwarder"],
)
def test_a_command_names_the_file_that_is_imported_in_its_place(command: tuple[str, ...], name: str, directory: Path):
    _run(sys.executable, "program.py", cwd=directory)
    done = _run(Path(sys.executable).with_name(command[0]), *command[1:], cwd=directory, path=directory)
    told = f"{directory}/{name}.py is imported in place of the package {name} of xaspool: rename it, or take its "
    assert (done.returncode, done.stderr) == (1, f"{command[0]}: {told}directory out of PYTHONPATH\n")


def test_the_data_source_names_it_too(directory: Path) -> None:
    done = _run(sys.executable, "-c", "import pyspark_xaspool", cwd=directory)
    assert f"ImportError: {directory}/forwarder.py is imported in place of the package forwarder" in done.stderr
