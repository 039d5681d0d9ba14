"""The slow tests have two depths, one of hours and one of days."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.crash import test_every_crash_point, test_interleavings, test_mirrored

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("option", ["--long", "--deep"])
def test_an_option_brings_its_depth_to_the_slow_tests(option: str, tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(
        f"import pytest\n\n\n@pytest.mark.slow\ndef test_depth(depth):\n    assert f'--{{depth}}' == '{option}'\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "tests.conftest", option, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert " 1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("module", [test_every_crash_point, test_interleavings, test_mirrored])
def test_the_deep_runs_try_more_than_the_long_ones(module: ModuleType) -> None:
    long, deep = module.MANY["long"], module.MANY["deep"]
    assert long.keys() == deep.keys()
    assert all(deep[name] < long[name] if name == "again" else deep[name] > long[name] for name in long)
