"""Launch lines of Megatron-LM's pretrain_gpt.py: one table of rules, written and read.

Flags: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py and distributed (core 0.15;
github.com/NVIDIA/Megatron-LM). It runs 1F1B, plain and interleaved; ZeRO-1 is its distributed optimizer; ZeRO-2 is
Megatron-FSDP with `optim_grads`, ZeRO-3 torch's FSDP2, both without a pipeline. FSDP2 asserts separate embeddings and
no fusion of gradient accumulation; it needs CUDA_DEVICE_MAX_CONNECTIONS above 1, where tensor or context ranks
otherwise need 1. The number of replicas is that of GPUs (--nnodes, --nproc-per-node) over tensor, pipeline and context
ranks.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hybrid_des.collectives import codecs
from hybrid_des.errors import LONGEST_SHOWN, UsageError, few, one_line
from hybrid_des.interchange.frameworks.foreign import foreign
from hybrid_des.interchange.frameworks.launch_line import (
    BARE,
    Given,
    Launch,
    Read,
    Rule,
    Values,
    flags_in,
    launch_in,
    torchrun,
)
from hybrid_des.interchange.frameworks.megatron_deepspeed import FLAG as DEEPSPEED_CONFIG
from hybrid_des.interchange.frameworks.megatron_deepspeed import with_config
from hybrid_des.interchange.frameworks.megatron_documents import document_values, unsaid_of_documents
from hybrid_des.interchange.frameworks.megatron_environment import machine_of, of_environment
from hybrid_des.interchange.frameworks.megatron_flags import SWITCHES, is_idle, other_layers, split, without_equal
from hybrid_des.interchange.frameworks.megatron_kinds import PATTERNS, is_hybrid, unsaid_of_kinds
from hybrid_des.interchange.frameworks.megatron_layout import DATA_FIRST, DATA_LAST, LAYOUT, order_of, uncounted
from hybrid_des.interchange.frameworks.megatron_machine import machine, set_aside_if_no_multiple
from hybrid_des.interchange.frameworks.megatron_model import MODEL
from hybrid_des.interchange.frameworks.megatron_optimizer import (
    OFFLOADED,
    OPTIMIZER,
    PRECISION_AWARE,
    assumed_layout,
    unsaid_of_optimizer,
)
from hybrid_des.interchange.frameworks.megatron_precision import other_recipe, read_precision, write_precision
from hybrid_des.interchange.frameworks.megatron_refusals import Line, refusals
from hybrid_des.interchange.frameworks.megatron_sharding import SHARDING, groups_of, sharding_of, unsaid_of_sharding
from hybrid_des.interchange.frameworks.megatron_unknown import mark_unknown, not_following, with_stated
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, Imported, by_path, published_model, values_of
from hybrid_des.interchange.frameworks.variants import unsaid_of_variants
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.sections.cluster import WIDE
from hybrid_des.units import collected
from hybrid_des.workload.models.layer import MODULES, OPS

TENSOR_OVERLAP = 0.7  # share that --tp-comm-overlap is taken to hide, as in the shipped scenarios of published runs
_LAUNCHERS = (
    "torchrun", "python", "python3", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "exec", "env", "bash",
    "numactl",
)  # fmt: skip
_RUN = ("--mock-data", "--tokenizer-type NullTokenizer", "--train-iters 20", "--lr 1e-4")  # what any line needs
_KERNELS = "--attention-backend"


def _write_recompute(values: Values) -> Iterable[str]:
    some = values["recompute_layers"]
    how = "uniform --recompute-num-layers 1" if some is None else f"block --recompute-num-layers {some}"
    full = f"--recompute-granularity full --recompute-method {how}"
    if isinstance(values["recompute"], tuple) and OPS not in values["recompute"]:
        return (f"--recompute-granularity selective --recompute-modules {' '.join(values['recompute'])}",)
    selective = ("--recompute-granularity selective",)
    return {"full": (full,), "selective": selective}.get(str(values["recompute"]), ())


_CHECKPOINTS = ("--checkpoint-activations", "--deepspeed-activation-checkpointing")  # of older releases: all of a layer


def _read_recompute(given: Given) -> Values:
    granularity = given.text("--recompute-granularity")
    if "--recompute-activations" in given and granularity is None:
        granularity = "selective"
    if [flag for flag in (*_CHECKPOINTS, "--activations-checkpoint-method") if flag in given]:
        granularity = "full"
        given.words("--checkpoint-num-layers")
    if granularity == "full":
        return {"recompute": "full", "recompute_layers": _recomputed_layers(given)}
    given.words("--recompute-num-layers")
    given.words("--recompute-method")
    modules = given.words("--recompute-modules")
    if granularity not in (None, "selective"):
        raise given.error("--recompute-granularity", f"expected full or selective, found {granularity}")
    if granularity is None or not {*modules} - {"core_attn"}:
        return {"recompute": granularity or "none"}
    if any(name.startswith("$") for name in modules):
        raise given.error("--recompute-modules", f"{' '.join(modules)} has no value in the script")
    if others := [name for name in modules if name not in MODULES]:
        given.unmodelled["--recompute-modules"] = (
            f"{', '.join(others)} is kept here, not computed again: too much memory, and too quick a backward"
        )
    return {"recompute": [name for name in modules if name in MODULES] or "none"}


def _recomputed_layers(given: Given) -> int | None:
    """Layers of each stage that are computed again, if not all."""
    method = given.text("--recompute-method") or given.text("--activations-checkpoint-method")
    flag = next((one for one in _COUNTS if one in given), _COUNTS[0])
    layers = given.number(flag, least=0)
    if method == "block" and layers:
        return None if layers == given.number("--num-layers") else layers
    if (layers or 1) > 1:
        given.unmodelled[flag] = (
            f"every layer keeps its own input here, not each {layers}th, with {layers} whole in a backward"
        )
    return None


_COUNTS = ("--recompute-num-layers", "--activations-checkpoint-num-layers", "--checkpoint-num-layers")


def _write_overlap(values: Values) -> Iterable[str]:
    flags = {
        "--overlap-grad-reduce": values["gradients.overlap"],
        "--overlap-param-gather": values["sharding"] in ("zero-1", "zero-2") and values["overlap.parameters"],
        "--tp-comm-overlap": values["overlap.tensor"] and values["parallel.tensor"] > 1,
    }
    return [flag for flag, holds in flags.items() if holds]


def _read_overlap(given: Given) -> Values:
    reduces, gathers, tensor = (
        flag in given for flag in ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap")
    )
    shards = sharding_of(given)
    return {
        "gradients.overlap": True if reduces and shards != "zero-3" else None,
        "gradients.bucket_rule": "megatron" if reduces and shards in ("none", "zero-1") else None,
        "overlap.parameters": True if gathers and shards in ("zero-1", "zero-2") else None,
        "overlap.tensor": TENSOR_OVERLAP if tensor else None,
    }


def _read_codec(given: Given) -> Values:
    half, full = "--grad-reduce-in-bf16" in given, "--accumulate-allreduce-grads-in-fp32" in given
    main = given.text("--main-grads-dtype") if PRECISION_AWARE in given else None
    half = half or main == "bf16"  # as validate_args says
    if full or not half:
        return {"gradients.codec": "fp32" if full or "--fp16" not in given else "fp16"}
    return {"gradients.codec": "bf16"}


def _write_codec(values: Values) -> Iterable[str]:
    flags = {"bf16": ("--grad-reduce-in-bf16",), "fp32": ("--accumulate-allreduce-grads-in-fp32",)}
    return flags.get(values["gradients.codec"], ())


def _write_bucket(values: Values) -> Iterable[str]:
    bucket = values["gradients.bucket"]
    return () if bucket is None or values["sharding"] in ("zero-2", "zero-3") else (f"--ddp-bucket-size {bucket}",)


def _read_bucket(given: Given) -> Values:
    elements, codec = given.number("--ddp-bucket-size"), _read_codec(given)["gradients.codec"]
    if elements is None or sharding_of(given) in ("zero-2", "zero-3"):
        return {}
    return {"gradients.bucket": int(elements * codecs.find(codec).build().bytes_per_element)}


_GRAPHS = {
    "full": "--cuda-graph-impl local --cuda-graph-scope full_iteration --no-check-for-nan-in-loss-and-grad",
    "layers": "--cuda-graph-impl transformer_engine",
}  # fmt: skip


def _write_host(values: Values) -> Iterator[str]:
    """What hosts hold, and what they launch."""
    if share := values["offload.optimizer"]:
        yield f"{OFFLOADED} {PRECISION_AWARE} --optimizer-offload-fraction {float(share):g}"
    if values["cuda_graphs"] in _GRAPHS:
        yield _GRAPHS[values["cuda_graphs"]]


def _read_host(given: Given) -> Values:
    share, scope = given.text("--optimizer-offload-fraction"), given.text("--cuda-graph-scope")
    graphs = given.text("--cuda-graph-impl") not in (None, "none")
    moved = OFFLOADED in given
    given.pass_over(PRECISION_AWARE, "--no-check-for-nan-in-loss-and-grad")
    if share is not None and not re.fullmatch(r"0?\.\d+|0|1(\.0*)?", share):
        raise given.error("--optimizer-offload-fraction", f'expected a share from 0 to 1, found "{share}"')
    return {
        "offload.optimizer": float(share or 1) if moved else None,
        "cuda_graphs": ("full" if scope == "full_iteration" else "layers") if graphs else None,
    }


TRAINING = (
    Rule(write_precision, read_precision),
    Rule(_write_recompute, _read_recompute),
    SHARDING,
    Rule(_write_overlap, _read_overlap),
    Rule(_write_codec, _read_codec),
    Rule(_write_bucket, _read_bucket),
    Rule(_write_host, _read_host),
    OPTIMIZER,
)
RULES = (*MODEL, *LAYOUT, *TRAINING)


def megatron(scenario: Source) -> Launch:
    """The line that starts this scenario's training, with mock data."""
    scenario = load(scenario)
    values = values_of(scenario) | document_values(scenario)
    has_sizes = "model.layers" in values
    rules = RULES if has_sizes else (*LAYOUT, *TRAINING)
    fsdp = scenario.fsdp
    divides = scenario.parallel.tensor > 1 or scenario.parallel.context > 1
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if fsdp else "1"} if fsdp or divides else {}
    ranks, per_node = scenario.parallel.ranks, scenario.cluster.gpus_per_node
    program = f"{torchrun(ranks, per_node)} {'pretrain_mamba.py' if is_hybrid(values) else 'pretrain_gpt.py'}"
    flags = [flag for rule in rules for flag in rule.write(values)]
    line = Line(flags_in(" ".join(flags), "flags"), ranks)
    return Launch(environment, program, (*flags, *_RUN), tuple(_unsaid(scenario, values)), tuple(refusals(line)))


