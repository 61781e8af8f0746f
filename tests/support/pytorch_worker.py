"""One of several gloo processes that run order files in real PyTorch and compare with training in one process.

Usage: pytorch_worker.py RANK RANKS RENDEZVOUS_FILE ORDER.csv…
Prints, for each order: its name, the largest difference of a gradient (of a tensor's largest element), and that of a
micro-batch's loss.
"""

import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, SAMPLES = 8, 4
DTYPE = torch.float64


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def layer(stage: int) -> torch.nn.Module:
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH, dtype=DTYPE), torch.nn.Tanh())


def alone(stages: int, inputs, targets, microbatches: int):
    """Gradients and losses of the same model in one process."""
    model = torch.nn.Sequential(*(layer(stage) for stage in range(stages)))
    pairs = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    losses = [loss_of(model(x), y) for x, y in pairs]
    (sum(losses) / microbatches).backward()
    return [[p.grad for p in module.parameters()] for module in model], torch.stack(losses).detach()


def together(rank: int, ranks: int, path: Path):
    """Run one order; the largest differences of gradients (relative) and losses on this rank."""
    rows = [re.findall(r"(\d+)([FBIW])(\d+)", line) for line in path.read_text().splitlines()]
    stages = 1 + max(int(stage) for row in rows for stage, _, _ in row)
    microbatches = 1 + max(int(m) for row in rows for _, _, m in row)
    torch.manual_seed(1000)
    inputs, targets = (torch.randn(microbatches * SAMPLES, WIDTH, dtype=DTYPE) for _ in range(2))
    gradients, losses = alone(stages, inputs, targets, microbatches)

    mine = sorted({int(stage) for stage, _, _ in rows[rank]})
    modules = {stage: layer(stage) for stage in mine}
    parts = [PipelineStage(modules[stage], stage, stages, torch.device("cpu")) for stage in mine]
    schedule = _PipelineScheduleRuntime(parts, microbatches, loss_fn=loss_of)
    schedule._load_csv(str(path), format="compute_only")
    found = []
    has_first, has_last = 0 in mine, stages - 1 in mine
    schedule.step(*([inputs] if has_first else []), **({"target": targets, "losses": found} if has_last else {}))
    worst = max(
        float((p.grad - wanted).abs().max() / wanted.abs().max())
        for stage in mine
        for p, wanted in zip(modules[stage].parameters(), gradients[stage], strict=True)
    )
    loss = float((torch.stack(found).detach() - losses).abs().max()) if has_last else 0.0
    return worst, loss


def main():
    rank, ranks, rendezvous, *orders = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    for order in map(Path, orders):
        worst, loss = together(int(rank), int(ranks), order)
        print(order.stem, f"{worst:.3e}", f"{loss:.3e}", flush=True)
    dist.destroy_process_group()


main()
