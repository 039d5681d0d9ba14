"""One trial: a copy of the tree, with or without a call, and the tests that are run on it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutation.sites import Site

ROOT = Path(__file__).resolve().parents[2]

# The directories that are named like a part of the engine.
ROOMS = tuple(
    f"tests/{path.name}" for path in sorted((ROOT / "tests").iterdir()) if (ROOT / "spool" / path.name).is_dir()
)

# After the tests that are chosen for the file of the call. test_planted.py is left out: it changes the engine's source
# itself, and would miss the text of the call.
STAGES: tuple[tuple[str, ...], ...] = (
    ("tests/features", "tests/intake", "tests/xa", "tests/spool", *ROOMS, "-m", "not strace and not root"),
    tuple(f"tests/crash/test_{name}.py" for name in ("stops", "posted", "built_upon", "creating", "mirrored")),
    ("tests/recovery", "tests/corruption", "tests/scripts", "tests/forwarder"),
    ("tests/crash/test_every_crash_point.py", "tests/crash/test_interleavings.py", "tests/environment"),
    ("tests/faults", "tests/kills", "tests/torture"),
)
_SECONDS = 1200
_FAILED = 1  # pytest's exit status; any other means that it could not run the tests


class Verdict(NamedTuple):
    """``noticed``: by a failing ``test``, or, if that is "", as ``text`` tells."""

    noticed: bool
    text: str
    test: str = ""


UNNOTICED = Verdict(False, "not noticed")


@contextmanager
def tree_without(site: Site | None) -> Iterator[Path]:
    """A copy of the files that git tracks, with that call left out."""
    with tempfile.TemporaryDirectory(prefix="xaspool-mutant-") as directory:
        tree = Path(directory) / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).exists():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        if site is not None:
            mutant = tree / site.path
            mutant.write_text(site.left_out(mutant.read_text()))
        yield tree


def run_stages(tree: Path, stages: int, path: str = "") -> Verdict:
    """Stage by stage, until a test fails: first the tests that are chosen for the file at this path."""
    chosen = ("-p", "tests.selection.option", "--ignore=tests/crash/test_planted.py", "--for", path)
    for stage in ([chosen] * bool(path) + [*STAGES])[:stages]:
        there = [argument for argument in stage if not argument.startswith("tests/") or (tree / argument).exists()]
        verdict = run_tests(tree, there)
        if verdict.noticed:
            return verdict
    return UNNOTICED


def run_tests(tree: Path, arguments: Sequence[str]) -> Verdict:
    """The first test that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return Verdict(True, f"it hangs in {arguments[0]}")
    if done.returncode == 0:
        return UNNOTICED
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    if done.returncode != _FAILED or not lines:
        return Verdict(False, f"pytest could not run {' '.join(arguments)}: {(done.stdout + done.stderr)[-500:]}")
    test = lines[0].partition(" ")[2].partition(" - ")[0]
    return Verdict(True, f"by {test}", test)
