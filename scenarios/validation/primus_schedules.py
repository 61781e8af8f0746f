"""Rows of primus_schedules.yaml from the comparison of schedules that AMD published with Primus-Pipeline.

    python scenarios/validation/primus_schedules.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/primus_schedules.yaml --rows rows.csv

RAW has a row per schedule: model, pp, vpp, schedule, tokens_s_device, tflops, max_memory_gb. Layers, sequence and
micro-batches are not stated. 235.7 TFLOP/s at 10,057 tokens/s are 23.44 GFLOP per token: those of 16 layers of Llama 2
7B with sequences of 4,096, by Megatron-LM's formula, and of no other whole number. The gain of two chunks over one,
9.1 %, is that of 32 micro-batches, (32 + 7)/(32 + 3.5). Rows of Qwen3 state less, and are left out.
"""

from conversion import Raw, Row, main

KINDS = {
    "1f1b": "1f1b", "interleaved-1f1b": "interleaved-1f1b", "zbb": "zb-h1", "zbv": "zb-v", "v-half": "v-half",
    "v-min": "v-min",
}  # fmt: skip
SEQUENCE, MICROBATCHES = 4096, 32
COLUMNS = (
    "name", "parallel.pipeline", "schedule.kind", "schedule.chunks", "measured.step_time_s",
    "measured.peak_memory_bytes",
)  # fmt: skip


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; none but those of Llama 2 7B."""
    if raw["model"] != "llama2-7b":
        return None
    ranks = int(raw["pp"])
    tokens = MICROBATCHES * SEQUENCE
    kind = KINDS[raw["schedule"]]
    return {
        "name": raw["schedule"],
        "parallel.pipeline": ranks,
        "schedule.kind": kind,
        "schedule.chunks": raw["vpp"] if kind == "interleaved-1f1b" else "",
        "measured.step_time_s": tokens / ranks / float(raw["tokens_s_device"]),
        "measured.peak_memory_bytes": round(float(raw["max_memory_gb"]) * 10**9),
    }


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
