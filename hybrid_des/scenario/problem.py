"""Problems of a scenario: where, what, and which other values they depend on.

Keys are also known by the names of other tools, so that a message can say which key is meant: those of Megatron-LM
(megatron/training/arguments.py), torchtitan, DeepSpeed, and the configurations of Hugging Face models, and their usual
abbreviations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, get_args, get_origin

from pydantic import ValidationError

from hybrid_des.errors import LONGEST_SHOWN, misspelled, one_line, unknown
from hybrid_des.options import Section, describe
from hybrid_des.scenario.strict_yaml import KeyPath

_REPHRASED = {  # types of pydantic's errors; {} is what was found
    "missing": "is required",
    "tuple_type": "expected a list, found {}",
    "model_type": "expected a mapping, found {}",
}


MOST_ELSEWHERE = 2  # paths that a message suggests


class Problem(NamedTuple):
    """A problem at a path; `needs` are the paths of all values involved."""

    path: KeyPath
    message: str
    needs: tuple[KeyPath, ...] = ()

    def below(self, *path: str | int) -> Problem:
        """The same problem, relative to an enclosing section."""
        return Problem((*path, *self.path), self.message, tuple((*path, *need) for need in self.needs))


def misfit(message: str, at: str, *others: str) -> Problem:
    """A contradiction between the values at dotted paths, told at the first; `slow.0` is a position in a list."""
    paths = [tuple(int(key) if key.isdecimal() else key for key in path.split(".")) for path in (at, *others)]
    return Problem(paths[0], message, tuple(paths))


class Problems(ValueError):
    """Several problems at or below one place."""

    def __init__(self, items: Sequence[Problem]) -> None:
        super().__init__("; ".join(item.message for item in items))
        self.items = tuple(items)


def problems_in(error: ValidationError, model: type[Section]) -> list[Problem]:
    """Rephrase pydantic's findings about a section."""
    problems = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(item["loc"])
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            problems += [inner.below(*path) for inner in cause.items]
        elif item["type"] == "extra_forbidden":
            known = next(sections_at(model, path[:-1])).known_keys()
            problems.append(Problem(path, unknown_key(str(path[-1]), known, paths_of(str(path[-1]), model))))
        else:
            message = _REPHRASED.get(item["type"], "").format(describe(item["input"]))
            problems.append(Problem(path, message or str(cause or item["msg"])))
    return problems


def sections_at(model: type[Section], path: KeyPath) -> Iterator[type[Section]]:
    """The section types possible at a path below one; none below a plain value."""
    keys = [key for key in path if isinstance(key, str)]  # list positions do not change the type
    if not keys:
        yield model
        return
    for field in model.known_keys().get(keys[0], ()):
        for inner in sections_in(field.annotation):
            yield from sections_at(inner, tuple(keys[1:]))


def paths_of(key: str, model: type[Section]) -> list[str]:
    """The paths below a section that end in a key, shortest first; none leads through a list."""
    return [".".join(path) for path in _paths(model) if path[-1] == key]


@cache
def _paths(model: type[Section]) -> list[tuple[str, ...]]:
    """All paths of keys below a section, shortest first; a section in itself is not followed."""
    paths: list[tuple[str, ...]] = []
    waiting: list[tuple[tuple[str, ...], type[Section], tuple[type[Section], ...]]] = [((), model, (model,))]
    for above, section, users in waiting:
        for key, fields in section.known_keys().items():
            paths.append((*above, key))
            inner = {one for each in fields for one in sections_in(each.annotation, lists=False)} - {*users}
            waiting += (((*above, key), one, (*users, one)) for one in sorted(inner, key=str))
    return list(dict.fromkeys(paths))


