"""``scripts/mutate``: leave out each flush, lock, verification and second look in turn, and see whether a test fails.

Each mutant is a copy of the tree, tested stage by stage, the quickest first, until one fails. What no test notices is
printed; what cannot be noticed stands, with the reason, in ``unnoticeable.toml`` and is not run.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutation.sites import Site, all_sites

ROOT = Path(__file__).resolve().parents[2]
STAGES = (
    ("tests/spool", "tests/xa", "tests/intake"),
    ("tests/crash",),
    ("tests/faults", "tests/environment", "tests/corruption", "tests/recovery", "tests/kills"),
    ("tests/forwarder", "tests/scripts", "tests/torture"),
)
STAGE_SECONDS = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the calls, run nothing")
    parser.add_argument("--only", metavar="TEXT", help="the calls whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default 1)")
    parser.add_argument("--stages", type=int, default=len(STAGES), help="the first so many stages of tests only")
    options = parser.parse_args()
    known = unnoticeable()
    sites = [site for site in all_sites(ROOT) if not options.only or options.only in site.name]
    if options.list:
        for site in sites:
            print(f"{site.path}:{site.line}  {site.name}{'  (cannot be noticed)' if site.name in known else ''}")
        return 0
    if not sites:
        parser.error(f"no call's name contains {options.only!r}: see --list")
    print("First without any change ...", flush=True)
    if (failed := _run(None, options.stages)) != "unnoticed":
        print(f"The suite fails already: {failed}. Nothing can be said about mutants.")
        return 1
    return _report(sites, known, options)


def unnoticeable() -> dict[str, str]:
    """Reasons, by the calls' names."""
    found: dict[str, str] = tomllib.loads((Path(__file__).parent / "unnoticeable.toml").read_text())
    return found


def _report(sites: list[Site], known: dict[str, str], options: argparse.Namespace) -> int:
    todo = [site for site in sites if site.name not in known]
    begun = time.monotonic()
    outcomes: Counter[str] = Counter()
    left: list[Site] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda site: _run(site, options.stages), todo)
        for place, (site, outcome) in enumerate(zip(todo, results, strict=True), 1):
            minutes = (time.monotonic() - begun) / 60
            print(f"[{place}/{len(todo)} {minutes:.0f} min] {outcome}: {site.path}:{site.line} {site.name}", flush=True)
            outcomes["unnoticed" if outcome == "unnoticed" else "noticed"] += 1
            if outcome == "unnoticed":
                left.append(site)
    print(f"\n{len(todo)} calls left out, one at a time: {outcomes['noticed']} noticed, {len(left)} not.")
    for site in left:
        print(f"  not noticed: {site.path}:{site.line} {site.name}")
    for name in sorted(known):
        if any(site.name == name for site in sites):
            print(f"  cannot be noticed: {name}: {known[name]}")
    return 1 if left else 0


def _run(site: Site | None, stages: int) -> str:
    """Which test noticed, or "unnoticed"."""
    with tempfile.TemporaryDirectory(prefix="xaspool-mutant-") as directory:
        tree = Path(directory) / "tree"
        _copy(tree)
        if site is not None:
            mutant = tree / site.path
            mutant.write_text(site.left_out(mutant.read_text()))
        for stage in STAGES[:stages]:
            failed = _test(tree, [path for path in stage if (tree / path).exists()])
            if failed:
                return failed
    return "unnoticed"


def _copy(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _test(tree: Path, paths: list[str]) -> str | None:
    """The first failure's line of pytest's summary, or None if everything passed."""
    if not paths:
        return None
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *paths]
    environment = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, text=True, timeout=STAGE_SECONDS, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        return f"noticed, it hangs in {paths[0]} and more"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"noticed by {lines[0].split()[1]}" if lines else f"noticed, pytest ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
