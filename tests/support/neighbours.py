"""Two small jobs that share the adapters of four nodes."""

CLUSTER = {
    "nodes": 4, "gpus_per_node": 4, "topology": "leaf-spine", "leaf_size": 1,
    "infiniband": {"bandwidth": "10 GB/s", "latency": "2 us", "nics_per_node": 1},
}  # fmt: skip
GPT = {
    "parallel": {"pipeline": 2, "data": 2},
    "schedule": {"kind": "1f1b", "microbatches": 4},
    "workload": {"forward": "10 ms", "backward": "20 ms", "activation": "20 MB", "parameters": 5e7},
    "gradients": {"bucket": "50 MB", "overlap": True},
}
BERT = {
    "parallel": {"data": 4},
    "schedule": {"microbatches": 2},
    "workload": {"forward": "5 ms", "backward": "10 ms", "parameters": 3e7},
}
