"""What cases are made of: `materials.yaml`, shipped files cut to size, and the keys of the schema."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from support.paths import GOLDEN, PACKAGE, SCENARIOS

GIVEN: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SMALL: str = GIVEN["small"]
NUMBERS = [*GIVEN["numbers"], "9" * 40, "9" * 400, "0." + "3" * 400]
LONG = ("[" * 40, "{a: " * 40, "[" * 5000, "- " * 300, "a" * 3000)
STRANGE = [*GIVEN["strange"], *LONG]
LARGE = ("100", "1000", "10000", "65536", "100000", "1000000", "1048575", "4194304")
DURATIONS = "\n".join(
    [
        "replica,stage,step,kind,microbatch,seconds,start_s",
        *(
            f"{replica},{stage},{step},{kind},{m},{(1 if kind == 'F' else 2) + m / 8},{20 * step + 4 * m + stage}"
            for step in (3, 4)
            for replica in range(2)
            for stage in range(2)
            for m in range(3)
            for kind in "FB"
        ),
        "",
    ]
)


def _dump(stage: int) -> str:
    """The event dump of one of two pipeline ranks: three micro-batches in two steps."""
    steps = {}
    for step in (1, 2):
        spans = {"fwd": [(10 * m + 5 * stage, 5) for m in range(3)], "bwd": [(40 + 10 * m, 8) for m in range(3)]}
        lists = {f"{name}_start": [start for start, _ in each] for name, each in spans.items()}
        lists |= {f"{name}_end": [start + took for start, took in each] for name, each in spans.items()}
        steps[step] = {"total": 80, "memory": 20.5 - stage, **lists}
    return json.dumps(steps)


def _kineto(rank: int) -> str:
    """The profiler's trace of one of two ranks: a product, then an all-reduce of 4 kB."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "tid": 1, "ts": 0, "dur": 100, "args": {}}
    ]
    kernels = (("gemm", 10, 30 + 20 * rank, 7), ("ncclDevKernel_AllReduce_Sum", 40 + 20 * rank, 30 - 20 * rank, 20))
    for number, (name, start, took, stream) in enumerate(kernels):
        about = {"correlation": number, "stream": stream, "In msg nelems": 1000, "dtype": "Float", "Group size": 2}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": number + 1, "dur": 1}
        events.append({"ph": "X", **call, "args": {"correlation": number}})
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "tid": stream, "ts": start, "dur": took, "args": about}
        )
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}}
    return json.dumps({**head, "traceEvents": events})


def _chakra(rank: int) -> str:
    """The Chakra trace of one of two ranks: a message from the first to the second, then an all-reduce."""
    other = {"comm_dst": 1} if rank == 0 else {"comm_src": 0}
    nodes = [
        {"Id": 1, "Name": "compute", "NodeType": 4, "data_deps": [], "runtime": 7, "is_cpu_op": False},
        {"Id": 2, "Name": "message", "NodeType": 5 + rank, "data_deps": [1], "comm_size": 64, "comm_tag": 3, **other},
        {"Id": 3, "Name": "sum", "NodeType": 7, "data_deps": [1], "comm_type": 0, "comm_size": 4096},
        {"Id": 4, "Name": "more", "NodeType": 4, "data_deps": [2, 3], "runtime": 2, "is_cpu_op": False},
    ]
    return json.dumps({"workload_graph": nodes})


PROFILES: tuple[dict[str, str], ...] = (
    {**{f"pp_rank_{stage}.json": _dump(stage) for stage in range(2)}, "config.json": '{"pp_size": 2, "vp_size": 1}'},
    {f"rank{rank}.json": _kineto(rank) for rank in range(2)},
    {f"chakra.{rank}.et": _chakra(rank) for rank in range(2)},
    {"d.csv": DURATIONS},
)
CUTS = (  # comments, which would absorb most mutations, and sizes, so that a case takes milliseconds
    (r"^\s*#.*\n", ""),
    (r"\s+# .*", ""),
    (r"steps: 150", "steps: 2"),
    (r"^batch: 1920$", "batch: 512"),
    (r"^batch: 256$", "batch: 64"),
    (r"^batch: 2048$", "batch: 32"),
    (r"microbatches: (32|64)", "microbatches: 8"),
    (r"nodes: 2048", "nodes: 32"),
    (r"data: 128", "data: 2"),
    (r"nodes: (512|16384)\b", "nodes: 16"),
    (r"data: (256|8192)\b", "data: 8"),
    (r"replications: 32", "replications: 2"),
    (r"^  (updates|take): \d+", r"  \1: 1"),
    (r"(parallel\.pipeline: )\[[^\]]*\]", r"\1[2, 4]"),
)


@cache
def scenarios() -> tuple[dict[str, str], ...]:
    """Each shipped scenario cut to size, with the files it names; its own file is `a.yaml`."""
    found = []
    for file in sorted(SCENARIOS.rglob("*.yaml")):
        files = {"a.yaml": _cut(file.read_text(encoding="utf-8"))}
        for base in re.findall(r"^base: (\S+)", files["a.yaml"], re.MULTILINE):
            files[base] = _cut((file.parent / base).read_text(encoding="utf-8"))
        found.append(files)
    return ({"a.yaml": SMALL}, *found)


def _cut(text: str) -> str:
    """Fewer steps, micro-batches and cases, and no comments."""
    for long, short in CUTS:
        text = re.sub(long, short, text, flags=re.MULTILINE)
    if "sweep:" in text:
        text = re.sub(r"(: \[)([^,\]]+, [^,\]]+)(?:, [^,\]]+)+\]", r"\1\2]", text)
    return re.sub(r"\n{2,}", "\n", text)


@cache
def orders() -> dict[str, str]:
    """The reference orders by name."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted((GOLDEN / "orders").glob("*.csv"))}


@cache
def key_paths() -> tuple[str, ...]:
    """Every path of the schema, such as `cluster.nvlink.bandwidth`."""
    schema = json.loads((PACKAGE / "scenario" / "scenario.schema.json").read_text(encoding="utf-8"))
    found: list[str] = []

    def walk(node: Any, path: str, depth: int) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item, path, depth)
        if not isinstance(node, dict) or depth > 12:
            return
        if "$ref" in node:
            walk(schema["$defs"][node["$ref"].rpartition("/")[2]], path, depth + 1)
        for key, item in node.get("properties", {}).items():
            found.append(f"{path}{key}")
            walk(item, f"{path}{key}.", depth + 1)
        for key in ("anyOf", "oneOf", "allOf"):
            walk(node.get(key, []), path, depth + 1)

    walk(schema, "", 0)
    return tuple(dict.fromkeys(found))
