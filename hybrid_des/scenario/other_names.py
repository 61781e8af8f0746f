"""Keys by the names that other tools give them, so that a message can say which key is meant.

The names are those of Megatron-LM (megatron/training/arguments.py), torchtitan, DeepSpeed, and the configurations of
Hugging Face models, and their usual abbreviations.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from hybrid_des.errors import LONGEST_SHOWN, one_line, unknown

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
    "sharding": "zero zero_stage fsdp distributed_optimizer use_distributed_optimizer",
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


def _keys_by_name() -> Mapping[str, list[str]]:
    found = defaultdict(list)
    for path, names in NAMES.items():
        for name in (path.rpartition(".")[2], *names.split()):  # its own name too: it may stand in another section
            found[name].append(path)
    return found


_KEYS = _keys_by_name()


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for an unknown key of a section: the key that is meant, if it is known, or similar ones."""
    meant = _KEYS.get(key.lower().replace("-", "_"))
    if meant is None:
        return unknown(key, known)
    named = " or ".join(f'"{path}"' for path in meant)
    return f'unknown "{one_line(key, LONGEST_SHOWN)}"; did you mean {named}?'
