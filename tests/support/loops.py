"""Small loops of reinforcement learning: scenarios with `rl`, and engines and trainers of whole numbers."""

from dataclasses import dataclass
from typing import Any

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.record import LoopRecord

PS = 10**12
MODEL = {"hidden": 64, "layers": 2, "heads": 4, "sequence": 64, "vocab": 128, "ffn": 128}


@dataclass(frozen=True)
class Engine:
    """A decode step of b sequences that hold T tokens takes step + b·sequence + T·token picoseconds."""

    step: int = 1000
    sequence: int = 10
    token: int = 1
    prefill: int = 3
    tokens: int = 10**9

    def stretch_ps(self, sequences: int, held: int, steps: int) -> int:
        """Of so many steps."""
        first = self.step + sequences * self.sequence + self.token * held
        return steps * first + self.token * sequences * (steps * (steps - 1) // 2)

    def prefill_ps(self, tokens: int) -> int:
        """Of so many tokens."""
        return self.prefill * tokens

    def room(self, sequences: int) -> int:
        """The same for any number of sequences."""
        return self.tokens


@dataclass(frozen=True)
class Training:
    """An optimizer step takes `step` and `token` per token of its samples; the passes before it, `passes`."""

    step: int = 5000
    token: int = 0
    passes: int = 0

    def take(self, updates: Any) -> list[tuple[int, int]]:
        """For each optimizer step."""
        return [(self.passes, self.step + self.token * sum(tokens)) for tokens in updates]


def loop_scenario(batch: int = 8, steps: int = 3, engines: int = 2, seed: int = 0, **rl: Any) -> Scenario:
    """A trainer on one node of two GPUs, and engines on as many nodes as asked for, each with two GPUs.

    Args:
        batch: samples of an optimizer step.
        steps: weight syncs.
        engines: nodes with engines; of one GPU each, so that there are twice as many replicas.
        seed: of all draws.
        rl: keys of the section, over those of a small one.
    """
    section = {
        "samples": 4,
        "prompt": 10,
        "response": {"kind": "uniform", "min": 1, "max": 40},
        "rollout": {"nodes": f"1-{engines}"},
        "sync": {"time": 0},
    }
    rollout = {**section["rollout"], **rl.pop("rollout", {})}  # type: ignore[dict-item]
    if "on" in rollout:
        del rollout["nodes"]
    return scenario_from(
        {
            "cluster": {"nodes": 1 + engines, "gpus_per_node": 2, "gpu": "h100"},
            "parallel": {"data": 2},
            "model": MODEL,
            "batch": batch,
            "steps": steps,
            "seed": seed,
            "rl": {**section, **rl, "rollout": rollout},
        }
    )


def looped(scenario: Scenario, engine: Any = None, training: Any = None, sync: int = 700) -> LoopRecord:
    """The loop, with an engine and a trainer of whole numbers."""
    return run_loop(scenario, engines=engine or Engine(), trainer=training or Training(), sync_ps=sync)
