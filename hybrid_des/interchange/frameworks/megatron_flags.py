"""Flags of Megatron-LM that are read nowhere: those without effect on a step, and those that change layers.

Names: megatron/training/arguments.py (core 0.13 to 0.15), torchrun and sbatch. A flag that stands in neither list is
named as not understood: what is without effect is listed here, never guessed from a name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line

_IDLE = frozenset(
    """
    bf16 distributed-backend use-mcore-models use-flash-attn enable-experimental rank local-rank use-cpu-initialization seed
    apply-query-key-layer-scaling attention-softmax-in-fp32 mock-data split num-workers dataloader-type no-mmap-bin-files
    data-path train-data-path valid-data-path test-data-path extra-valid-data-path data-args-path data-impl
    per-split-data-args-path data-cache-path data-parallel-random-init no-create-attention-mask-in-dataloader
    num-dataset-builder-threads no-shared-fs vocab-file merge-file vocab-extra-ids special-tokens-file legacy-tokenizer
    trust-remote-code tiktoken-pattern tiktoken-num-special-tokens tiktoken-special-tokens eod-mask-loss
    save save-interval persistent-save-interval save-retain-interval no-save-optim no-save-rng load no-load-optim
    no-load-rng finetune pretrained-checkpoint exit-on-missing-checkpoint use-dist-ckpt use-persistent-ckpt-worker
    auto-detect-ckpt-format no-strict-fsdp-dtensor-load async-save no-initialization init-model-with-meta-device
    no-use-tokenizer-model-from-checkpoint-args override-opt-param-scheduler use-checkpoint-opt-param-scheduler
    override-lr-scheduler use-checkpoint-lr-scheduler
    logging-level no-log-loss-scale-to-tensorboard no-barrier-with-level-1-timing no-one-logger timing-log-level
    timing-log-option app-tag-run-name app-tag-run-version config-logger-dir disable-straggler-on-startup
    eval-iters eval-interval extra-eval-interval train-iters train-samples train-tokens exit-interval
    exit-duration-in-mins exit-signal-handler iterations-to-skip adlr-autoresume adlr-autoresume-interval
    lr min-lr decoupled-lr decoupled-min-lr warmup weight-decay start-weight-decay end-weight-decay
    weight-decay-incr-style clip-grad norm-epsilon layernorm-epsilon init-method-std embedding-init-method-std
    init-method-xavier-uniform loss-scale initial-loss-scale min-loss-scale loss-scale-window hysteresis
    rotary-base rotary-percent rotary-interleaved rotary-seq-len-interpolation-factor use-rope-scaling
    rope-scaling-factor rotary-scaling-factor mscale mscale-all-dim original-max-position-embeddings beta-fast beta-slow
    no-position-embedding openai-gelu manual-gc manual-gc-interval no-manual-gc-eval check-for-nan-in-loss-and-grad
    check-for-spiky-loss check-for-large-grads result-rejected-tracker-filename distributed-timeout-minutes
    te-rng-tracker mtp-loss-scaling-factor deepspeed-config-file
    moe-router-load-balancing-type moe-aux-loss-coeff moe-z-loss-coeff moe-per-layer-logging moe-router-pre-softmax
    moe-router-topk-scaling-factor moe-router-bias-update-rate moe-router-force-load-balancing moe-router-dtype
    profile use-pytorch-profiler record-memory-history memory-snapshot-path disable-msc
    max-restarts monitor-interval redirects tee log-dir node-rank master-addr master-port standalone no-python module
    start-method role run-path hostfile force-multi include exclude launcher no-ssh-check
    job-name partition account time output error exclusive mem cpus-per-task cpus-per-gpu mem-per-gpu qos reservation
    constraint comment dependency signal requeue no-requeue hint threads-per-core nodelist wait begin
    open-mode chdir mail-type mail-user export mpi overlap kill-on-bad-exit label unbuffered jobid array parsable
    gpu-bind cpu-bind distribution network ipc rm shm-size ulimit volume workdir privileged name env environment membind cpunodebind physcpubind localalloc
    """.split()
)
_FAMILIES = re.compile(
    r"(adam|lr|eval|save|log|tensorboard|wandb|tokenizer|dist-ckpt|ckpt|non-persistent|one-logger|profile|rdzv|container|"
    r"no-container|inprocess|straggler|rerun|error-injection|sbatch|ft)-[\w-]+"
)
_LAYERS = re.compile(  # what pretrain_gpt.py builds from these are none of those here
    r"(hybrid|mamba|linear|csa|dsa|mhc|retro|heterogeneous|swin|dino|vision)-[\w.-]+|is-hybrid-model|"
    r"experimental-attention-variant|encoder-num-layers|moe-latent-size|attention-output-gate|"
    r"mtp-use-repeated-layer|peft-type|lora-target-modules|use-dualpipev"
)


def is_idle(flag: str, words: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Whether a flag, with its words, changes nothing about a step of what was read.

    Args:
        flag: with its dashes.
        words: those that follow it.
        values: the scenario's values, by path.
    """
    name, word = flag[2:], next(iter(words), "")
    if name in ("hidden-dropout", "attention-dropout"):  # a model with GELU has it, one with SwiGLU has none
        dropped = not re.fullmatch(r"0+(\.0*)?|\.0+", word)
        return dropped == (values.get("model.mlp") == "gelu")
    if name in ("optimizer", "transformer-impl", "rope-type"):
        return word in ("adam", "transformer_engine", "rope")
    if name == "make-vocab-size-divisible-by":
        vocab, tensor = values.get("model.vocab"), values.get("parallel.tensor") or 1
        return word.isdigit() and isinstance(vocab, int) and vocab % (int(word) * tensor or 1) == 0
    return name in _IDLE or _FAMILIES.fullmatch(name) is not None


def other_layers(flags: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The flags that make other layers than those known here, each with its value."""
    for flag, words in flags.items():
        if _LAYERS.fullmatch(flag[2:]):
            yield one_line(" ".join([flag, *words[:1]]), LONGEST_SHOWN)
        elif flag == "--spec" and words and not any("gpt" in word for word in words):
            yield one_line(" ".join([flag, *words[:2]]), LONGEST_SHOWN)
