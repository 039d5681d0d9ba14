"""``scripts/pins``: whether each pin of requirements.txt has a wheel for each Python and machine that xaspool names."""

import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
MACHINES = ("x86_64", "aarch64")
_OF_SOURCE = {"pyspark"}  # Python and Java alone: its source distribution does for all
_LIBRARIES = ("manylinux_2_17", "manylinux2014", "manylinux_2_28")
REQUIREMENTS = Path(__file__).parents[2] / "requirements.txt"


def pins(python: str, machine: str) -> list[str]:
    """The packages that are installed there. pip would evaluate the markers for its own Python."""
    there = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    lines = [line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line]
    return [
        f"{one.name}{one.specifier}"
        for one in wanted
        if one.name not in _OF_SOURCE and (one.marker is None or one.marker.evaluate(there))
    ]


def missing(python: str, machine: str) -> str:
    """The error of pip for the first pin without a wheel there; empty if each has one."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pins.txt"
        file.write_text("\n".join(pins(python, machine)))
        platforms = [f"--platform={library}_{machine}" for library in _LIBRARIES]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet"]
        where = [
            "--ignore-installed",
            "--ignore-requires-python",  # which pip holds against the Python that it runs on
            "--no-deps",
            "--only-binary=:all:",
            "--implementation=cp",
            f"--target={directory}",
        ]
        found = subprocess.run(
            [*command, *where, f"--python-version={python}", *platforms, "-r", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


def main() -> int:
    failed = 0
    for python in PYTHONS:
        for machine in MACHINES:
            lacks = missing(python, machine)
            failed += bool(lacks)
            print(f"Python {python}, {machine}: {lacks or 'every pin has a wheel'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
