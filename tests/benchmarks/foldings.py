"""Compare folded runs of random scenarios with unfolded ones: `python tests/benchmarks/foldings.py --scenarios 2000`.

Every key of the summary and, expanded, every row of the timeline must be equal; the exit code is 1 if one is not.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.foldings import both_of, differences, scenario_values
from support.layered_foldings import model_values, spanning_values

from hybrid_des.scenario import sizes


def main() -> None:
    """Run the campaign, and print what was reached."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/foldings.py", description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=100, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first")
    parser.add_argument("--models", action="store_true", help="of models, with tensor and context ranks")
    parser.add_argument("--spanning", action="store_true", help="of small models under fair, tensor ranks over nodes")
    arguments = parser.parse_args()
    draw = spanning_values if arguments.spanning else model_values if arguments.models else scenario_values
    sizes.FOLDED_FROM = 2
    reached: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    saved = 0
    for seed in range(arguments.first, arguments.first + arguments.scenarios):
        values = draw(Random(seed))
        if (both := both_of(values)) is None:
            reached["impossible"] += 1
            continue
        run, whole = both
        fold = run.run.fold
        if fold is None:
            reached["not folded"] += 1
            reasons[re.sub(r"[\d,]+", "#", run.run.unfolded)] += 1
            continue
        sections = values["gradients"]["algorithm"], values["cluster"]["topology"], values["cluster"].get("sharing")
        axes = "+".join(turn.axis for turn in fold.turns)
        reached.update(["folded", f"folded along {axes}", *map(str, sections)])
        saved += fold.order
        if found := differences(run, whole):
            reached["WRONG"] += 1
            print(f"seed {seed}: {found}\n{values}", flush=True)
    for name, number in [*reached.most_common(), *reasons.most_common()]:
        print(f"{number:6} {name}")
    print(f"{saved / max(1, reached['folded']):.1f} times fewer ranks on average")
    sys.exit(1 if reached["WRONG"] else 0)


main()
