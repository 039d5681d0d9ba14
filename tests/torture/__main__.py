"""``scripts/torture``: rounds of eight processes that are killed and stopped, for hours, until a promise is broken."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.torture.arena import Arena, Plan, Result

ROUND_SECONDS = 45.0


def main() -> int:
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}: start the same rounds again with --seed {seed}", flush=True)
    begun = time.monotonic()
    total = Result()
    rounds = 0
    while rounds == 0 or time.monotonic() - begun < arguments.hours * 3600:
        directory = Path(tempfile.mkdtemp(prefix="torture-", dir=arguments.directory))
        plan = Plan(seed + rounds, kills_per_window=5, least_seconds=ROUND_SECONDS, most_seconds=2 * ROUND_SECONDS)
        result = Arena(directory, plan).run()
        rounds += 1
        for sums, added in ((total.killed, result.killed), (total.stopped, result.stopped)):
            sums.update(added)
        total.operations.update(result.operations)
        print(_progress(time.monotonic() - begun, rounds, total), flush=True)
        if broken := _broken(result):
            print(*broken, f"BROKEN: {directory} is kept; this round begins with --seed {plan.seed}", sep="\n")
            return 1
        shutil.rmtree(directory)
    print("no promise was broken")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, metavar="N", help="how long (default: 1); at least a round")
    parser.add_argument("--seed", type=int, metavar="S", help="the first round's; the next one's is one more")
    parser.add_argument("--directory", type=Path, help="where the spaces lie: another file system, say")
    return parser.parse_args()


def _progress(seconds: float, rounds: int, total: Result) -> str:
    elapsed = f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f}:{seconds % 60:02.0f}"
    kills = ", ".join(f"{window} {count:,}" for window, count in sorted(total.killed.items()))
    done = total.operations
    return (
        f"{elapsed}  {rounds:,} rounds  {done['put']:,} puts, {done['got']:,} gets, {done['saw']:,} looks  "
        f"{Counter.total(total.stopped):,} stops  {Counter.total(total.killed):,} kills ({kills})"
    )


def _broken(result: Result) -> list[str]:
    found = result.aftermath
    return [*found.violations, *map(str, found.findings), *(f"left behind: {name}" for name in found.leftovers)]


if __name__ == "__main__":
    sys.exit(main())
