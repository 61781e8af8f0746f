"""Families whose layers differ, read as kinds of layers and their pattern.

Each reader says what differs in every layer, and the sizes of mixers; equal layers are one kind. Names of settings:
transformers/models/*/configuration_*.py (github.com/huggingface/transformers) and the publishers' own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks import hugging_face_tables as tables
from hybrid_des.interchange.frameworks.hugging_face_config import Config
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN

Change = Mapping[str, Any]  # keys of a block that differ from the model's
NONE = "none"
KNOWN = "h100"  # a GPU with rates of linear mixers
_ONLY = {"experts": NONE, "ffn": NONE}
LETTERS: dict[str, dict[str, Any]] = {  # layers of one half in patterns of Megatron-LM
    "M": {"mixer": "mamba2", **_ONLY},
    "*": {"mixer": "attention", **_ONLY},
    "E": {"mixer": NONE},
    "-": {"mixer": NONE, "experts": NONE},
    "G": {"mixer": "delta", **_ONLY},
    "+": {"mixer": "latent", **_ONLY},
}
LETTERS_OF_NEMOTRON = "M*E-"


class Layers(NamedTuple):
    """What differs in each layer, and sizes that the model has besides."""

    changes: Sequence[Change]
    sizes: Mapping[str, Any] = {}


def layers_of(config: Config, family: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Kinds, pattern and sizes of a model of a family with several kinds of layers; nothing of others.

    Raises:
        UsageError: a setting is missing, or does not fit the number of layers.
    """
    reader = READERS.get(family)
    if reader is None:
        return {}
    changes, sizes = reader(config, model)
    if len(changes) != model["layers"]:
        raise UsageError(f"{config.name}: {len(changes)} kinds of layers for {model['layers']} layers")
    return {**sizes, **kinds_of(changes)}


def kinds_of(changes: Sequence[Change]) -> dict[str, Any]:
    """Kinds by name and their pattern, from what differs in each layer; equal layers change the model itself."""
    kinds = {name_of(change): dict(change) for change in changes}
    if len(kinds) == 1:
        return dict(changes[0])
    return {"kinds": kinds, "pattern": _pattern_of([name_of(change) for change in changes])}


def machine_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """A GPU on which the rates of a model's linear mixers are known, or the rate that is known of none."""
    if model.get("lightning"):
        return {"efficiency.lightning": UNKNOWN}
    return {"cluster.gpu": KNOWN} if any(model.get(key) for key in ("mamba", "delta", "kda")) else {}


def layer_of_letter(letter: str, *, latent: bool = False) -> Change:
    """What a layer with such a letter has of its own; attention is latent where the model's is."""
    change = LETTERS[letter]
    return change if latent or letter != "*" else {key: value for key, value in change.items() if key != "mixer"}


def name_of(change: Change) -> str:
    """A name that says what a layer is."""
    mixers = change.get("mixer", "attention")
    mixer = "-".join(mixers) if isinstance(mixers, list) else mixers
    parts = ["window"] * ("window" in change) + ["chunks"] * ("attention_chunk" in change)
    parts += [mixer] if mixer != NONE else []
    halves = {"experts": "dense", "ffn": "only"}
    parts += [word for key, word in halves.items() if change.get(key) == NONE and mixer != NONE]
    parts += (["mlp"] if change.get("experts") == NONE else ["experts"]) if mixer == NONE else []
    return "-".join(parts).replace("-dense-only", "")


