"""``python -m bench``: measure the cases, print the table, and on request write docs/performance.md.

A run without options is short. It shows in a few minutes that everything works, but its numbers are not meaningful.
``python -m bench capacity`` measures the capacity of a forwarder: see ``bench/capacity_run.py``.
"""

import argparse
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator

import spool
from bench import capacity_run
from bench.calm import calm_of
from bench.cases import CASES
from bench.cases.base import Case
from bench.document import rows_that_were_ok, write
from bench.flushes import count_flushes
from bench.peers import PEERS
from bench.setting import FULL, ONCE, Bench, Sizes, describe, running
from bench.table import Chart, Outcome, Report, line_of, markdown, no_longer_ok, summary, unmeasured

_NAMES = [peer.name for peer in PEERS]


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["capacity"]:
        capacity_run.main(words[1:])
        return
    asked = parser().parse_args(words)
    sizes = FULL if asked.full else ONCE if asked.once else Sizes()
    keys = asked.cases or [case.key for case in CASES]
    with running(asked.directory, sizes, asked.peers) as bench:
        report = Report(describe(bench.directory, sizes), without_directory(words))
        report.measured = f"{spool.__version__}, {time.strftime('%Y-%m-%d')}"
        _print_setting(report, bench)
        if not asked.no_flushes:
            report.peers = count_flushes(bench)
            for row in report.peers:
                print(
                    f"  {row[0]:14} {row[1]:36} durable: {row[2]:6} flushes a put {row[4]}, a get {row[5]}", flush=True
                )
        run(bench, keys, report)
    print("", summary(report), *no_longer_ok(report, rows_that_were_ok()), sep="\n")
    if asked.write:
        write(report)
    if asked.markdown:
        print(markdown(report))


def without_directory(words: list[str]) -> str:
    """Return the command for other machines: without the directory of the measured disk."""
    kept, here = [], False
    for word in words:
        kept += [] if here or word.startswith("--directory") else [word]
        here = word == "--directory"
    return shlex.join(["python", "-m", "bench", *kept])


def run(bench: Bench, keys: list[str], report: Report) -> None:
    """Measure the cases. The rows of other cases are marked as left out. Ctrl-C leaves out all further cases."""
    report.skipped = bench.skipped
    calm = calm_of(bench.directory)
    for case in CASES:
        why = "left out of this run"
        if case.key in keys:
            if not calm.wait(bench.sizes.calm_seconds):
                print(f"The disk is still busy: case {case.key} is measured all the same.", flush=True)
            try:
                why = _measured(case, bench, report)
            except KeyboardInterrupt:  # keep the results of the earlier cases, which took hours
                print(f"Interrupted in case {case.key}: what was measured is kept.", flush=True)
                keys = []
        done = {outcome.row.key for outcome in report.outcomes}
        report.outcomes += [unmeasured(row, why) for row in case.rows if row.key not in done]


def _measured(case: Case, bench: Bench, report: Report) -> str:
    """Measure a case; return the reason why some of its rows were not measured. A failed case does not end the run."""
    try:
        for outcome in _results(case, bench, report):
            print(line_of(outcome), flush=True)
    except Exception as error:
        traceback.print_exc()
        return f"it failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return "the peer to compare with, or xaspool, is left out"


def _results(case: Case, bench: Bench, report: Report) -> Iterator[Outcome]:
    for result in case.measure(bench):
        if isinstance(result, Chart):
            report.charts.append(result)
        else:
            report.outcomes.append(result)
            yield result


def _print_setting(report: Report, bench: Bench) -> None:
    for name, value in report.setting.items():
        print(f"{name:12} {value}")
    for line in bench.skipped:
        print(f"not measured: {line}")
    print(flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    keys = [case.key for case in CASES]
    found = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    found.add_argument("cases", nargs="*", type=_case, metavar="CASE", help=f"default: all of {', '.join(keys)}")
    found.add_argument("--directory", default=".", help="on the disk to measure; default: here")
    size = found.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="the sizes of the table: hours, 40 GB of disk")
    size.add_argument("--once", action="store_true", help="as little of each case as shows that it works")
    found.add_argument(
        "--peers", type=_peers, default=_NAMES, metavar="NAME,…", help=f"default: all of {', '.join(_NAMES)}"
    )
    found.add_argument("--no-flushes", action="store_true", help="do not count the contenders' flushes")
    found.add_argument("--markdown", action="store_true", help="print the table as it would be written, too")
    found.add_argument("--write", action="store_true", help="write it into docs/performance.md, with its charts")
    return found


def _case(text: str) -> str:
    keys = [case.key for case in CASES]
    if text not in keys:
        raise argparse.ArgumentTypeError(f"there is no case {text}: choose from {', '.join(keys)}")
    return text


def _peers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(_NAMES):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(_NAMES)}")
    return names


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the servers also end
    main()
