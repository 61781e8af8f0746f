"""Print the table of accuracy.md from what `hybrid-des validate CORPUS --record` noted, and that of differences.

    python scenarios/validation/accuracy.py

"Interval holds" counts the runs that lie in their intervals, known by all others, "interval" is the median of these;
"source left out" counts those that do so known by other sources alone, and how many of the rest are told to be of a
stack that nobody measured, or beyond what was measured of it.

Of differences, a setting of the layout is one exchange of ranks, the micro-batch, the schedule or the sharding. A sign
is asked for where at least 2 % were predicted, and where more was measured than repeats of one setting differ by.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import median

from hybrid_des.analysis.difference import LEAST, of_pairs
from hybrid_des.analysis.experience import error_left_out, of_runs
from hybrid_des.analysis.experience_table import Recorded, known
from hybrid_des.analysis.pair_table import Pair, known_pairs
from hybrid_des.units import format_change, format_share

# inputs that no scenario states: deterministic tests, second iterations, GPUs limited in power, how FLOP were counted
SPECIAL = ("bigscience_a100", "bigscience_v100", "megatron_golden_7b", "nemo_24_03_long", "torchao_b200")

# by how much repeats of one setting differ: on one day, 48 nodes of A100s with 4 tensor and 12 pipeline ranks and
# micro-batches of 2; in four days, 64 V100s
REPEATS = {"bigscience_a100": 113.54 / 110.48 - 1, "bigscience_v100": 225 / 125 - 1}
LATER = 0.02  # elsewhere, the same setting one release later


def held(runs: Sequence[Recorded], kept: Callable[[int, int], bool]) -> list[tuple[bool, bool, float]]:
    """For each run whether its interval, by the runs kept, holds it, whether runs like it are known, and the width.

    The width is what the upper end is above the prediction, as a share of it.
    """
    sizes, found = Counter(one.corpus for one in runs), []
    for number, one in enumerate(runs):
        told = of_runs(one.like, [other for place, other in enumerate(runs) if kept(number, place)])
        reach = told.reach or 0.0
        found.append((error_left_out(one, sizes[one.corpus]) <= reach, not told.unmeasured, exp(reach) - 1))
    return found


def sources(runs: Sequence[Recorded]) -> Iterable[list[str]]:
    """The lines of the table of sources."""
    alone = held(runs, lambda number, place: number != place)
    unseen = held(runs, lambda number, place: runs[number].corpus != runs[place].corpus)
    lines = defaultdict(list)
    for one, (inside, _, width), (outer, measured, _) in zip(runs, alone, unseen, strict=True):
        lines[one.corpus].append((one, inside, outer, not outer and not measured, width))
        every = ("all",) if one.corpus in SPECIAL else ("all, without special inputs", "all")
        for name in every:
            lines[name].append((one, inside, outer, not outer and not measured, width))
    for corpus, rows in sorted(lines.items(), key=lambda each: (each[0].startswith("all"), each[0])):
        errors = [abs(one.ratio - 1) for one, *_ in rows]
        stacks = ", ".join(sorted({one.like.place for one, *_ in rows})) if not corpus.startswith("all") else ""
        fitted = rows[0][0].fitted if not corpus.startswith("all") else ""
        bias = sum(one.ratio for one, *_ in rows) / len(rows) - 1
        figures = format_share(sum(errors) / len(errors)), format_change(bias), format_share(max(errors), 0)
        inside, outer, told = (sum(row[column] for row in rows) for column in (1, 2, 3))
        wide = f"± {format_share(median(row[4] for row in rows), 0)}"
        yield [corpus, stacks, str(len(rows)), str(fitted), *figures, str(inside), wide, f"{outer} + {told}"]


def differences(pairs: Sequence[Pair]) -> Iterable[list[str]]:
    """The lines of the table of differences."""
    kinds = defaultdict(list)
    for pair in pairs:
        ranks = pair.move in ("chip", "precision") or "ranks" in pair.move
        layout = ranks or pair.move in ("micro-batch", "schedule", "sharding")
        joint = {"chip, precision or ranks": ranks, "chip, precision or one setting of the layout": layout, "all": True}
        kinds[pair.move].append(pair)
        for name in (name for name, holds in joint.items() if holds):
            kinds[name].append(pair)
            if pair.corpus not in SPECIAL:
                kinds[f"{name}, without special inputs"].append(pair)
    for move, some in sorted(kinds.items(), key=lambda each: -len(each[1])):
        told = [pair for pair in some if abs(pair.predicted - 1) >= LEAST]
        clear = [pair for pair in some if abs(log(pair.measured)) > log(1 + REPEATS.get(pair.corpus, LATER))]
        mean = sum(exp(pair.error) - 1 for pair in some) / len(some)
        right = (f"{sum(pair.agrees for pair in asked)} of {len(asked)}" for asked in (told, clear))
        sure = of_pairs([move], pairs) if move in {pair.move for pair in pairs} else None
        wide = f"± {format_share(exp(sure.reach) - 1, 0)}" if sure else ""
        yield [move, str(len(some)), format_share(mean), wide, *right]


def print_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print Markdown."""
    for line in (heads, ["---"] * len(heads), *lines):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    held_in = ("interval holds", "interval", "source left out + told")
    heads = ("source", "stack", "rows", "numbers fitted", "mean", "bias", "worst", *held_in)
    print_table(heads, sources(known()))
    print()
    signs = ("right, of 2 % and more predicted", "right, of more measured than repeats differ by")
    heads = ("differ in", "pairs", "mean", "4 of 5 within", *signs)
    print_table(heads, differences(known_pairs()))
