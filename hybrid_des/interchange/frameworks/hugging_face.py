"""A model's sizes from its `config.json`, as Hugging Face's transformers writes it.

Names: transformers/models/*/configuration_*.py (github.com/huggingface/transformers). A setting that makes other layers
and is not read is an error, since its model would be another one. What a family has without a setting stands in the
table of families.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.frameworks import hugging_face_tables as tables
from hybrid_des.interchange.frameworks.foreign import foreign
from hybrid_des.interchange.frameworks.hugging_face_config import Config, shown
from hybrid_des.interchange.frameworks.hugging_face_kinds import KNOWN, layers_of, machine_of
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, Imported, by_path, published_model
from hybrid_des.options import describe
from hybrid_des.workload.models.catalogue import merged

_SHARED_WIDTHS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
_INNER = ("text_config", "llm_config", "language_config")  # where a model of several parts has its language model
_SECTIONS = ("attn_config", "ffn_config")  # where settings of attention and MLP stand by themselves
_MAMBA = ("mamba_", "time_step_")
_EMBEDDING_WIDTHS = ("word_embed_proj_dim", "embedding_size")  # other layers where it is not the hidden size
_ATTENTION_BIASES = ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias")
_ALL_BIASES = ("use_bias", "bias", "add_bias_linear")
_QK_NORMS = ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm")
_ROUTER_BIASES = ("use_routing_bias", "moe_use_aux_free", "moe_router_enable_expert_bias")
_HAS_EXPERTS = ("is_moe", "use_moe", "enable_moe_block")  # switches of numbers that stand there all the same
_WINDOWS = ("sliding_attention", "sliding_window")
_ACTIVATIONS = ("hidden_act", "activation_function", "activation", "hidden_activation", "mlp_hidden_act")
_GATED = ("silu", "swish", "swiglu")  # activations of MLPs as Llama's
_FULL = "full_attention"
_BESIDE = "cluster, parallel, batch: a model's configuration does not say them"


def read_hugging_face(text: str, name: str) -> Imported:
    """The values of a scenario that a model's configuration gives: its sizes.

    Args:
        text: the content of `config.json`.
        name: where it comes from, for errors.

    Raises:
        UsageError: it is no such configuration, or a setting makes layers that are not known here.
    """
    config = Config(*_parsed(text, name), name)
    family = config.text("model_type")
    config.check_family(family)
    if family == "vit":
        return _vision(config)
    known = tables.FAMILIES.get(family)
    config.take_defaults((known or tables.Family()).settings)
    model = _sizes(config, family)
    model |= {"tied": config.tied(known), **(known or tables.Family()).values, **_said(config)}
    if model.get("pooler"):
        model["token_types"] = config.size(("type_vocab_size",))
    layers = layers_of(config, family, model)
    windows = {} if layers else _window(config, known or tables.Family(), model)
    model = merged(model | _parts(config, model) | windows, layers)
    config.check()
    if model["ffn"] is None:
        raise UsageError(f"{name}: intermediate_size missing; expected the config.json of a language model")
    values = by_path(published_model(model))
    machine = machine_of(model)
    gpu = [f"cluster.gpu: {KNOWN}: the rates of its linear mixers are known there"] if "cluster.gpu" in machine else []
    values |= machine
    unread, idle = config.rest()
    beside = known.beside if known is not None else ()
    lines = (*unread, *(f"model_type: {family}: not described here: {one}" for one in beside))
    return Imported(values, (*gpu, *_assumed(config, model, known)), lines, idle)


def _parsed(text: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the language model, and those beside them."""
    if what := foreign(text, "config.json"):
        raise UsageError(f"{name}: {what}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}; expected a model's config.json") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: found {describe(values)}; expected a model's config.json")
    outer: dict[str, Any] = {}
    while inner := next((key for key in _INNER if isinstance(values.get(key), dict)), None):
        outer |= {key: value for key, value in values.items() if key != inner}
        values = values[inner]
    sections = [values.pop(key) for key in _SECTIONS if isinstance(values.get(key), dict)]
    return {**{key: value for section in sections for key, value in section.items()}, **values}, outer


def _sizes(config: Config, family: str) -> dict[str, Any]:
    """The sizes that any model has.

    Raises:
        UsageError: one is missing, or is no number.
    """
    sizes = {key: config.size(names) for key, names in tables.SIZES.items()}
    if family == "falcon" and not config.on("new_decoder_architecture"):  # with which alone it counts them
        sizes["kv_heads"] = None if config.off("multi_query") else 1
    if config.on("multi_query"):
        sizes["kv_heads"] = sizes["kv_heads"] or 1
    if config.off("multi_query_attention"):
        sizes["kv_heads"] = None
    config.pass_over(*(name for name in _EMBEDDING_WIDTHS if config.values.get(name) == sizes["hidden"]))
    wide = (*tables.FAMILIES.get(family, tables.Family()).values.items(),)
    if sizes["ffn"] is None and ("mlp", "gelu") in wide and sizes["hidden"] is not None:
        sizes["ffn"] = 4 * sizes["hidden"]  # the default of these families
    lacking = [tables.SIZES[key][0] for key in ("layers", "hidden", "heads", "vocab") if not sizes[key]]
    if lacking:
        lacking += ["intermediate_size"] if not sizes["ffn"] else []
        raise UsageError(f"{config.name}: {', '.join(lacking)} missing; expected the config.json of a language model")
    model: dict[str, Any] = {key: size for key, size in sizes.items() if size is not None}
    model["ffn"] = sizes["ffn"] or None
    if model.get("kv_heads") == model["heads"]:
        del model["kv_heads"]
    if model.get("head_size", 0) * model["heads"] == model["hidden"]:
        del model["head_size"]
    return model


