"""Low-rank adapters of a job: where they are, in the words of a scenario.

Names of modules: peft/utils/constants.py (github.com/huggingface/peft), torchtune/modules/peft, torchtitan's wq to w3,
and Megatron core's linear_qkv, linear_proj, linear_fc1 and linear_fc2 (src/megatron/bridge/peft/lora.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.workload.models.frozen import PRODUCTS

QUANTITIES = ("adapter_rank", "tuned_rank", "adapter_on", "adapter_mlp")
_ATTENTION, _MLP = ("queries", "keys", "values", "output"), ("up", "down")
_PLACES = {
    "q_proj": ("queries",), "k_proj": ("keys",), "v_proj": ("values",), "o_proj": ("output",),
    "output_proj": ("output",), "out_proj": ("output",), "dense": ("output",), "c_proj": ("output", "down"),
    "c_attn": ("queries", "keys", "values"), "query_key_value": ("queries", "keys", "values"),
    "qkv_proj": ("queries", "keys", "values"), "gate_up_proj": ("up",), "gate_proj": ("up",), "up_proj": ("up",),
    "down_proj": ("down",), "wq": ("queries",), "wk": ("keys",), "wv": ("values",), "wo": ("output",), "w1": ("up",),
    "w3": ("up",), "w2": ("down",), "dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",),
    "linear_qkv": ("queries", "keys", "values"), "linear_proj": ("output",), "linear_fc1": ("up",),
    "linear_fc2": ("down",), "all": (*_ATTENTION, *_MLP), "all-linear": (*_ATTENTION, *_MLP),
}  # fmt: skip


def place_adapters(values: dict[str, Any]) -> Iterator[str]:
    """Replace what programs state of adapters by a scenario's values; yields modules that are not known here.

    Args:
        values: by path, and quantities, which are taken out; adapters count where weights are frozen, which
            `tuned_rank` says by itself.
    """
    taken: Mapping[str, Any] = {key: values.pop(key, None) for key in QUANTITIES}
    if taken["tuned_rank"]:
        values["model.frozen"] = "all"
    if values.get("model.frozen") is None:
        return
    given = taken["adapter_on"]
    modules = given.replace(",", " ").split() if isinstance(given, str) else given or ["q_proj", "v_proj"]
    names = [str(module).rpartition(".")[2] for module in modules]
    on = {place for name in names for place in _PLACES.get(name, ())} | ({*_MLP} if taken["adapter_mlp"] else set())
    yield from (f"adapters on {name}: not described here, and not counted" for name in names if name not in _PLACES)
    rank, places = taken["tuned_rank"] or taken["adapter_rank"] or 8, [place for place in PRODUCTS if place in on]
    values["model.adapters"] = {"rank": rank, "on": places}
