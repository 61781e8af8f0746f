from dataclasses import dataclass, field

import torch
from absent.config import ConfigContainer, DdpConfig, OptimizerConfig


@dataclass
class TrainConfig:
    global_batch_size: int = 32
    micro_batch_size: int = 1
    exit_tags: list = field(default_factory=lambda: ["a"])


def optimizer(lr=1e-4):
    return OptimizerConfig(lr=lr, exp_avg_dtype=torch.bfloat16, use_precision_aware_optimizer=True), None


def common():
    adam, scheduler = optimizer()
    return ConfigContainer(
        model=None,
        train=TrainConfig(),
        optimizer=adam,
        scheduler=scheduler,
        ddp=DdpConfig(use_distributed_optimizer=True, overlap_grad_reduce=True, grad_reduce_in_fp32=False),
        mixed_precision="bf16_mixed",
    )
