"""Rates that the GPUs of a scenario achieve, and what their hosts do."""

from __future__ import annotations

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.cluster.operator_table import NONE_MEASURED
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.operation_times import OPERANDS, PASSES, PER_EXPERT, Device
from hybrid_des.scenario.scans import rates_of, share_of
from hybrid_des.scenario.sections.cluster import WIDE, Cluster
from hybrid_des.scenario.sections.efficiency import STREAMS, Efficiency

SUMS = {
    # whether sums of gradients have 16 bits, whether they are fused → bytes per weight that the product writes and
    # reads, and those moved after it: the gradient and a sum are read, the sum is written; or a fused sum of 16 bits is
    # read at the end of each tile, when nothing else runs on its multiprocessor. One of 32 bits counts as the product's
    # traffic, as when the efficiencies were fitted.
    (True, None): (2, 6), (True, False): (2, 6), (True, True): (2, 2),
    (False, None): (8, 0), (False, False): (2, 10), (False, True): (8, 0),
}  # fmt: skip


def host_bandwidth(cluster: Cluster) -> float:
    """Bytes per second and direction between a GPU and the memory of its host."""
    if cluster.host is not None:
        return float(cluster.host)
    name = cluster.kinds[0].gpu.name
    part = catalogue.part(name if name in catalogue.names() else catalogue.DEFAULT)
    return float((part.host or part.pcie).bandwidth)


def device_of(basis: CostBasis, efficiency: Efficiency) -> Device:
    """Rates that GPUs achieve; the checks of a scenario refuse GPUs that differ or lack a figure."""
    gpu = basis.cluster.kinds[0].gpu
    wide = basis.precision in WIDE
    peak, memory = gpu.peak_in(basis.precision if wide else "bf16"), float(gpu.bandwidth or 0)
    codec, fused, several, once = basis.accumulation
    # otherwise each micro-batch's gradients are scattered immediately
    whole = basis.sharding in ("none", "zero-1") or once
    rates = rates_of(basis.model.network) if basis.model is not None else ()
    accumulating, adding = SUMS[codec == "fp16", fused] if whole and several else (basis.element, 0)
    return Device(
        flops=gpu.peak_in(basis.precision) * float(efficiency.gemm),
        flops16=peak * float(efficiency.gemm_16bit or efficiency.gemm),
        attention=peak * float(efficiency.attention),
        grouped=float(efficiency.grouped),
        per_expert=PER_EXPERT if basis.experts.kernel == "per-expert" else 0.0,
        latent=float(efficiency.latent),
        half=float(efficiency.attention_half),
        head=float(efficiency.attention_head),
        memory=memory * float(efficiency.memory),
        multiprocessors=gpu.multiprocessors or 1,
        element=basis.element,
        operand=OPERANDS.get(basis.precision),
        passes=PASSES.get(basis.precision, 0),
        accumulating=accumulating,
        adding=adding,
        measured=efficiency.table or NONE_MEASURED,
        scans={
            rate: (memory if rate in STREAMS else peak) * (share_of(rate, efficiency, gpu.name) or 0.0)
            for rate in rates
        },
    )
