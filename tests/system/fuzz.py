"""A long run of random cases: `python tests/system/fuzz.py --cases 100000`.

Mutated scenarios, orders, tables, pastes and arguments go through the command line's entry point; random valid
scenarios are simulated and their timelines recounted; sweeps are killed at random moments. The first case of every way
to fail is minimised and kept as a file of tests/system/fuzz_cases, which the suite replays. The exit code is 1 if there
is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # this checkout's package, also where another is installed

from system.fuzzing import campaign  # noqa: E402
from system.fuzzing.campaign import Failures, loud  # noqa: E402
from system.fuzzing.pool import Pool  # noqa: E402

KEPT = TESTS / "system" / "fuzz_cases"


def main() -> int:
    """Run a campaign and print what failed."""
    parser = argparse.ArgumentParser(prog="python tests/system/fuzz.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="mutated cases (default 1000)")
    parser.add_argument("--recounts", type=int, metavar="N", help="recounted scenarios (default 3 per 100 cases)")
    parser.add_argument("--kills", type=int, metavar="N", help="killed runs (default 1 per 1000 cases)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first case; the others follow it")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), metavar="N", help="processes (default one per core)"
    )
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="DIR", help="folder of kept cases")
    given = parser.parse_args()
    recounts = given.cases * 3 // 100 if given.recounts is None else given.recounts
    count = given.cases // 1000 if given.kills is None else given.kills
    dask = importlib.util.find_spec("distributed") is not None
    failed = 0
    with Pool(given.workers) as pool:
        for what, run in (
            (
                "mutated cases",
                lambda: campaign.mutate(pool, range(given.seed, given.seed + given.cases), loud, given.keep),
            ),
            ("random valid scenarios", lambda: campaign.recount(pool, given.seed, recounts, loud, given.keep)),
            ("kills", lambda: campaign.kill(range(given.seed, given.seed + count), dask, say=loud, folder=given.keep)),
        ):
            failures = run()
            campaign.keep(pool, failures, given.keep)
            failed += len(failures.first)
            report(what, failures)
    return 1 if failed else 0


def report(what: str, failures: Failures) -> None:
    """Print what was done and what failed."""
    print(f"{sum(failures.done.values())} {what}: {', '.join(f'{n} {how}' for how, n in failures.done.most_common())}")
    for complaint, times in failures.counts.most_common():
        print(f"  {times} × {complaint}")


if __name__ == "__main__":
    sys.exit(main())