def _vision(config: Config) -> Imported:
    """A vision transformer; its classes are the labels, or those of ImageNet.

    Raises:
        UsageError: a size is missing, or a setting makes other layers.
    """
    names = {key: tables.SIZES[key] for key in ("layers", "hidden", "heads", "ffn")} | tables.VISION
    sizes = {key: config.size(theirs) for key, theirs in names.items()}
    if lacking := [names[key][0] for key, size in sizes.items() if not size]:
        raise UsageError(
            f"{config.name}: {', '.join(lacking)} missing; expected the config.json of a vision transformer"
        )
    labels = config.values.get("id2label")
    sizes["classes"] = len(labels) if isinstance(labels, dict) else 1000
    usual = {"qkv_bias": True, "num_channels": 3}
    config.pass_over("id2label", *_ACTIVATIONS, *(key for key in usual if config.values.get(key) == usual[key]))
    config.check()
    assumed = [] if isinstance(labels, dict) else ["model.classes: 1000: there is no id2label"]
    values = {"model.kind": "vision", **{f"model.{key}": size for key, size in sizes.items()}}
    return Imported(values, (*assumed, _BESIDE), *config.rest())


def _said(config: Config) -> dict[str, Any]:
    """What switches say of products and norms."""
    said: dict[str, Any] = {}
    everywhere = config.on("mlp_bias") and config.on(*_ATTENTION_BIASES)
    if config.on(*_ALL_BIASES) or everywhere:
        said["bias"] = True
    elif config.off(*_ALL_BIASES) or config.on("no_bias"):
        said["bias"] = False
    if config.on(*_QK_NORMS):
        said["qk_norm"] = True
    elif config.off(*_QK_NORMS):
        said["qk_norm"] = False
    if config.off("rmsnorm"):
        said["norm"] = "layer"
    config.pass_over("mlp_bias", *_ATTENTION_BIASES)
    for name in _ACTIVATIONS:  # a family has the one that it is known for
        if config.text("model_type") in tables.FAMILIES or config.values.get(name) in _GATED:
            config.pass_over(name)
        elif config.values.get(name):
            said["mlp"] = UNKNOWN  # nothing says whether it has a gate
    if config.text("position_embedding_type") in ("relative_key", "relative_key_query"):
        config.understand_not(f"position_embedding_type: {config.text('position_embedding_type')}")
    return said


def _parts(config: Config, model: Mapping[str, Any]) -> dict[str, Any]:
    """Latent attention and experts; what stands beside them is read where they are there, else it is another thing."""
    parts: dict[str, Any] = {}
    if config.size(tables.LATENT["key_value"]):
        latent = {key: config.size(names) for key, names in tables.LATENT.items()}
        parts["latent"] = {key: size for key, size in latent.items() if size}
        parts |= dict.fromkeys(("kv_heads", "head_size", "qk_norm"))  # of no meaning there
    count = config.size(tables.EXPERTS["count"])
    experts = {} if count is None else {key: config.size(names) for key, names in tables.EXPERTS.items()}
    if count and not config.off(*_HAS_EXPERTS):
        parts["experts"] = _experts(config, experts, model)
        if not parts["experts"].get("dense_layers"):
            parts["ffn"] = model["ffn"] or parts["experts"]["ffn"]  # of no layer
    elif width := config.size(("shared_intermediate_size",)):
        parts["ffn"] = width  # what every token passes
    return parts


def _experts(config: Config, experts: dict[str, int | None], model: Mapping[str, Any]) -> dict[str, Any]:
    """The experts of a model with some."""
    width = experts["ffn"] = experts["ffn"] or model["ffn"]
    if width is None:
        raise UsageError(f"{config.name}: moe_intermediate_size missing; expected the width of an expert")
    if config.off("use_mixed_mlp_moe", "moe_router_enable_shared_expert"):
        experts["shared"] = None
    if shared := config.size(_SHARED_WIDTHS):
        count = experts["shared"] or 1
        total = shared * count if config.values.get(_SHARED_WIDTHS[1]) else shared
        if total % width:
            given = next(name for name in _SHARED_WIDTHS if config.values.get(name))
            raise UsageError(f"{config.name}: {given}: {shared}: no multiple of an expert's {width}")
        experts["shared"] = total // width
    experts["dense_layers"] = _dense_layers(config, experts["dense_layers"], int(model["layers"]))
    biased = config.text("topk_method") == "noaux_tc" or config.on(*_ROUTER_BIASES)
    biased = biased or config.text("model_type") == "gpt_oss"
    if experts["groups"] in (None, 1):
        experts |= dict.fromkeys(("groups", "top_groups"))  # of no meaning there
    bias = {"router_bias": True} if biased else {}
    return {"active": UNKNOWN, **{key: size for key, size in experts.items() if size}, **bias}


