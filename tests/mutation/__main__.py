"""``scripts/mutate``: leave out each flush, lock, verification and second look in turn, and see whether a test fails.

The test that noticed a call last time runs first; the stages of the suite run only if it passes. Calls that no test
notices are printed. ``unnoticeable.toml`` names calls that no test can notice, with the reason; they are not run.
"""

import argparse
import concurrent.futures
import sys
import time
from collections.abc import Sequence

from tests.mutation.memory import noticed, remember, unnoticeable
from tests.mutation.sites import Site, all_sites
from tests.mutation.trial import ROOT, STAGES, UNNOTICED, Verdict, run_stages, run_tests, tree_without


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the calls, run nothing")
    parser.add_argument("--only", metavar="TEXT", help="the calls whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default 1)")
    parser.add_argument("--stages", type=int, default=1 + len(STAGES), help="the first so many stages of tests only")
    parser.add_argument("--record", action="store_true", help="remember in noticed.toml which test noticed")
    options = parser.parse_args()
    known, memory = unnoticeable(), noticed()
    sites = [site for site in all_sites(ROOT) if not options.only or options.only in site.name]
    if not sites:
        parser.error(f"no call's name contains {options.only!r}: see --list")
    if options.list:
        for site in sites:
            note = (
                "  (cannot be noticed)" if site.name in known else "" if site.name in memory else "  (not remembered)"
            )
            print(f"{site.path}:{site.line}  {site.name}{note}")
        return 0
    todo = [site for site in sites if site.name not in known]
    if failed := _fails_already(todo, memory, options.stages):
        print(f"The suite fails already, {failed}: nothing can be said about mutants.")
        return 1
    begun = time.monotonic()
    verdicts = _try(todo, memory, options)
    return _report(sites, known, verdicts, (time.monotonic() - begun) / 60)


def _fails_already(todo: Sequence[Site], memory: dict[str, list[str]], stages: int) -> str:
    """The tests that fail without any change; "" if none does."""
    print("First without any change ...", flush=True)
    told = [memory[site.name] for site in todo if site.name in memory]
    together = sorted({test for test, *options in told if not options})
    with tree_without(None) as tree:
        for arguments in [together] * bool(together) + [one for one in told if len(one) > 1]:
            if (verdict := run_tests(tree, arguments)).text != UNNOTICED.text:
                return verdict.text
        if len(told) < len(todo):
            verdict = run_stages(tree, stages)
            return verdict.text if verdict.noticed else ""
    return ""


def _try(todo: Sequence[Site], memory: dict[str, list[str]], options: argparse.Namespace) -> dict[str, Verdict]:
    """Verdicts by name, printed as they come."""
    verdicts = {}
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda site: _verdict(site, memory.get(site.name), options.stages), todo)
        for place, (site, verdict) in enumerate(zip(todo, results, strict=True), 1):
            minutes = (time.monotonic() - begun) / 60
            how = f"noticed {verdict.text}" if verdict.noticed else verdict.text.upper()
            print(f"[{place}/{len(todo)} {minutes:.0f} min] {site.path}:{site.line} {site.name}: {how}", flush=True)
            verdicts[site.name] = verdict
            if options.record and verdict.test:
                memory[site.name] = [verdict.test]
                remember(memory)
    return verdicts


def _verdict(site: Site, remembered: list[str] | None, stages: int) -> Verdict:
    with tree_without(site) as tree:
        if remembered is not None and (verdict := run_tests(tree, remembered)).noticed:
            return Verdict(True, verdict.text)  # (and nothing new to remember)
        return run_stages(tree, stages, site.path)


def _report(sites: Sequence[Site], known: dict[str, str], verdicts: dict[str, Verdict], minutes: float) -> int:
    left = [site for site in sites if site.name in verdicts and not verdicts[site.name].noticed]
    excused = [site for site in sites if site.name in known]
    print(
        f"\n{len(sites)} calls: {len(verdicts) - len(left)} noticed when they were left out, {len(left)} not noticed, "
        f"{len(excused)} that cannot be noticed; {minutes:.0f} minutes."
    )
    for site in left:
        print(f"  not noticed: {site.path}:{site.line} {site.name}")
    for site in excused:
        print(f"  cannot be noticed: {site.name}: {known[site.name]}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
