"""The summary of a loop by its public keys: seconds per cycle, shares, tokens, samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_des.studies.rl.figures import LoopFigures


def summary(figures: LoopFigures) -> dict[str, Any]:
    """The key `rl` of the summary; times are means per cycle after the warm-up, those of engines per GPU too."""
    groups, running = figures.queue
    return {
        "cycle_s": figures.cycle,
        "cycles_s": figures.cycles,
        "warm_up_cycles": figures.warm_up,
        "gpus": figures.gpus,
        "samples_per_s": figures.samples_per_s,
        "tokens_per_s": figures.tokens_per_s,
        "tokens_per_gpu_s": figures.tokens_per_gpu_s,
        "out_of_memory": not figures.record.trainer_fits,
        "trainer": _trainer(figures),
        "rollout": _rollout(figures),
        "queue": {"groups": groups, "running_samples": running},
        "staleness": figures.ages.to_mapping(),
        "spans": figures.spans.to_mapping(),
        "lengths": {"drawn": figures.drawn.to_mapping(), "trained": figures.trained_lengths.to_mapping()},
        "generated_tokens": figures.tokens("response"),
        "recomputed_tokens": figures.tokens("recomputed"),
        "discarded_tokens": figures.tokens("discarded"),
        "dropped": figures.samples_with("dropped"),
        "filtered": figures.samples_with("filtered"),
        "notes": [*figures.record.notes],
    }


def _trainer(figures: LoopFigures) -> dict[str, Any]:
    times = {state.replace(" ", "_"): figures.per_cycle(time) for state, time in figures.trainer.items()}
    sizes = {"gpus": figures.record.trainer_gpus, "busy_ratio": figures.trainer_busy, "wait_s": figures.wait}
    return {**sizes, "time_s": times}


def _rollout(figures: LoopFigures) -> dict[str, Any]:
    gpus, lent = figures.rollout_gpus, sum(figures.record.gpus_of_replicas[figures.own_replicas.stop :])
    return {
        "gpus": gpus,
        "replicas": len(figures.own_replicas),
        "busy_ratio": figures.rollout_busy,
        "sequences": figures.sequences,
        "verl_idle_ratio": figures.idle_by_last_pause,
        "time_s": _per_gpu(figures, figures.engines, gpus),
        **({"lent": {"gpus": lent, "time_s": _per_gpu(figures, figures.lent, lent)}} if lent else {}),
    }


def _per_gpu(figures: LoopFigures, times: Mapping[str, int], gpus: int) -> dict[str, float]:
    return {state: figures.per_cycle(time, gpus) for state, time in times.items()}
