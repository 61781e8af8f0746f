"""The configuration that a line of Megatron-DeepSpeed names, as flags: ZeRO's stage, batch, precision, offload.

It stands beside the script, or the script writes it. Keys: deepspeed.ai/docs/config-json. DeepSpeed's engine is built
from it, so that it counts before flags that say otherwise. What it leaves to the trainer ("auto") is left out.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks.launch_line import Read
from hybrid_des.scenario.composition import value_at

FLAG = "--deepspeed-config"
_NUMBERS = {
    "zero_optimization.stage": "--zero-stage", "train_batch_size": "--global-batch-size",
    "train_micro_batch_size_per_gpu": "--micro-batch-size",
}  # fmt: skip
_SWITCHES = {"bf16.enabled": "--bf16", "bfloat16.enabled": "--bf16", "fp16.enabled": "--fp16"}
_MISSING = "its ZeRO stage, batch and precision are missing"


def with_config(read: Read, name: str, *, is_file: bool) -> tuple[dict[str, list[str]], list[str]]:
    """The flags of a line with those of its configuration, and what is to be said of it.

    Args:
        read: what is started.
        name: where it comes from; the path of a script, if `is_file`.
        is_file: whether the configuration is looked for beside it.
    """
    path = next(iter(read.flags.get(FLAG, ())), "")
    if not path:
        return read.flags, []
    short = f"{FLAG} {one_line(path, LONGEST_SHOWN)}"
    places = [Path(name).parent / path, Path(name).parent / Path(path).name] if is_file and "$" not in path else []
    text = read.documents.get(path) or next((read_text(one, "JSON") for one in places if one.is_file()), None)
    if text is None:
        return read.flags, [f"{short}: not found beside the script: {_MISSING}"]
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return read.flags, [f"{short}: not JSON: {_MISSING}"]
    stated = dict(_flags(values)) if isinstance(values, dict) else {}
    differ = (flag for flag, words in stated.items() if read.flags.get(flag, words) != words)
    said = [
        f"{flag} {' '.join(read.flags[flag])}: {' '.join(stated[flag])} in {short}, which counts" for flag in differ
    ]
    return read.flags | stated, said


def _flags(values: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for path, flag in _NUMBERS.items():
        value = value_at(values, path)
        if isinstance(value, int) and not isinstance(value, bool):
            yield flag, [str(value)]
    for path, flag in _SWITCHES.items():
        if value_at(values, path) is True:
            yield flag, []
    for what in ("optimizer", "param"):
        if value_at(values, f"zero_optimization.offload_{what}.device") in ("cpu", "nvme"):
            yield f"--{'optimizer-cpu-offload' if what == 'optimizer' else 'cpu-offloading-weights'}", []
