"""``scripts/suites``: the test suites of other projects, on xaspool and on Redis, as a table.

Each suite comes from the source distribution of the version that requirements.txt pins. The plugins of this package
replace brokers and backends. reasons.toml names the tests that cannot run on another product, and the tests that fail
although xaspool does as documented. The exit code is 1 if any other test fails on xaspool but not on Redis.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.conftest import in_memory
from tests.external.selection import reason_of

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "suites"
HERE = Path(__file__).parent

_UNIT = ["virtual/test_base", "virtual/test_exchange", "test_filesystem", "test_sqlalchemy", "test_memory"]
_DRAMATIQ = ["actors", "barrier", "broker", "bucket_rate_limiter", "callbacks", "composition",
             "concurrent_rate_limiter", "generic_actors", "messages", "redis", "results", "stub_broker",
             "window_rate_limiter", "worker"]  # fmt: skip


class Suite(NamedTuple):
    """A suite: its package, the directory of its tests, the directory's new name, the tests, and options of pytest."""

    package: str
    tests: str
    name: str
    files: list[str]
    options: list[str]
    redis: bool = True  # whether the suite also runs on Redis
    extra: dict[str, str] = {}  # files of this package that the suite needs


SUITES = {
    "kombu": Suite(
        "kombu", "t", "t", ["t/integration/test_functions.py"], ["-p", "celery_xaspool.register"],
        extra={"kombu_functions.py": "integration/test_functions.py"},
    ),
    "kombu-transports": Suite(
        "kombu", "t", "t", [f"t/unit/transport/{name}.py" for name in _UNIT],
        ["-p", "tests.external.on_kombu", "-o", "python_classes=test_*"], redis=False,
    ),
    "celery": Suite(
        "celery", "t", "t", ["t/integration"],
        ["-p", "celery.contrib.pytest", "-p", "tests.external.on_celery", "-o", "python_classes=test_*",
         "--ignore", "t/integration/test_backend.py"],
    ),
    "django": Suite(
        "Django", os.path.join("tests", "tasks"), "tasks", ["tasks"],
        ["-p", "tests.external.on_django", "-o", "python_files=test_*.py"], redis=False,
    ),
    "dramatiq": Suite(
        "dramatiq", "tests", "dramatiq_tests", [f"dramatiq_tests/test_{name}.py" for name in _DRAMATIQ],
        ["-p", "tests.external.on_dramatiq"], extra={"dramatiq_common.py": "common.py", "__init__.py": "__init__.py"},
    ),
}  # fmt: skip


def version(package: str) -> str:
    """Return the newest version that requirements.txt pins."""
    found: list[str] = re.findall(rf"(?m)^{package}==([^;\s]+)", (ROOT / "requirements.txt").read_text())
    return max(found, key=lambda text: [int(part) for part in text.split(".")])


def prepare(suite: Suite) -> Path:
    """Copy the tests of a source distribution into a new directory, and return the directory."""
    archives = WORK / "archives"
    stem = f"{suite.package.lower()}-{version(suite.package)}"
    if not (archives / f"{stem}.tar.gz").exists():
        pip("download", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--ignore-requires-python",
            f"--dest={archives}", f"{suite.package}=={version(suite.package)}")  # fmt: skip
    place = Path(tempfile.mkdtemp(dir=WORK))
    with tarfile.open(archives / f"{stem}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    shutil.move(place / stem / suite.tests, place / suite.name)
    shutil.rmtree(place / stem)
    for source, target in suite.extra.items():
        shutil.copy(HERE / source, place / suite.name / target)
    return place


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit("pip failed; its reason is above. Run this again to try again.")


@contextmanager
def redis() -> Iterator[int]:
    """Run a Redis without files, and yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = ["redis-server", "--port", str(port), "--save", ""]
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            output = []
            while "Ready to accept connections" not in (line := server.stdout.readline()):
                output.append(line)
                if not line:
                    sys.exit(f"redis-server has ended: {''.join(output)}")
            yield port
        finally:
            server.terminate()


def run(name: str, on_redis: bool) -> Path:
    """Run a suite, and return the file of the outcomes."""
    suite = SUITES[name]
    place = prepare(suite)
    report = WORK / f"{name}-{'redis' if on_redis else 'xaspool'}.jsonl"
    report.unlink(missing_ok=True)
    try:
        with redis() as port, in_memory() as spaces:
            url = f"redis://localhost:{port}" if on_redis else f"xaspool://{spaces}/space"
            environment = {
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "scripts", WORK / "packages"))),
                "SUITE": "" if on_redis and name == "celery" else name,
                "OUTCOMES": str(report),
                "REDIS_HOST": "localhost",
                "REDIS_PORT": str(port),
                "TEST_BROKER": url,
                "TEST_BACKEND": url if on_redis else f"redis-score+{url}",
                "KOMBU_URL": url if on_redis else f"xaspool://{spaces}",
                "DRAMATIQ_URL": url if on_redis else "xaspool",
            }
            command = [
                *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(place), "-W", "ignore", "-q"),
                *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:timeout", "-p", "tests.external.selection"),
                *("--assert=plain", "--tb=short", *suite.options, *suite.files),
            ]
            subprocess.run(command, cwd=place, env={**os.environ, **environment}, check=False)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return report


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test, with its reason."""
    if not report.exists():
        sys.exit(f"{report.name}: pytest found no tests; its reason is above.")
    lines = map(json.loads, report.read_text().splitlines())
    return {test: (outcome, why) for test, outcome, why in lines}


def table(name: str, found: dict[str, dict[str, tuple[str, str]]]) -> bool:
    """Print the rows of a suite, and the reasons. Return whether each failure is explained."""
    suite, good = SUITES[name], True
    for product, results in found.items():
        count = Counter(outcome for outcome, _ in results.values())
        print(f"| {name} | {version(suite.package)} | {product} | {count['passed']} | {count['failed']} | "
              f"{count['skipped']} |")  # fmt: skip
    reasons: Counter[tuple[str, str]] = Counter()
    for test, (outcome, why) in found["xaspool"].items():
        if outcome == "failed":
            explained = reason_of(name, "fails", test)
            if explained is None and found.get("Redis", {}).get(test, ("", ""))[0] == "failed":
                explained = "fails on Redis, too"
            good = good and explained is not None
            why = explained or f"not explained: {test}: {why}"
        if outcome != "passed":
            reasons[outcome, why] += 1
    for (outcome, why), number in sorted(reasons.items()):
        print(f"    {number} {outcome}: {why}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/suites", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"one of {', '.join(SUITES)}; all by default")
    names = parser.parse_args().suites or list(SUITES)
    if unknown := set(names) - SUITES.keys():
        parser.error(f"no suite {min(unknown)!r}: name some of {', '.join(SUITES)}")
    if shutil.which("redis-server") is None:
        sys.exit("redis-server is missing: install it, e.g. apt install redis-server")
    WORK.mkdir(parents=True, exist_ok=True)
    if not (WORK / "packages").exists():
        pip("install", "--no-deps", f"--target={WORK / 'packages'}", "-r", str(ROOT / "requirements-suites.txt"))
    found: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
    with suppress(KeyboardInterrupt):  # the table then has the runs that ended
        for name in names:
            found[name] = {"xaspool": outcomes(run(name, on_redis=False))}
            if SUITES[name].redis:
                found[name]["Redis"] = outcomes(run(name, on_redis=True))
    print("| suite | version | on | passed | failed | skipped |\n|---|---|---|---|---|---|")
    good = [table(name, results) for name, results in found.items()]  # each prints its rows
    return 0 if len(good) == len(names) and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