def _unsaid(scenario: Scenario, values: Values) -> Iterator[str]:
    """What no flag expresses."""
    parallel, schedule = scenario.parallel, scenario.schedule
    pipeline, ranks = parallel.pipeline > 1, parallel.ranks
    kind = "workload" if scenario.model is None else scenario.model.kind
    lines = {
        f"model: {kind}: its sizes are no flags of pretrain_gpt.py": "model.layers" not in values,
        f"precision: {scenario.precision}": scenario.precision in WIDE,
        "model.causal: false": values.get("model.causal") is False,
        "model.post_norm: true": values.get("model.post_norm"),
        f"model.written: {(written := values.get('model.written'))}": written not in (None, "megatron", "deepspeed"),
        f"recompute: {OPS}": scenario.recompute == (OPS,),
        "operators: eager": "eager" in (scenario.operators.blocks, scenario.operators.loss),
        "model.token_types, model.pooler": values.get("model.token_types") or values.get("model.pooler"),
        f"{ranks} GPUs do not fill nodes of {scenario.cluster.gpus_per_node} evenly": (
            ranks % min(scenario.cluster.gpus_per_node, ranks)
        ),
        f"schedule.kind: {schedule.kind or schedule.file}: it runs 1F1B, plain and interleaved": (
            pipeline and schedule.kind not in ("1f1b", "interleaved-1f1b")
        ),
        "schedule.p2p: async: plain 1F1B waits for its messages there": (
            pipeline and schedule.kind == "1f1b" and schedule.p2p == "async"
        ),
        f"parallel.order: {', '.join(parallel.order)}": order_of(values) not in (DATA_FIRST, DATA_LAST),
        "parallel.order: data last: not with context or expert ranks": (
            order_of(values) == DATA_LAST and (parallel.context > 1 or parallel.expert > 1)
        ),
        f"parallel.stages: {parallel.stages}: state them as a list": pipeline and parallel.stages == "balanced",
        "offload.activations: by numbers of layers, --cpu-offloading-num-layers": scenario.offload.activations,
        "offload.parameters": scenario.offload.parameters,
        "operators.mlp_tile": scenario.operators.mlp_tile,
        "experts.dispatch: fp8": values.get("model.experts") and scenario.experts.dispatch == "fp8",
        "experts.placement": scenario.experts.moved,
        f"gradients.codec: {scenario.gradients.codec}": not [*_write_codec(values)],
    }
    yield from (line for line, holds in lines.items() if holds)
    yield from unsaid_of_sharding(values)
    yield from unsaid_of_optimizer(values)
    yield from unsaid_of_documents(scenario, values)
    yield from unsaid_of_variants(values)
    yield from unsaid_of_kinds(values)


