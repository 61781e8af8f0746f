"""A campaign: many seeds, and one minimised case for each way to fail."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from system.fuzzing import generate, kills, valid
from system.fuzzing.case import Case, Outcome, from_json, save, to_json
from system.fuzzing.judge import complaints
from system.fuzzing.pool import Pool
from system.fuzzing.shrink import MOST_RUNS, smaller, smaller_values
from system.fuzzing.simulated import Simulated, gist, refused

Say = Callable[[str], None]
FEW = 25  # runs of a case that takes as long as it may


@dataclass
class Failures:
    """What failed: how often each complaint was made, and the first example of each.

    Attributes:
        folder: where first examples are written at once, as they are; `keep` minimises them at the end.
    """

    folder: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, Any] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def add(self, complaint: str, example: Any, say: Say) -> None:
        self.counts[complaint] += 1
        if complaint not in self.first:
            self.first[complaint] = example
            say(f"new: {complaint}")
            if self.folder is not None:
                save(self.folder, complaint, {"wrong": complaint, **_content(example)})


def quiet(text: str) -> None:
    """Say nothing."""


def loud(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def outcome_of(answer: Outcome | str) -> Outcome:
    """The outcome, also of a case that took its worker with it."""
    return Outcome(None, stopped=answer) if isinstance(answer, str) else answer


def judged(pool: Pool, case: Case) -> list[str]:
    """Run one case; what is wrong with its outcome."""
    return complaints(case, outcome_of(pool.one(case)))


def mutate(pool: Pool, seeds: Iterable[int], say: Say = quiet, folder: Path | None = None) -> Failures:
    """Run the mutated cases of some seeds."""
    failures = Failures(folder)
    for number, (case, answer) in enumerate(pool.map(map(generate.case, seeds)), 1):
        outcome = outcome_of(answer)
        failures.done[outcome.stopped or ("traceback" if outcome.raised else f"exit code {outcome.code}")] += 1
        for complaint in complaints(case, outcome):
            failures.add(complaint, case, say)
        if number % 1000 == 0:
            say(f"{number} cases: {dict(failures.done)}, {len(failures.first)} ways to fail")
    return failures


def recount(pool: Pool, first: int, count: int, say: Say = quiet, folder: Path | None = None) -> Failures:
    """Simulate and recount this many random valid scenarios, not counting those that an algorithm refuses."""
    failures = Failures(folder)
    jobs = (Simulated(valid.scenario(Random(seed))) for seed in range(first, first + 2 * count))
    for job, answer in pool.map(_until(jobs, lambda: failures.done["recounted"] < count)):
        found = [answer] if isinstance(answer, str) else answer
        failures.done["refused by an algorithm" if refused(found) else "recounted"] += 1
        for difference in found[:1]:
            if not refused(found):
                failures.add(f"recount: {gist(difference)}", job.values, say)
        if sum(failures.done.values()) % 500 == 0:
            say(f"{dict(failures.done)}, {len(failures.first)} ways to fail")
    return failures


def _until(jobs: Iterable[Simulated], more: Callable[[], bool]) -> Iterator[Simulated]:
    for job in jobs:
        if not more():
            return
        yield job


def kill(
    seeds: Iterable[int], dask: bool, patience: float = 5, say: Say = quiet, folder: Path | None = None
) -> Failures:
    """Kill sweeps, one after the other."""
    failures = Failures(folder)
    for seed in seeds:
        one = kills.kill_of(seed, dask)
        found = kills.wrong(one, patience)
        failures.done["as it should" if not found else "not as it should"] += 1
        say(f"{one}: {found or 'fine'}")
        for difference in found:
            failures.add(f"kill: {difference}", one, say)
    return failures


def keep(pool: Pool, failures: Failures, folder: Path) -> None:
    """Minimise the first example of each complaint and write it down."""
    for complaint, example in failures.first.items():
        if isinstance(example, Case):
            runs = FEW if complaint.startswith(("slow", "hang")) else MOST_RUNS
            example = smaller(example, lambda case, complaint=complaint: complaint in judged(pool, case), runs)
        elif not isinstance(example, kills.Kill):
            example = smaller_values(example, lambda v, c=complaint: c in recounted(pool, v))
        save(folder, complaint, {"wrong": complaint, **_content(example)})


def _content(example: Any) -> dict[str, Any]:
    """An example as it is kept."""
    if isinstance(example, Case):
        return to_json(example)
    return kills.to_json(example) if isinstance(example, kills.Kill) else {"scenario": example}


def recounted(pool: Pool, values: Any) -> list[str]:
    """What a recount of a scenario complains about."""
    answer = pool.one(Simulated(values))
    found = [answer] if isinstance(answer, str) else answer
    return [f"recount: {gist(one)}" for one in found if not refused(found)]


def replayed(pool: Pool, content: dict[str, Any]) -> list[str]:
    """Run a kept case again; what is wrong with it now."""
    if "scenario" in content:
        return recounted(pool, content["scenario"])
    if "kill" in content:
        return kills.wrong(kills.Kill(**content["kill"]), patience=60)
    return judged(pool, from_json(content))
