"""What cases are made of: shipped files cut to size, names and keys of the schema, and values good and bad."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from support.paths import GOLDEN, PACKAGE, SCENARIOS


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


NUMBERS = (
    *_words(
        "0 -1 1 2 3 4 5 0.5 1.5 -0 1e-30 1e308 1e999 1e-400 18446744073709551616 9223372036854775807 0x10 "
        "0o17 1_000 .inf -.inf .nan nan inf Infinity 1. +1 1e ٣ ½ 007 1e15 1e16 1048576 -1e9 1,5 1/3 4.0 1e0"
    ),
    "9" * 40,
    "9" * 400,
    "0." + "3" * 400,
)
QUANTITIES = _words(
    "50 ms|0 s|-1 ms|1 h|1e6 s|1000001 s|1 ps|0.1 ps|1e-20 s|25 GB/s|0 B/s|1 b/s|inf|inf GB/s|1e-300 B/s|64 MiB|1 b|"
    "1 PB|2 PB|3 parsec|10 GB|312 TFLOP/s|40 %|-5 %|400 %|0 %|2p|0p|0.3p|1e9p|p|1 µs|1 μs|5 S|200 Gb/s|"
    "  7 ms  |1ms|1 m s|1e15 B|1 MB/s|3 B|0.5 B|1 min",
    "|",
)
WORDS = (
    *_words(
        "none null ~ true false no yes on off auto fair fifo ring mesh links rails nodes pcie leaf-spine "
        "hierarchical in-switch parameter-server measured double-binary-tree halving-doubling "
        "recursive-doubling fp64 fp32 fp16 bf16 int8 top-k 1f1b gpipe eager-1f1b interleaved-1f1b looped-bfs "
        "hanayo chimera dualpipe dualpipe-v v-half v-min zb-auto zb-h1 zb-h2 zb-v h100 a100-80gb v100-32gb "
        "b200 blocking async lifo spine nvlink hosts ranks model rank stage ddp megatron compute all warn "
        "error digits two-spirals teacher-student adam sgd mlp tensor data pipeline 1F1B Ring bubble_ratio "
        "step_time_s schedule.kind parallel.pipeline a.yaml . / /dev/null /dev/full /dev/stdin"
    ),
    "",
)
STRANGE = (
    *('"\\0"', '"\\e[31m"', '"\\x9b31m"', '"\\r\\n"', '"a\\tb"', '"\\u2028"', '"\\ud800"', '"\\x7f"'),
    *("\x1b[2J", "\x00", "\ufeff", "\x85", "\x9b1m", "\u202e", "\r", "\x7f", "\udcff", "\udce2\udc28"),
    *("&a", "*a", "&a [1]", "!!python/object:os.system", "!!binary aGk=", "!!set {a}", "<<: *a", "? ", "- "),
    *("{", "}", "[", "]", "|", ">", "%YAML 9.9", "---", "...", "'", '"', "#", ":", ",", "@", "`", "\\"),
    *("[" * 40, "{a: " * 40, "[" * 5000, "- " * 300, "%s", "{0}", "%(x)s", "€", "名前", "🦄", "a" * 3000),
    *("[bold]x[/]", "$x$", "$\\frac$", "[1, 2]", "{a: 1}", "[]", "{}", "[[]]", "[null]", "{? [a]: 1}"),
)
LARGE = ("100", "1000", "10000", "65536", "100000", "1000000", "1048575", "4194304")
PASTES = (
    """\
srun: job 4711 queued and waiting for resources
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   3713 on   node0001 device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   3713 on   node0001 device  1 [0x0b] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.70    0.00    0.00      0     5.54    0.00    0.00      0
     8388608       2097152     float     sum      -1    167.5   50.09   87.66      0    165.9   50.55   88.47      0
    33554432       8388608     float     sum      -1    398.2   84.26  147.46      0    397.0   84.51  147.90    N/A
[1,0]<stdout>: 134217728 33554432  float     sum      -1     1191  112.67  197.17      0     1190  112.7  197.3      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 147.3
""",
    """\
# all_reduce_perf -b 8 -e 128M
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        262144   float     sum    96.39   10.88   20.40  2e-07    95.00   11.04   20.69  2e-07
     2097152        524288   float     sum    120.0   17.48   32.77  2e-07    119.0   17.62   33.04  2e-07
     2097152        524288   float     sum    130.0   16.13   30.25  2e-07    129.0   16.26   30.48  2e-07