def sections_in(annotation: object, *, lists: bool = True) -> Iterator[type[Section]]:
    """The section types in a field's annotation, with those in lists or without."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    if lists or get_origin(annotation) is not tuple:
        for part in get_args(annotation):
            yield from sections_in(part, lists=lists)


NAMES: Mapping[str, str] = {  # key → its other names
    "cluster.nodes": "num_nodes nnodes",
    "cluster.gpus_per_node": "num_gpus_per_node nproc_per_node gpus_per_host",
    "parallel.tensor": "tp tp_size tensor_parallel tensor_parallel_size tensor_parallel_degree "
    "tensor_model_parallel_size",
    "parallel.pipeline": "pp pp_size pipeline_parallel pipeline_parallel_size pipeline_parallel_degree "
    "pipeline_model_parallel_size",
    "parallel.data": "dp dp_size data_parallel data_parallel_size data_parallel_replicate_degree replicas",
    "parallel.context": "cp cp_size context_parallel context_parallel_size context_parallel_degree",
    "parallel.expert": "ep ep_size expert_parallel expert_parallel_size expert_parallel_degree "
    "expert_model_parallel_size",
    "parallel.sequence": "sp sequence_parallel",
    "schedule.chunks": "vpp vp virtual_stages virtual_pipeline num_model_chunks num_virtual_stages_per_pipeline_rank "
    "virtual_pipeline_model_parallel_size",
    "schedule.microbatch_size": "mbs micro_batch_size micro_batch microbatch train_micro_batch_size_per_gpu "
    "per_device_train_batch_size",
    "schedule.microbatches": "num_microbatches num_micro_batches micro_batches gradient_accumulation_steps",
    "batch": "gbs global_batch_size global_batch batch_size train_batch_size",
    "recompute": "recompute_granularity activation_checkpointing gradient_checkpointing",
    "sharding": "zero zero_stage",
    "gradients.overlap": "overlap_grad_reduce",
    "gradients.bucket": "bucket_size ddp_bucket_size bucket_cap_mb",
    "model.layers": "num_layers n_layers n_layer num_hidden_layers",
    "model.hidden": "hidden_size hidden_dim d_model n_embd dim",
    "model.heads": "num_attention_heads num_heads n_heads n_head",
    "model.kv_heads": "num_query_groups num_key_value_heads num_kv_heads n_kv_heads",
    "model.head_size": "kv_channels head_dim",
    "model.ffn": "ffn_hidden_size intermediate_size d_ff",
    "model.vocab": "vocab_size padded_vocab_size",
    "model.sequence": "seq_length seq_len seqlen sequence_length max_seq_len max_position_embeddings",
    "model.experts.count": "num_experts num_local_experts n_experts",
    "model.experts.active": "moe_router_topk num_experts_per_tok top_k",
}

_WITH_VALUES = {  # switches of others, which are values of a key here
    "fsdp": "sharding: zero-3", "fsdp2": "sharding: zero-3", "fully_shard": "sharding: zero-3",
    "distributed_optimizer": "sharding: zero-1", "use_distributed_optimizer": "sharding: zero-1",
}  # fmt: skip


def _keys_by_name() -> Mapping[str, list[str]]:
    paths = defaultdict(list)
    for path, names in NAMES.items():
        for name in (path.rpartition(".")[2], *names.split()):  # its own name too: it may stand in another section
            paths[name].append(path)
    return paths | {name: [path] for name, path in _WITH_VALUES.items()}


_KEYS = _keys_by_name()


def unknown_key(key: str, known: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """The message for an unknown key of a section: the key that is meant, if it is known, or similar ones.

    Args:
        key: what was given.
        known: the section's keys.
        elsewhere: paths of other sections that end in this key.
    """
    meant: Sequence[str] | None = _KEYS.get(key.lower().replace("-", "_"))
    if meant is None and not misspelled(key, known := [*known]):
        meant = elsewhere[:MOST_ELSEWHERE]
    if not meant:
        return unknown(key, known)
    named = " or ".join(f'"{path}"' for path in meant)
    return f'unknown "{one_line(key, LONGEST_SHOWN)}"; did you mean {named}?'
