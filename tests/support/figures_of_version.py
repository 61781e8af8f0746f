"""Step times of shipped scenarios at the version of the model: run as a script, it records them.

Run it after a change of figures has been looked at, and `MODEL_VERSION` and the changelog say so.
"""

import json
from pathlib import Path

from hybrid_des import simulate
from hybrid_des.cost_model.model_version import MODEL_VERSION

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_suffix(".json")
QUICK = (
    "a100_8x", "first", "h100_2x8", "jitter_64", "llama3.1-8b_8", "prototype_12gpu", "resnet50_4stages",
    "slow_gpu_h100_2x8", "vit-l_8",
)  # fmt: skip
SLOW = (
    "documents/sft_8b",
    "experts/drift",
    "deepseek-v3_256",
    "scale/deepseek-v3_1024",
    "gpt3-175b_1024",
    "llama3.1-405b_512",
    "llama3.1-70b_128",
    "mixtral-8x7b_64",
)


def step_ps(name: str) -> int:
    """The step time of a shipped scenario in whole picoseconds."""
    return round(simulate(ROOT / f"scenarios/{name}.yaml").summary["step_time_s"] * 10**12)


def recorded() -> dict[str, object]:
    """The version, and its step times in picoseconds by scenario."""
    return json.loads(RECORDED.read_text())


if __name__ == "__main__":
    figures = {"model_version": MODEL_VERSION, "step_ps": {name: step_ps(name) for name in (*QUICK, *SLOW)}}
    RECORDED.write_text(json.dumps(figures, indent=1) + "\n")