def _dense_layers(config: Config, stated: int | None, layers: int) -> int | None:
    """Leading layers without experts, as lists say them.

    Raises:
        UsageError: other layers than the first ones are without experts.
    """
    for name, dense in (
        ("mlp_only_layers", lambda given: sorted(given)),
        ("moe_layer_freq", lambda given: [place for place, one in enumerate(given) if not one]),
        ("mlp_layer_types", lambda given: [p for p, one in enumerate(given) if one == "dense"]),
    ):
        given = config.listed(name) if isinstance(config.values.get(name), list) else None
        if not given:
            continue
        if (dense_places := dense(given)) != [*range(len(dense_places))]:
            raise UsageError(f"{config.name}: {name}: {shown(given)}: expected layers without experts first")
        stated = len(dense_places)
    end = config.values.get("moe_layer_end_index")
    if type(end) is int and end in (-1, layers - 1):
        config.pass_over("moe_layer_end_index")
    return stated


def _window(config: Config, family: tables.Family, model: Mapping[str, Any]) -> dict[str, Any]:
    """The sliding window, where one of so many layers, the first, has it; what is not so is named."""
    kinds = _kinds(config)
    size, off = config.values.get("sliding_window", family.window), config.off("use_sliding_window")
    config.pass_over("sliding_window_pattern")
    whole = type(size) is not int or size <= 0 or off or size >= model.get("sequence", 0) > 0  # all layers have none
    every = None if whole else _every(kinds, config.values.get("sliding_window_pattern"), family)
    fits = every is not None and len(kinds) in (0, model["layers"])
    if whole or fits:
        config.pass_over("sliding_window")
    if fits:
        return {"window": size, **({"window_every": every} if every != 2 else {})}
    for kind, count in Counter(kinds).items():
        if kind != _FULL and not (off or (whole and type(size) is int)):
            config.understand_not(f"layer_types: {count} of {len(kinds)} layers have {kind}")
    return {}


def _kinds(config: Config) -> list[str]:
    """The kinds of attention of the layers.

    Raises:
        UsageError: some are no attention to the tokens before.
    """
    kinds = [str(one) for one in config.listed("layer_types") or []]
    for kind in kinds:
        if kind not in (_FULL, "attention", *_WINDOWS):
            named = one_line(kind, LONGEST_SHOWN)
            count = f"{kinds.count(kind)} of {len(kinds)} layers"
            raise UsageError(f"{config.name}: layer_types: {count} are {named}: other layers than those known here")
    if kinds:
        config.pass_over(*(name for name in config.values if name.startswith(_MAMBA)))  # of no layer
    return [_FULL if kind == "attention" else kind for kind in kinds]


def _every(kinds: list[str], pattern: Any, family: tables.Family) -> int | None:
    """Of how many layers the first has the window; None where it is not so."""
    if not kinds:
        if pattern == 2 and type(pattern) is int:
            return 2
        return {"all": 1, "every second": 2}.get(family.windows or "") if pattern is None else None
    windows = [kind in _WINDOWS for kind in kinds]
    if all(windows):
        return 1
    step = next((place for place in range(1, len(windows)) if windows[place]), len(windows))
    return step if windows == [place % step == 0 for place in range(len(windows))] else None


def _assumed(config: Config, model: Mapping[str, Any], family: tables.Family | None) -> Iterator[str]:
    longest = model.get("sequence")
    if longest:
        yield f"model.sequence: {longest}: the longest that the model takes; state that of training"
    for ours, names in tables.SIZES.items():
        for name in config.defaults.keys() & set(names) - {"max_position_embeddings"}:
            default = f"the default of {config.text('model_type')}"
            yield f"model.{ours}: {config.defaults[name]}: {name} is missing; {default}"
    if family is None:
        kind = config.text("model_type")
        named = f'model_type "{one_line(kind, LONGEST_SHOWN)}" is not known' if kind else "there is no model_type"
        paths = "model.norm, model.positions, model.bias, model.qk_norm, model.causal"
        paths = paths if "mlp" in model else f"model.mlp, {paths}"
        yield f"{paths}: as in Llama, like all that no setting names: {named}"
        if not any("tie_word_embeddings" in values for values in (config.values, config.outer)):
            yield "model.tied: false: there is no tie_word_embeddings"
    inner, outer = (values.get("tie_word_embeddings") for values in (config.values, config.outer))
    if isinstance(inner, bool) and isinstance(outer, bool) and inner != outer:
        yield f"model.tied: {str(inner).lower()}: tie_word_embeddings of the language model; beside it, it is the other"
    if config.on(*_ATTENTION_BIASES) and not model.get("bias"):
        yield "model.bias: false: only products of attention have one"
    if config.on("mlp_bias") and not model.get("bias"):
        yield "model.bias: false: only products of MLPs have one"
    yield _BESIDE