def _pattern_of(names: Sequence[str]) -> str:
    """The shortest beginning that repeats, in which repeated groups of names are written once."""
    count, words, begin = len(names), list[str](), 0
    periods = (step for step in range(1, count + 1) if count % step == 0)
    period = next(step for step in periods if [*names[:step]] * (count // step) == [*names])
    while begin < period:
        repeats = {size: _repeats(names[begin:period], size) for size in range(1, period - begin + 1)}
        size = max(repeats, key=lambda size: (size * repeats[size] * (repeats[size] > 1), -size))
        group, times = _runs(names[begin : begin + size]), repeats[size]
        words.append(group if times == 1 else f"{group}*{times}" if size == 1 else f"({group})*{times}")
        begin += size * times
    return " ".join(words)


def _runs(names: Sequence[str]) -> str:
    """Names, with equal neighbours as a number."""
    counts = [(name, len([*same])) for name, same in groupby(names)]
    return " ".join(name if times == 1 else f"{name}*{times}" for name, times in counts)


def _repeats(names: Sequence[str], size: int) -> int:
    """How often the first names of this number follow each other from the start."""
    times = 1
    while names[times * size : (times + 1) * size] == names[:size]:
        times += 1
    return times


def _needed(config: Config, *names: str) -> int:
    """A setting without which the layers are not known.

    Raises:
        UsageError: it is missing.
    """
    stated = config.size(names)
    if stated is None:
        raise UsageError(f"{config.name}: {names[0]} missing; expected the sizes of its layers")
    return stated


def _sizes(config: Config, table: Mapping[str, Sequence[str]], **usual: int) -> dict[str, int]:
    """The sizes of a mixer, of which some are usual ones where they are missing."""
    return {
        key: config.size(names) or usual[key] if key in usual else _needed(config, *names)
        for key, names in table.items()
    }


def _mamba(config: Config) -> dict[str, Any]:
    sizes = _sizes(config, tables.MAMBA, groups=1, conv=4, chunk=256)
    config.pass_over(*(name for name in config.values if name.startswith(("mamba_", "time_step_"))), "expand")
    return sizes


def _nemotron_h(config: Config, model: Mapping[str, Any]) -> Layers:
    """Letters: M Mamba-2, * attention, E experts, - an MLP; every layer has one half."""
    config.pass_over("hybrid_override_pattern", "moe_shared_expert_overlap")
    latent = config.size(("moe_latent_size",))
    experts = {"router_bias": True, **({"latent": latent} if latent else {})}
    text = config.values.get("hybrid_override_pattern")
    if not isinstance(text, str) or not set(text) <= {*LETTERS_OF_NEMOTRON}:
        expected = ", ".join(LETTERS_OF_NEMOTRON)
        raise UsageError(f"{config.name}: hybrid_override_pattern: expected letters of {expected}")
    sizes = {"mamba": _mamba(config), **({"experts": experts} if "E" in text else {})}
    return Layers([layer_of_letter(letter) for letter in text], sizes)


def _linear(config: Config, model: Mapping[str, Any]) -> Layers:
    """Qwen3-Next: gated delta rules, and full attention in one of so many layers, the last."""
    every, listed = config.size(("full_attention_interval",)) or 4, config.listed("layer_types") or []
    full = [one == "full_attention" for one in listed] or [
        (number + 1) % every == 0 for number in range(model["layers"])
    ]
    sizes = _sizes(config, tables.DELTA, conv=4)
    config.pass_over("attn_output_gate")
    more = {"experts": {"shared_gate": True}} if config.values.get("shared_expert_intermediate_size") else {}
    return Layers([{} if one else {"mixer": "delta"} for one in full], {"delta": sizes, "gate": "element", **more})


def _kimi_linear(config: Config, model: Mapping[str, Any]) -> Layers:
    """Layers by number, from 1."""
    config.pass_over("linear_attn_config")
    given = config.values.get("linear_attn_config")
    linear: Mapping[str, Any] = given if isinstance(given, dict) else {}
    places = [linear.get("kda_layers") or [], linear.get("full_attn_layers") or []]
    layers = range(1, model["layers"] + 1)
    if sorted([*places[0], *places[1]]) != [*layers]:
        raise UsageError(f"{config.name}: linear_attn_config: expected each of the {len(layers)} layers once")
    sizes = {"heads": linear.get("num_heads"), "size": linear.get("head_dim")}
    sizes["conv"] = linear.get("short_conv_kernel_size", 4)
    return Layers([{"mixer": "kda"} if number in places[0] else {} for number in layers], {"kda": sizes})


def _llama4(config: Config, model: Mapping[str, Any]) -> Layers:
    """Attention within chunks but in every fourth layer, and experts in one of so many layers, the last.

    Its norms of queries and keys have no weights, and are not counted.
    """
    chunk, every = config.size(("attention_chunk_size",)), config.size(("interleave_moe_layer_step",)) or 1
    config.pass_over("no_rope_layers", "no_rope_layer_interval", "intermediate_size_mlp", "moe_layers", "use_qk_norm")
    step = config.size(("no_rope_layer_interval",)) or 4
    changes = [
        ({"attention_chunk": chunk} if chunk and (number + 1) % step else {})
        | ({"experts": NONE} if (number + 1) % every else {})
        for number in range(model["layers"])
    ]
    dense = config.values.get("intermediate_size_mlp") if every > 1 else None
    return Layers(changes, {"experts": {"shared": 1}, "qk_norm": None, **({"ffn": dense} if dense else {})})


def _lfm2(config: Config, model: Mapping[str, Any]) -> Layers:
    """Short convolutions and attention, as listed."""
    width = _needed(config, "conv_L_cache")
    kinds = config.listed("layer_types") or []
    config.pass_over("num_dense_layers", "conv_bias", "block_auto_adjust_ff_dim")
    dense = config.values.get("num_dense_layers") or 0
    changes = [
        ({"mixer": "conv"} if kind == "conv" else {}) | ({"experts": NONE} if number < dense else {})
        for number, kind in enumerate(kinds)
    ]
    return Layers(changes, {"conv": {"width": width}})


def _falcon_h1(config: Config, model: Mapping[str, Any]) -> Layers:
    """Attention and Mamba-2 side by side in every layer."""
    sizes = _mamba(config) | {"norm": config.values.get("mamba_rms_norm") is True}
    return Layers([{"mixer": ["attention", "mamba2"]}] * model["layers"], {"mamba": sizes})


def _minimax(config: Config, model: Mapping[str, Any]) -> Layers:
    """0: lightning attention, 1: attention."""
    kinds = config.listed("attn_type_list") or []
    config.pass_over(*(name for name in config.values if name.startswith("layernorm_")))
    size = model.get("head_size") or model["hidden"] // model["heads"]
    return Layers(
        [{} if kind else {"mixer": "lightning"} for kind in kinds],
        {"lightning": {"heads": model["heads"], "size": size}},
    )


READERS: Mapping[str, Callable[[Config, Mapping[str, Any]], Layers]] = {
    "nemotron_h": _nemotron_h,
    "qwen3_next": _linear,
    "qwen3_5_text": _linear,
    "qwen3_5_moe_text": _linear,
    "kimi_linear": _kimi_linear,
    "llama4_text": _llama4,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "falcon_h1": _falcon_h1,
    "minimax_text_01": _minimax,
}
