"""Random jobs below two leaf switches, of which images of all exchange the leaves; folded together, and whole."""

from random import Random
from typing import Any

from hybrid_des.cluster.fabric import placed
from hybrid_des.errors import HybridDesError
from hybrid_des.folding.joint_symmetry import FoldedLinks, JointLinks
from hybrid_des.planning.planner import parts_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.jobs import Jobs, load_jobs
from hybrid_des.shortcuts.joint_folds import Planned, joint_folds, joint_network
from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import JobRequest, run_jobs

ALGORITHMS = ("ring", "ring", "nccl", "halving-doubling", "recursive-doubling", "hierarchical", "parameter-server")


def jobs_values(rng: Random) -> dict[str, Any]:
    """Two or three jobs on nodes, or on GPUs of all nodes, in turn of both leaves."""
    nodes, gpus = rng.choice((4, 6, 8)), rng.choice((1, 2, 4))
    nics = rng.choice([nics for nics in (1, 2, 4) if gpus % nics == 0])
    cluster = {
        "nodes": nodes, "gpus_per_node": gpus, "topology": "leaf-spine", "leaf_size": nodes // 2,
        "infiniband": {"bandwidth": "10 GB/s", "latency": rng.choice(("0 s", "3 us")), "nics_per_node": nics},
        "oversubscription": rng.choice((1, 2, 4)), "sharing": rng.choice(("fair", "fair", "priority-fair")),
    }  # fmt: skip
    in_turn = [node for pair in zip(range(nodes // 2), range(nodes // 2, nodes), strict=True) for node in pair]
    count = rng.choice((2, 2, 3))
    if gpus >= count and rng.random() < 0.4:
        of_jobs = [[node * gpus + gpu for node in in_turn] for gpu in range(count)]
    else:
        each = max(2, nodes // count // 2 * 2)
        parts = [in_turn[first : first + each] for first in range(0, nodes - each + 1, each)][:count]
        of_jobs = [[node * gpus + gpu for node in mine for gpu in range(gpus)] for mine in parts]
    jobs = {f"job{number}": _job(rng, ranks) for number, ranks in enumerate(of_jobs)}
    return {"cluster": cluster, "jobs": jobs}


def _job(rng: Random, ranks: list[int]) -> dict[str, Any]:
    pipeline = rng.choice([size for size in (1, 1, 2) if len(ranks) % size == 0])
    gradients: dict[str, Any] = {"algorithm": rng.choice(ALGORITHMS), "codec": "bf16"}
    if rng.random() < 0.5:
        gradients |= {"overlap": True, "bucket": "50 MB"}
    return {
        "parallel": {"data": len(ranks) // pipeline, "pipeline": pipeline},
        "schedule": {"kind": "1f1b", "microbatches": rng.choice((1, 2, 3))},
        "workload": {"forward": f"{rng.choice((1, 3, 8))} ms", "backward": f"{rng.choice((2, 6))} ms",
                     "activation": "16 MiB", "parameters": rng.choice((10**6, 5 * 10**7))},
        "gradients": gradients, "ranks": ranks, "steps": rng.choice((1, 2, 3)),
        "start": f"{rng.choice((0, 0, 5, 13))} ms", "priority": rng.choice((0, 1)),
    }  # fmt: skip


def planned(jobs: Jobs) -> list[Planned]:
    """The jobs, which share links, with their parts."""
    first = jobs.jobs[0].scenario
    fabric = fabric_of(first.model_copy(update={"cluster": jobs.cluster}))
    of_jobs = [(one.scenario, placed(fabric, one.scenario.cluster.placement)) for one in jobs.jobs]
    return [Planned(scenario, parts_of(scenario, fabric=view)) for scenario, view in of_jobs]


def both_of(values: dict[str, Any]) -> tuple[list[FoldedLinks], list[Run], list[Run]] | None:
    """How jobs are folded, their folded runs, and those of all ranks; None if they are not folded, or impossible."""
    try:
        jobs = load_jobs(values).with_values(lambda _: {"record": "compute"})
        folds = joint_folds(each := planned(jobs))
        if folds is None:
            return None
        scenarios = [one.scenario for one in each]
        fabric = fabric_of(scenarios[0].model_copy(update={"cluster": jobs.cluster}))
        asked = [JobRequest(one.scenario, job.start, one.parts) for one, job in zip(each, jobs.jobs, strict=True)]
        images = [one._replace(network=joint_network(mine)) for one, mine in zip(asked, folds, strict=True)]
        links = JointLinks(fabric, scenarios[0].cluster.service)
        folded = run_jobs(images, links, repeat=True)
        return folds, folded, run_jobs(asked, links_of(scenarios[0], fabric), repeat=True)
    except HybridDesError:
        return None


def steps_of(run: Run) -> tuple[object, ...]:
    """What is read of a run whose rows nobody reads: the points in time of each step, totals, and the peak."""
    columns = (run.timeline.steps[name].tolist() for name in ("step", "begin", "sent", "reduced", "end"))
    totals = run.messages, run.bytes_pipeline, run.bytes_gradients, run.duration, run.scenario.steps
    return {*zip(*columns, strict=True)}, totals, max(run.peak_memory)
