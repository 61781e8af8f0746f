"""What Megatron-LM asserts before it trains, for flags that are written or read here: one table, checked on any line.

Sources of the rows, in github.com/NVIDIA/Megatron-LM: `arguments`: megatron/training/arguments.py (validate_args);
`config`: megatron/core/transformer/transformer_config.py (__post_init__); `optimizer`:
megatron/core/optimizer/optimizer_config.py; `layer`: megatron/core/transformer/moe (moe_layer.py, token_dispatcher.py);
`parallel`: megatron/core/model_parallel_config.py; `schedules`: megatron/core/pipeline_parallel/schedules.py
(forward_backward_pipelining_with_interleaving).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hybrid_des.interchange.frameworks.launch_line import is_off
from hybrid_des.workload.models.stages import stages_in


class Line:
    """The flags of a launch line, with Megatron-LM's defaults."""

    def __init__(self, flags: Mapping[str, Sequence[str]], ranks: int | None = None) -> None:
        self._flags = {flag: words for flag, words in flags.items() if not is_off(words)}
        self.ranks = ranks

    def __contains__(self, flag: str) -> bool:
        return flag in self._flags

    def word(self, flag: str, default: str = "") -> str:
        """The word that follows a flag."""
        return next(iter(self._flags.get(flag, ())), default)

    def words(self, flag: str) -> Sequence[str]:
        """All words that follow a flag."""
        return self._flags.get(flag, ())

    def size(self, flag: str, default: int = 0) -> int:
        """The number from 1 that follows a flag; the default without the flag, or if it is none."""
        word = self.word(flag)
        return (int(word) if re.fullmatch(r"[0-9]{1,15}", word) else 0) or default

    @property
    def tensor(self) -> int:
        """Tensor ranks."""
        return self.size("--tensor-model-parallel-size", 1)

    @property
    def pipeline(self) -> int:
        """Pipeline ranks."""
        return self.size("--pipeline-model-parallel-size", 1)

    @property
    def context(self) -> int:
        """Context ranks."""
        return self.size("--context-parallel-size", 1)

    @property
    def expert(self) -> int:
        """Expert ranks."""
        return self.size("--expert-model-parallel-size", 1)

    @property
    def virtual(self) -> int:
        """Virtual stages per pipeline rank; 1 where they are not interleaved."""
        if layout := self.word("--pipeline-model-parallel-layout"):
            return len(stages_in(layout)) // self.pipeline
        each = self.size("--num-layers-per-virtual-pipeline-stage")
        if each:
            return max(1, self.size("--num-layers") // (self.pipeline * each))
        return self.size("--num-virtual-stages-per-pipeline-rank", 1)

    @property
    def microbatches(self) -> int | None:
        """Micro-batches of a step; None if the line does not say."""
        replica, batch = self.tensor * self.pipeline * self.context, self.size("--global-batch-size")
        if not self.ranks or self.ranks % replica or not batch:
            return None
        return batch // (self.ranks // replica * self.size("--micro-batch-size", 1))


class Refused(NamedTuple):
    """A row: Megatron-LM refuses a line with `flag` where `holds`; `why` says what it expects."""

    flag: str
    why: str
    source: str
    holds: Callable[[Line], bool]


def _recomputes(line: Line, *modules: str) -> bool:
    selective = line.word("--recompute-granularity") == "selective"
    return selective and bool({*modules} & {*line.words("--recompute-modules")})


def _delayed_scaling(line: Line) -> bool:
    return "--fp8-format" in line and line.word("--fp8-recipe", "delayed") == "delayed"


def _split(line: Line) -> bool:
    """Whether the layers are divided over stages by number, and not evenly."""
    stated = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    if line.pipeline == 1 or any(flag in line for flag in (*stated, "--pipeline-model-parallel-layout")):
        return False
    ends = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
    layers = line.size("--num-layers") + sum(flag in line for flag in ends)
    return bool(layers % (line.pipeline * line.virtual))


def _heads(line: Line) -> int:
    return line.size("--num-attention-heads", line.tensor)


def _groups(line: Line) -> int:
    return line.size("--num-query-groups", 1) if "--group-query-attention" in line else _heads(line)


FSDP2, FSDP, ZERO = "--use-torch-fsdp2", "--use-megatron-fsdp", "--use-distributed-optimizer"
EACH = "--num-layers-per-virtual-pipeline-stage"
STREAMS, DELAYED = "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"
FULL = "--cuda-graph-scope"
DYNAMIC, SCHEDULER, DYNAMIC_CP = "--dynamic-context-parallel", "--sequence-packing-scheduler", "default_dynamic_cp"

TABLE: tuple[Refused, ...] = (
    Refused("--num-attention-heads", "expected a multiple of --tensor-model-parallel-size", "config",
            lambda line: _heads(line) % line.tensor != 0),
    Refused("--num-query-groups", "expected a multiple or divisor of --tensor-model-parallel-size", "config",
            lambda line: bool(_groups(line) % line.tensor and line.tensor % _groups(line))),
    Refused("--hidden-size", "expected a multiple of --num-attention-heads, or --kv-channels", "arguments",
            lambda line: "--kv-channels" not in line and line.size("--hidden-size") % max(1, _heads(line)) != 0),
    Refused("--max-position-embeddings", "expected at least --seq-length", "arguments",
            lambda line: 0 < line.size("--max-position-embeddings") < line.size("--seq-length")),
    Refused("--seq-length", "expected a multiple of 2 × --context-parallel-size", "arguments",
            lambda line: line.context > 1 and line.size("--seq-length") % (2 * line.context) != 0),
    Refused("--num-layers", "expected a multiple of pipeline ranks × virtual stages", "arguments", _split),
    Refused(EACH, "expected a divisor of --num-layers per pipeline rank", "arguments",
            lambda line: EACH in line and line.size("--num-layers") % (line.pipeline * line.size(EACH, 1)) != 0),
    Refused("--no-overlap-p2p-communication", "expected more than 2 pipeline ranks with virtual stages", "arguments",
            lambda line: "--no-overlap-p2p-communication" in line and line.virtual > 1 and line.pipeline == 2),
    Refused("--global-batch-size", "expected micro-batches in a multiple of pipeline ranks with virtual stages",
            "schedules", lambda line: line.virtual > 1 and bool((line.microbatches or 0) % line.pipeline)),
    Refused("--tp-comm-overlap", "expected --sequence-parallel", "arguments",
            lambda line: "--tp-comm-overlap" in line and "--sequence-parallel" not in line),
    Refused("--overlap-param-gather", f"expected {ZERO} (or {FSDP}) and --overlap-grad-reduce", "arguments",
            lambda line: "--overlap-param-gather" in line
            and not ((ZERO in line or FSDP in line) and "--overlap-grad-reduce" in line)),
    Refused("--optimizer-cpu-offload", "expected --use-precision-aware-optimizer", "arguments",
            lambda line: "--optimizer-cpu-offload" in line and "--use-precision-aware-optimizer" not in line),
    Refused("--use-precision-aware-optimizer", f"expected {ZERO}", "optimizer",
            lambda line: "--use-precision-aware-optimizer" in line and ZERO not in line),
    Refused(FSDP2, "expected --untie-embeddings-and-output-weights", "arguments",
            lambda line: FSDP2 in line and "--untie-embeddings-and-output-weights" not in line),
    Refused(FSDP2, "expected one pipeline rank", "arguments", lambda line: FSDP2 in line and line.pipeline > 1),
    Refused(FSDP2, "expected one expert rank", "arguments", lambda line: FSDP2 in line and line.expert > 1),
    Refused(FSDP2, "expected no --fp16", "arguments", lambda line: FSDP2 in line and "--fp16" in line),
    Refused(FSDP2, f"expected no {ZERO}", "arguments", lambda line: FSDP2 in line and ZERO in line),
    Refused(FSDP2, "expected --no-gradient-accumulation-fusion", "arguments",
            lambda line: FSDP2 in line and "--no-gradient-accumulation-fusion" not in line),
    Refused(FSDP2, "expected --ckpt-format torch_dist or torch_dcp", "arguments",
            lambda line: FSDP2 in line and line.word("--ckpt-format", "torch_dist") not in ("torch_dist", "torch_dcp")),
    Refused(FSDP, "expected --ckpt-format fsdp_dtensor", "arguments",
            lambda line: FSDP in line and line.word("--ckpt-format") != "fsdp_dtensor"),
    Refused("--fp16", "expected no --bf16 beside it", "arguments", lambda line: "--fp16" in line and "--bf16" in line),
    Refused("--fp4-format", "expected no --fp8-format beside it", "arguments",
            lambda line: "--fp4-format" in line and "--fp8-format" in line),
    Refused("--attention-backend", "local: expected --spec local", "arguments",
            lambda line: line.word("--attention-backend") == "local" and line.word("--spec") != "local"),
    Refused("--recompute-method", "expected none with selective recomputation", "arguments",
            lambda line: line.word("--recompute-granularity") == "selective" and "--recompute-method" in line),
    Refused("--recompute-granularity", "full: expected --recompute-method and --recompute-num-layers", "config",
            lambda line: line.word("--recompute-granularity") == "full" and STREAMS not in line
            and not ("--recompute-method" in line and "--recompute-num-layers" in line)),
    Refused("--recompute-modules", "moe_act: expected --moe-grouped-gemm", "config",
            lambda line: _recomputes(line, "moe_act") and "--moe-grouped-gemm" not in line),
    Refused("--recompute-modules", "mla_up_proj: expected --multi-latent-attention", "config",
            lambda line: _recomputes(line, "mla_up_proj") and "--multi-latent-attention" not in line),
    Refused("--recompute-modules", "layernorm, moe_act: expected an --fp8-recipe other than delayed", "config",
            lambda line: _recomputes(line, "layernorm", "moe_act") and _delayed_scaling(line)),
    Refused("--cuda-graph-impl", "expected no --recompute-granularity full", "arguments",
            lambda line: line.word("--cuda-graph-impl", "none") != "none"
            and line.word("--recompute-granularity") == "full"),
    Refused(FULL, "full_iteration: expected --no-check-for-nan-in-loss-and-grad", "arguments",
            lambda line: line.word(FULL) == "full_iteration" and "--fp16" not in line
            and "--no-check-for-nan-in-loss-and-grad" not in line),
    Refused("--mtp-num-layers", "expected --position-embedding-type rope or none", "arguments",
            lambda line: line.size("--mtp-num-layers") > 0
            and line.word("--position-embedding-type", "learned_absolute") not in ("rope", "none")),
    Refused("--expert-model-parallel-size", "expected --num-experts in a multiple of it", "arguments",
            lambda line: line.expert > 1
            and ("--num-experts" not in line or line.size("--num-experts") % line.expert != 0)),
    Refused("--expert-model-parallel-size", "expected no --fp16", "arguments",
            lambda line: line.expert > 1 and "--fp16" in line),
    Refused("--moe-grouped-gemm", "expected --bf16", "arguments",
            lambda line: "--moe-grouped-gemm" in line and "--bf16" not in line),
    Refused("--num-experts", "expected --disable-bias-linear, or --expert-tensor-parallel-size 1", "config",
            lambda line: "--num-experts" in line and "--disable-bias-linear" not in line
            and line.size("--expert-tensor-parallel-size", line.tensor) > 1),
    Refused("--num-experts", "expected --sequence-parallel with tensor ranks", "layer",
            lambda line: "--num-experts" in line and line.tensor > 1 and "--sequence-parallel" not in line),
    Refused("--moe-router-topk", "1: expected --moe-router-pre-softmax", "config",
            lambda line: "--num-experts" in line and line.size("--moe-router-topk", 2) == 1
            and line.word("--moe-router-score-function", "softmax") == "softmax"
            and "--moe-router-pre-softmax" not in line),
    Refused("--moe-router-enable-expert-bias", "expected --moe-router-score-function sigmoid", "config",
            lambda line: "--moe-router-enable-expert-bias" in line
            and line.word("--moe-router-score-function", "softmax") == "softmax"),
    Refused("--moe-router-num-groups", "expected a divisor of --num-experts", "config",
            lambda line: "--moe-router-group-topk" in line
            and line.size("--num-experts") % line.size("--moe-router-num-groups", 1) != 0),
    Refused("--moe-token-dispatcher-type", "flex: expected more than one tensor or expert rank", "layer",
            lambda line: line.word("--moe-token-dispatcher-type") == "flex"
            and line.size("--expert-tensor-parallel-size", line.tensor) * line.expert == 1),
    Refused(STREAMS, "expected virtual stages with a pipeline, --num-virtual-stages-per-pipeline-rank", "config",
            lambda line: STREAMS in line and line.pipeline > 1 and line.virtual == 1),
    Refused(STREAMS, "expected expert ranks, --expert-model-parallel-size", "config",
            lambda line: STREAMS in line and line.expert == 1),
    Refused(STREAMS, "expected --moe-token-dispatcher-type alltoall or flex", "config",
            lambda line: STREAMS in line
            and line.word("--moe-token-dispatcher-type", "allgather") not in ("alltoall", "flex")),
    Refused(STREAMS, "expected no --recompute-method and --recompute-num-layers", "config",
            lambda line: STREAMS in line and ("--recompute-method" in line or "--recompute-num-layers" in line)),
    Refused(STREAMS, "expected at most 1 of --mtp-num-layers", "config",
            lambda line: STREAMS in line and line.size("--mtp-num-layers") > 1),
    Refused(STREAMS, "expected --bf16 or --fp16", "config",
            lambda line: STREAMS in line and "--bf16" not in line and "--fp16" not in line),
    Refused(DELAYED, f"expected {STREAMS}", "config", lambda line: DELAYED in line and STREAMS not in line),
    Refused(DYNAMIC, "expected --sequence-packing-scheduler default_dynamic_cp", "parallel",
            lambda line: DYNAMIC in line and line.word(SCHEDULER, DYNAMIC_CP) != DYNAMIC_CP),
    Refused(DYNAMIC, "expected --max-seqlen-per-dp-cp-rank", "arguments",
            lambda line: DYNAMIC in line and "--max-seqlen-per-dp-cp-rank" not in line),
    Refused(DYNAMIC, "expected --calculate-per-token-loss", "arguments",
            lambda line: DYNAMIC in line and "--calculate-per-token-loss" not in line),
    Refused(DYNAMIC, "expected no --cuda-graph-impl", "arguments",
            lambda line: DYNAMIC in line and line.word("--cuda-graph-impl", "none") != "none"),
    Refused(DYNAMIC, "expected no --num-experts", "config", lambda line: DYNAMIC in line and "--num-experts" in line),
)  # fmt: skip


def refusals(line: Line) -> Iterator[str]:
    """One line per assertion that a launch line violates, which starts with the flag."""
    for row in TABLE:
        if row.holds(line):
            yield f"{row.flag}: {row.why}"