""",
)
TABLES = (
    "# measured\n# ranks: 8\nbytes,time_us\n1000,5\n3000,9\n10000,30.5\n",
    "bytes,time_us\n1024,5\n1048576,90\n67108864,3000\n",
)
LAYERS = """\
name,flop,bytes,parameters,output_bytes,kept_bytes
# a small network
conv1,236027904,7626752,9408,1605632,1907328
conv2,231211008,1.6 MB,36864,802816,802816
pool,802816,1204224,0,401408,0
fc,4096000,4106000,2049000,0,4096
"""
CORPUS = """\
cluster: {gpus_per_node: 4, gpu: a100-80gb}
model: {layers: 4, hidden: 64, ffn: 256, heads: 4, vocab: 1000, sequence: 32}
parallel: {pipeline: 2}
schedule: {kind: 1f1b, microbatches: 4}
sweep: {file: rows.csv}
"""
ROWS = """\
name,parallel.tensor,schedule.kind,recompute,model.hidden,measured.step_time_s,measured.peak_memory_bytes,split
a,1,1f1b,none,64,0.001,1e9,fit
"b, c",2,gpipe,full,128,2e-3,,fit
d,1,,selective,64,0.003,2e9,kept
e,1,zb-auto,,,0.001,1000000000,kept
"""
CONDITIONS = (
    "split == 'fit'", "split != 'fit' and parallel.tensor == 1", "schedule.kind in ['1f1b', 'gpipe']",
    "model.hidden >= 64", "not split == 'fit'", "name == 'a' or name == 'd'", "measured.step_time_s < 0.002",
)  # fmt: skip
PLUGIN = """\
from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


@schedule("one-by-one", summary="one micro-batch at a time", time="mpT", memory="1", source="mine")
def one_by_one(request: PlanRequest) -> Plan:
    program = [Op(kind, i) for i in range(request.microbatches) for kind in "FB"]
    return Plan.of([program] * request.pipeline, [loop(request.pipeline, 1)], [0] * request.microbatches)
"""
SMALL = """\
cluster: {nodes: 2, gpus_per_node: 4, nvlink: {bandwidth: 100 GB/s, latency: 1 us}}
parallel: {pipeline: 4, data: 2}
schedule: {kind: 1f1b, microbatches: 4}
workload: {forward: 1 ms, backward: 2 ms, activation: 1 MiB, parameters: 1e6}
"""


@cache
def scenarios() -> tuple[dict[str, str], ...]:
    """Each shipped scenario cut to size, with the files it names; its own file is `a.yaml`."""
    found = []
    for file in sorted(SCENARIOS.rglob("*.yaml")):
        files = {"a.yaml": _cut(file.read_text(encoding="utf-8"))}
        for base in re.findall(r"^base: (\S+)", files["a.yaml"], re.MULTILINE):
            files[base] = _cut((file.parent / base).read_text(encoding="utf-8"))
        found.append(files)
    return (*found, {"a.yaml": SMALL})


def _cut(text: str) -> str:
    """Fewer steps, micro-batches and cases; no comments, which would absorb most mutations."""
    text = re.sub(r"^\s*#.*\n|\s+# .*", lambda match: "\n" if match[0].endswith("\n") else "", text, flags=re.MULTILINE)
    text = re.sub(r"steps: 150", "steps: 2", text)
    for batch, smaller in (("1920", "512"), ("256", "64"), ("2048", "32")):
        text = re.sub(f"^batch: {batch}$", f"batch: {smaller}", text, flags=re.MULTILINE)
    text = re.sub(r"microbatches: (32|64)", "microbatches: 8", text)
    text = re.sub(r"nodes: 2048", "nodes: 32", re.sub(r"data: 128", "data: 2", text))
    text = re.sub(r"nodes: (512|16384)\b", "nodes: 16", re.sub(r"data: (256|8192)\b", "data: 8", text))
    text = re.sub(r"replications: 32", "replications: 2", text)
    text = re.sub(r"(parallel\.pipeline: )\[[^\]]*\]", r"\1[2, 4]", text)
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
