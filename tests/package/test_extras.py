"""A missing package is named, with the extra that installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ADMIN = "from xaspool_scripts.admin import main; main({!r}.split())"


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("prometheus_client", ADMIN.format("metrics"), "metrics"),
        ("pyarrow", ADMIN.format("archive orders --to out"), "parquet"),
        ("jinja2", ADMIN.format("console"), "console"),
        pytest.param("starlette", ADMIN.format("console"), "console", marks=pytest.mark.slow),
        pytest.param("uvicorn", ADMIN.format("console"), "console", marks=pytest.mark.slow),
        ("kombu", "import celery_xaspool.register", "celery"),
        ("django", "import django_xaspool", "django"),
        ("dramatiq", "import dramatiq_xaspool", "dramatiq"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing: str, code: str, extra: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"import sys; sys.modules[{missing!r}] = None; {code}"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert f" needs {missing}" in said
    assert said.endswith(f": pip install './xaspool[{extra}]'")
