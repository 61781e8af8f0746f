"""Rows of torchtitan.yaml from the benchmarks that PyTorch published with torchtitan.

    python scenarios/validation/torchtitan.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/torchtitan.yaml --rows rows.csv

RAW has a row per run: model ("llama3.1-8b H200" where the GPU is another), gpus, layout (fsdp8 cp2 tp8 pp8 1f1b or
interleaved, asynctp), numerics (bf16 or fp8; eager or compile; the month, if not 2024-12), seq, local_batch, gbs,
recompute (selective, per-op sac, full), tokens_s_gpu, memory_gib (reserved by the allocator, on the fullest GPU).

Not stated, by the defaults of those releases: as many micro-batches as pipeline ranks, two stages per rank where the
schedule has several (generate_split_points in parallelisms/pipelining_utils.py), the first and the last with a
layer less (parallelisms/pipelining_utils.py, pipeline_llama.py); weights inside a pipeline stay gathered
(parallelize_llama.py); context ranks gather keys and values (torch/distributed/tensor/experimental/_attention.py,
ALL_GATHER); losses were compiled from 2025 on.
"""

from conversion import Raw, Row, main

GPUS = {"H200": "h200"}
DEFAULT = "h100-hbm2e"
FLASH_2 = 0.35  # of H100's peak, where it holds 700 W: Shah et al., arXiv 2407.08608, abstract
FIRST_RELEASE = "2024-12"
PRECISIONS = {"bf16": "bf16", "fp8": "fp8-current"}  # torchao's tensorwise scales are dynamic
GIB = 2**30
# share of their traffic that tensor ranks hide asynchronously: a step of Llama 3 70B is about 8 % faster
# (discuss.pytorch.org/t/209487), in which they wait 17 % of the time
ASYNC = 0.42
SCHEDULES = {  # word of a layout → kind and chunks
    "1f1b": ("1f1b", 1), "gpipe": ("gpipe", 1), "interleaved": ("interleaved-1f1b", 2), "loopedbfs": ("looped-bfs", 2),
    "zbv": ("zb-v", 2),
}  # fmt: skip
AXES = ("fsdp", "cp", "tp", "pp")
ASYNC_WORD = "asynctp"
COLUMNS = (
    "name", "split", "release", "cluster.gpu", "cluster.nodes", "model.base", "model.sequence", "precision", "batch",
    "schedule.microbatch_size", "parallel.tensor", "parallel.sequence", "parallel.context", "parallel.pipeline",
    "parallel.data", "parallel.stages", "schedule.kind", "schedule.chunks", "efficiency.attention", "recompute",
    "operators.blocks", "operators.loss", "overlap.tensor", "measured.step_time_s", "measured.peak_memory_bytes",
)  # fmt: skip


def converted(raw: Raw) -> Row:
    """One row as keys of a scenario."""
    model, _, gpu = raw["model"].partition(" ")
    words = raw["numerics"].split()
    release = words[2] if len(words) > 2 else "2025-06" if gpu else FIRST_RELEASE
    axes, (kind, chunks) = _layout(raw["layout"])
    gpus, batch, sequence = (int(raw[key]) for key in ("gpus", "gbs", "seq"))
    compiled = words[1] == "compile"
    return {
        "name": " ".join([raw["model"], raw["gpus"], raw["layout"], *words[:2], raw["seq"]]),
        "split": "1d" if axes["fsdp"] == gpus else "nd",
        "release": release,
        "cluster.gpu": GPUS.get(gpu, DEFAULT),
        "cluster.nodes": gpus // 8,
        "model.base": model,
        "model.sequence": sequence,
        "precision": PRECISIONS[words[0]],
        "batch": batch,
        "schedule.microbatch_size": int(raw["local_batch"]) // axes["pp"],
        "parallel.tensor": axes["tp"],
        "parallel.sequence": str(axes["tp"] > 1).lower(),
        "parallel.context": axes["cp"],
        "parallel.pipeline": axes["pp"],
        "parallel.data": axes["fsdp"],
        "parallel.stages": "ends-1" if axes["pp"] > 1 else "",
        "schedule.kind": kind,
        "schedule.chunks": chunks,
        "efficiency.attention": FLASH_2 if gpu else "",
        "recompute": "full" if raw["recompute"] == "full" else "[ops]",
        "operators.blocks": "fused" if compiled else "eager",
        "operators.loss": "compiled" if compiled and release > FIRST_RELEASE else "eager",
        "overlap.tensor": ASYNC if ASYNC_WORD in raw["layout"].split() else 0,
        "measured.step_time_s": batch * sequence / (gpus * float(raw["tokens_s_gpu"])),
        "measured.peak_memory_bytes": round(float(raw["memory_gib"]) * GIB) if raw["memory_gib"] else "",
    }


def _layout(layout: str) -> tuple[dict[str, int], tuple[str, int]]:
    """The ranks along each axis, 1 along those that are not named, and the schedule with its chunks.

    Raises:
        ValueError: a word of it is not known.
    """
    sizes, schedule = dict.fromkeys(AXES, 1), SCHEDULES["1f1b"]
    for word in layout.split():
        axis = word.rstrip("0123456789")
        if axis in sizes and axis != word:
            sizes[axis] = int(word[len(axis) :])
        elif word in SCHEDULES:
            schedule = SCHEDULES[word]
        elif word != ASYNC_WORD:
            known = ", ".join([*(f"{one}N" for one in AXES), *SCHEDULES, ASYNC_WORD])
            raise ValueError(f"layout: unknown {word!r}; expected {known}")
    return sizes, schedule


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
