import torch
from absent import AutoBridge
from common import common


def set_layout(model, layouts):
    stages = model.pipeline_model_parallel_size or 1
    if stages in layouts:
        model.pipeline_model_parallel_layout = layouts[stages]


def choose_dispatcher(model):
    major = torch.cuda.get_device_properties(0).major
    if major not in (9, 10):
        return
    model.moe_token_dispatcher_type = "flex"


def mixtral():
    cfg = common()
    cfg.model = AutoBridge.from_hf_pretrained("mistralai/Mixtral-8x7B-v0.1").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 8
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 256
    set_layout(cfg.model, {2: [["embedding"] + ["decoder"] * 17, ["decoder"] * 15 + ["loss"]]})
    choose_dispatcher(cfg.model)
    return cfg