def read_megatron(
    text: str,
    name: str,
    *,
    is_file: bool = False,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Imported:
    """A scenario's values from a launch line, or from a shell script that holds one.

    Args:
        text: its flags, with or without the program.
        name: where it comes from, for errors.
        is_file: whether `name` is the path of a script, beside which files that it sources are looked for.
        overrides: what is stated besides, such as "parallel.tensor=2"; it takes the place of flags.
        environment: variables that count where the script does not set them.

    Raises:
        UsageError: a flag makes layers that are not known here, or none of Megatron-LM is there; the message names it.
    """
    read = megatron_launch(text, name, is_file=is_file, environment=environment)
    return read_launch(read, name, is_file=is_file, overrides=overrides)


def megatron_launch(
    text: str, name: str, *, is_file: bool = False, environment: Mapping[str, str] | None = None
) -> Read:
    """What a launch line or a script starts; arguments and errors as those of `read_megatron`."""
    if what := foreign(text, "launch line"):
        raise UsageError(f"{name}: {what}")
    return launch_in(text, name, FLAGS, is_file=is_file, environment=environment)


def read_launch(read: Read, name: str, *, is_file: bool = False, overrides: Sequence[str] = ()) -> Imported:
    """A scenario's values from what starts Megatron-LM; arguments and errors as those of `read_megatron`."""
    if others := [*other_layers(read.flags)]:
        raise UsageError(f"{name}: {few(others)}: other layers than those known here")
    if re.search("pretrain_(mamba|hybrid)", read.program) and not {*PATTERNS} & read.flags.keys():
        raise UsageError(
            f"{name}: {one_line(read.program)} without {' or '.join(PATTERNS)}: layers that no flag states"
        )
    flags, configured = with_config(read, name, is_file=is_file)
    given = Given(with_stated(machine_of(read.variables) | flags, overrides), name, read.elsewhere)
    given.pass_over(DEEPSPEED_CONFIG)
    values, assumed, unknown = _values(given)
    around, wrong_around = of_environment(read.variables)
    if _KERNELS in given:
        around.pop("model.attention", None)
    if "model.attention" in around:
        assumed = [line for line in assumed if not line.startswith("model.attention")]
    values |= around
    if read.borrowed:
        listed = ", ".join(f"{key}={value}" for key, value in read.borrowed.items())
        assumed.append(f"environment: {listed}: not set in the script")
    asked = (*unknown, *configured, *_asked(values, read, given, overrides))
    imported = _imported(given, read, values, asked)
    unmodelled = (*imported.unmodelled, *(f"{setting}: {text}" for setting, text in wrong_around.items()))
    return imported._replace(assumed=tuple(assumed), unmodelled=_joined(unmodelled))


def _imported(given: Given, read: Read, values: dict[str, Any], asked: Sequence[str]) -> Imported:
    """The values, with a published model by name, and the flags that rules did not read.

    Args:
        given: the flags, read by all rules.
        read: what is started.
        values: those of the flags, by path.
        asked: what is to be stated, or was not decided.
    """
    unread = given.unread
    idle = [flag for flag in unread if is_idle(flag, given.flags[flag], values)]
    lacks = without_equal(given, [flag for flag in unread if flag not in idle])
    left = [flag for flag in unread if flag not in idle and flag not in lacks]
    wrong, minor = split([f"{given.shown(flag)}{given.meant(flag)}" for flag in left])
    wrong += [f"{word}: has no value in the script; flags in it are missing" for word in _unset(given, read)]
    gpus = given.tried(machine)
    ranks = gpus.nodes * gpus.per_node if gpus.nodes and gpus.per_node else None
    readable = {flag: words for flag, words in given.flags.items() if flag not in given.aside}
    sizes = {path.partition(".")[2]: values.pop(path) for path in [*values] if path.startswith("model.")}
    return Imported(
        values={**by_path(_model(sizes, given)), **values},
        assumed=(),
        unread=(*asked, *_program(read), *read.notes, *wrong, *minor),
        idle=tuple(map(given.shown, idle)),
        refused=tuple(refusals(Line(readable, ranks))),
        unmodelled=tuple(f"{given.shown(flag)}: {text}" for flag, text in lacks.items()),
        minor=len(minor),
    )


def _joined(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines that say the same of several settings, as one."""
    names = collected((text, name) for name, _, text in (line.partition(": ") for line in lines))
    return tuple(f"{', '.join(settings)}: {text}" for text, settings in names.items())


def _values(given: Given) -> tuple[dict[str, Any], list[str], list[str]]:
    """Values by path, what had to be assumed, and what cannot be read."""
    values: dict[str, Any] = {}
    for rule in RULES:
        values |= given.tried(rule.read)
    axes = {axis: values[f"parallel.{axis}"] for axis in ("tensor", "pipeline", "context")}
    gpus = set_aside_if_no_multiple(given, given.tried(machine), axes)
    values |= {"cluster.nodes": gpus.nodes, "cluster.gpus_per_node": gpus.per_node}
    unknown = [*mark_unknown(values, given)]
    assumed = [*gpus.said, *_sizes(given, values), *uncounted(given)]
    readable = {*given.aside}
    values |= dict(given.tried(lambda given: [*groups_of(given, values)]))
    unknown += [f"{flag}: {why}" for flag, why in given.aside.items() if flag not in readable]
    assumed += assumed_layout(given)
    if values["overlap.tensor"]:
        assumed.append(f"overlap.tensor: {TENSOR_OVERLAP}: --tp-comm-overlap does not say how much it hides")
    if values["model.mlp"] == "swiglu" and any(
        flag not in given.flags for flag in ("--hidden-dropout", "--attention-dropout")
    ):
        assumed.append("model.mlp: swiglu: without dropout, which Megatron-LM has at 0.1 unless flags say 0")
    if not any(flag in given for flag in ("--bf16", "--fp16")):
        assumed.append(f"precision: {values['precision']}: without --bf16 and --fp16, Megatron-LM trains in fp32")
    if values.get("experts.dispatcher") and given.text("--moe-token-dispatcher-type") in (None, "allgather"):
        assumed.append("experts.dispatcher: all-to-all: Megatron-LM's own default, allgather, is not described")
    longest, sequence = next(iter(given.words("--max-position-embeddings")), ""), values["model.sequence"]
    if values["model.positions"] == "learned" and longest.isdecimal() and longest != str(sequence):
        assumed.append(f"model.sequence: {sequence}: as many learned positions, of --max-position-embeddings {longest}")
    if values["model.attention"] == "flash" and "--use-flash-attn" not in given.flags:
        assumed += _flash_of(given)
    if "--cross-entropy-loss-fusion" not in given and "--deepspeed" not in given.flags:
        assumed.append(
            "operators.loss: fused: --cross-entropy-loss-fusion asks for it; eager counts a loss of several kernels"
        )
    given.words("--cross-entropy-fusion-impl")
    if given.text("--position-embedding-type") == "none":
        assumed.append("model.positions: rotary: none has no parameters either, and rotations are not counted")
    vocab = given.number("--vocab-size")
    if vocab is not None and values["model.vocab"] != vocab:
        assumed.append(f"model.vocab: {values['model.vocab']}: {vocab} padded for tensor ranks, as Megatron-LM does")
    if recipe := other_recipe(given):
        assumed.append(f"precision: {values['precision']}: for {recipe}; a written line has the recipe's usual format")
    return values, assumed, unknown


def _model(sizes: dict[str, Any], given: Given) -> dict[str, Any]:
    """A published model by name, else the sizes, with the stack that the line starts."""
    stated = given.number("--vocab-size") if "vocab" in sizes else None
    model = published_model(sizes | ({"vocab": stated} if stated else {}))  # which its publisher does not pad
    named = {"base": model} if isinstance(model, str) else model
    padded = {"vocab": sizes["vocab"]} if stated != sizes.get("vocab") else {}
    return {**named, **padded, "written": "deepspeed" if "--deepspeed" in given.flags else "megatron"}


def _flash_of(given: Given) -> list[str]:
    """Whose default flash attention is, of a line that does not ask for it."""
    if "--deepspeed" in given.flags:
        return ["model.attention: flash: Megatron-DeepSpeed needs --use-flash-attn for it"]
    if "--attention-backend" in given.flags:
        return []
    return ["model.attention: flash: releases without --attention-backend need --use-flash-attn for it"]


def _asked(values: dict[str, Any], read: Read, given: Given, overrides: Sequence[str]) -> Iterator[str]:
    """What depends on conditions of a script becomes `UNKNOWN`; yields the conditions with their flags."""
    decided = {**values}
    for said, flags in read.choices:
        shown = _difference(read.flags, flags)
        try:
            other, *_ = _values(Given(with_stated(flags, overrides), given.name, read.elsewhere))
        except UsageError as error:
            yield f"{said}: {shown}: {error}"
            continue
        differ = [path for path in dict.fromkeys((*decided, *other)) if decided.get(path) != other.get(path)]
        values |= {path: UNKNOWN for path in differ if not path.startswith("cluster.")}
        state = f"; state {', '.join(not_following(differ, read.flags, flags))} with --set" if differ else ""
        yield f"{said}: {shown}: not decided{state}"


def _difference(flags: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> str:
    """The flags of the second that the first has not, or not so; those that it lacks."""
    more = [word for flag, words in others.items() if flags.get(flag) != words for word in (flag, *words)]
    lacks = [flag for flag in flags if flag not in others]
    words = [*more, *(["without", *lacks] if lacks else [])]
    return one_line(" ".join(words) or "no flag", LONGEST_SHOWN * 2)


def _program(read: Read) -> Iterator[str]:
    """A program that is not the one whose flags are read."""
    program = read.program.rpartition("/")[2]
    first = next((word for word in read.apart if not re.match(r"-|\w+=", word)), "").rpartition("/")[2]
    if not program and first and not first.startswith("$") and first not in _LAUNCHERS:
        program = " ".join(read.apart)
    if program and not re.search("pretrain_(gpt|mamba|hybrid)", program):
        yield f"{one_line(program, LONGEST_SHOWN)}: read as if it were pretrain_gpt.py"


def _unset(given: Given, read: Read) -> list[str]:
    """Variables without a value that stand apart from flags, or beside the values of others."""
    apart = [one_line(word, LONGEST_SHOWN) for word in read.apart if BARE.fullmatch(word)]
    return [*dict.fromkeys((*apart, *given.unset(SWITCHES)))]


def _sizes(given: Given, values: dict[str, Any]) -> Iterator[str]:
    """Number of GPUs and replicas, and the batch; yields what had to be assumed."""
    for axis in ("tensor", "pipeline"):
        values[f"parallel.{axis}"] = values[f"parallel.{axis}"] or 1
    if values["parallel.context"] == 1:
        values["parallel.context_method"] = None
    yield from _replicas(values)
    if values["schedule.microbatch_size"] is None:
        values["schedule.microbatch_size"] = 1
        yield "schedule.microbatch_size: 1: there is no --micro-batch-size"
    if values["batch"] is None:
        factors = values["schedule.microbatch_size"], values["parallel.data"]
        values["batch"] = UNKNOWN if UNKNOWN in factors else math.prod(factors)
        yield f"batch: {values['batch']}: one micro-batch per replica, as in Megatron-LM without --global-batch-size"
    yield "cluster.gpu: a launch line does not name it"


def _replicas(values: dict[str, Any]) -> Iterator[str]:
    """Nodes, GPUs per node, and what these leave for replicas; `UNKNOWN` with any of them."""
    axes = {axis: values[f"parallel.{axis}"] for axis in ("tensor", "pipeline", "context")}
    nodes, per_node = values["cluster.nodes"], values["cluster.gpus_per_node"]
    if UNKNOWN in (*axes.values(), nodes, per_node):
        values["parallel.data"], nodes, per_node = UNKNOWN, nodes or UNKNOWN, per_node or UNKNOWN
    elif nodes is None or per_node is None:
        values["parallel.data"], per_node = 1, per_node or 8
        nodes = -(-math.prod(axes.values()) // per_node)
        yield "parallel.data: 1: --nnodes and --nproc-per-node, which give the number of replicas, are not both there"
    else:
        values["parallel.data"] = nodes * per_node // math.prod(axes.values())
    values["cluster.nodes"], values["cluster.gpus_per_node"] = nodes, per_node


def _flags_read() -> frozenset[str]:
    """The flags that rules ask for; none of them is given."""
    nothing = Given({}, "")
    for rule in RULES:
        rule.read(nothing)
    return nothing.read - {"--bf16", "--fp16", "--vocab-size"}  # which others have too


FLAGS = _flags_read()
