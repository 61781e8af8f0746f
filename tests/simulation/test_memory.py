"""What a rank holds is what the papers count, and out of memory is told of the GPU that it happens to."""

import re
from fractions import Fraction

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from support.campaigns import thinned
from support.plans import rows
from support.scenarios import scenario
from support.sizes import chunks_of

from hybrid_des import plots
from hybrid_des.errors import OutOfMemoryError
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.simulation.memory import worst_peak

GB = 10**9
LARGE, SMALL = {"name": "large", "memory": "80 GB"}, {"name": "small", "memory": "40 GB"}


def unlike_nodes(activations, first=LARGE, second=SMALL, **more):
    """Two stages, the first on a node of one kind and the second on a node of another; 1F1B holds 2 and 1 of them."""
    return scenario_from(
        {
            "cluster": {"gpus_per_node": 1, "nodes": [{"gpu": first}, {"gpu": second}]},
            "parallel": {"pipeline": 2},
            "schedule": {"kind": "1f1b", "microbatches": 4},
            "workload": {"forward": "1 ms", "backward": "2 ms", "memory": {"activation": activations}},
            **more,
        }
    )


def test_the_report_names_the_gpu_that_exceeds_its_memory():
    result = simulate(unlike_nodes(["30 GB", "50 GB"]))  # rank 0 holds 60 of 80 GB, rank 1 holds 50 of 40 GB
    assert result.summary["out_of_memory"]
    assert re.search(r"memory +OUT OF MEMORY   peak 50 GB of 40 GB \(small\), on rank 1", result.report())


def test_without_a_problem_the_report_names_the_fullest_gpu():
    result = simulate(unlike_nodes(["20 GB", "35 GB"]))  # 40 of 80 GB, 35 of 40 GB
    assert not result.summary["out_of_memory"]
    assert re.search(r"memory +fits   peak 35 GB of 40 GB \(small\), on rank 1", result.report())


def test_the_error_names_the_gpu_that_exceeds_its_memory():
    message = r"rank 1 holds 50 GB; its GPU \(small\) has 40 GB"
    with pytest.raises(OutOfMemoryError, match=message):
        simulate(unlike_nodes(["30 GB", "50 GB"], on_oom="error"))
    with pytest.raises(OutOfMemoryError, match=r"rank 0 holds 120 GB; its GPU \(small\) has 40 GB"):
        simulate(unlike_nodes(["60 GB", "100 GB"], SMALL, LARGE, on_oom="error"))  # rank 1 exceeds by 20 GB only


def test_the_largest_excess_counts_not_the_largest_amount():
    scenario = unlike_nodes(["1 GB", "1 GB"])
    ranks = range(2)
    gpus = scenario.cluster.gpus_of(ranks)
    assert [gpu.name for gpu in gpus] == ["large", "small"]
    worst = worst_peak(ranks, [90 * GB, 60 * GB], gpus)
    assert (worst.rank, worst.held, worst.fits) == (1, 60 * GB, False)
    assert worst_peak(ranks, [80 * GB, 40 * GB], gpus).fits


def limits_drawn(scenario, replica=0):
    mpl.use("Agg")
    ax = plots.memory_curve(simulate(scenario).run, Figure().add_subplot(), replica)
    return {line.get_label(): line.get_ydata()[0] for line in ax.get_lines() if "memory of" in line.get_label()}


def test_the_memory_picture_draws_the_limit_of_each_gpu():
    assert limits_drawn(unlike_nodes(["30 GB", "50 GB"])) == {"memory of large": 80, "memory of small": 40}


def test_the_memory_picture_draws_only_limits_of_its_gpus():
    cluster = {"gpus_per_node": 2, "gpu": {"memory": "33 GB"}, "nodes": [{"gpu": LARGE}, {"gpu": SMALL}]}
    parallel = {"pipeline": 2, "data": 2, "order": ["pipeline", "data", "tensor"]}  # a replica in each node
    scenario = unlike_nodes(["20 GB", "35 GB"], cluster=cluster, parallel=parallel)
    assert limits_drawn(scenario, replica=0) == {"memory of large": 80}
    assert limits_drawn(scenario, replica=1) == {"memory of small": 40}


# model → pipeline ranks, micro-batches, their size, features, heads, and F, B, W in µs (Tables 3 and 6 of the paper)
PUBLISHED = {
    "1.5B": (8, 24, 6, 2304, 24, (18522, 18086, 9337)),
    "14.6B": (16, 48, 1, 5120, 40, (11347, 11248, 8132)),
}


@pytest.mark.parametrize("model", thinned(PUBLISHED, slow=["14.6B"]))
def test_more_activations_cost_what_was_measured(model):
    """GB above 1F1B, for three layers per rank and two on the first and the last; the paper rounds to whole GB."""
    p, m, size, features, heads, times = PUBLISHED[model]
    tokens = 1024
    layer = tokens * size * (34 * features + 5 * heads * tokens)  # bytes, Table 1
    f, b, w = (Fraction(time, 10**6) for time in times)
    memory = {
        "activation": [2 * layer, *[3 * layer] * (p - 2), 2 * layer],
        "weight_share": Fraction(32 * features, 34 * features + 5 * heads * tokens),
    }
    workload = {"forward": f, "backward": b + w, "weight": w, "memory": memory}
    measured = {
        row["schedule"]: int(row["peak_memory_GB"])
        for row in rows("zero_bubble_measured.csv")
        if (row["model"], row["m"]) == (model, str(m))
    }
    plain = most_held(scenario("1f1b", p, m, workload=workload))
    for limit in (1, 2):
        schedule = {"max_activations": limit * p}
        more = most_held(scenario("zb-auto", p, m, schedule=schedule, workload=workload)) - plain
        assert more / GB == pytest.approx(measured[f"ZB-{limit}p"] - measured["1F1B"], abs=1.5)


def most_held(chosen):
    return max(simulate(chosen).summary["peak_memory_bytes"])


@pytest.mark.parametrize(("share", "held"), [(0, [20, 10]), ("0.3", [20, 13]), (1, [20, 20])])
def test_a_split_backward_frees_its_two_parts_apart(share, held):
    """Rank 1 of ZB-H1 starts a forward while a micro-batch waits for its W."""
    workload = {"memory": {"activation": 10, "weight_share": share}}
    result = simulate(scenario("zb-h1", 2, 4, workload=workload)).summary
    assert result["peak_memory_bytes"] == held
    assert result["peak_activations"] == [size / 10 for size in held]


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1"])
def test_the_weight_part_of_a_backward_starts_with_less(kind):
    """One micro-batch on one rank: B needs all transients; I and W one after the other, W beside what I leaves."""
    model = {"base": "gpt2", "layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 512, "sequence": 64}
    chosen = scenario_from({"model": model, "schedule": {"kind": kind, "microbatches": 1}})
    result = simulate(chosen)
    (stage,) = result.run.costs.stages.values()
    inward, weights = stage.transients
    assert max(inward, weights) < stage.transient
    left = stage.freed("W", stage.kept)
    needed = stage.transient if kind == "1f1b" else max(inward, left - stage.kept + weights)
    assert result.summary["peak_memory_bytes"] == [stage.states.resident + stage.reserved + stage.kept + needed]


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved-1f1b", "hanayo", "chimera"])
def test_whole_backwards_ignore_the_weight_share(kind):
    sizes = {"schedule": {"chunks": chunks_of(kind)}}
    runs = [
        simulate(scenario(kind, 4, 8, **sizes, workload={"memory": {"activation": 10, "weight_share": share}})).summary
        for share in (0, 1)
    ]
    assert runs[0]["peak_memory_bytes"] == runs[1]["peak_memory_bytes"]
    assert runs[0]["peak_activations"] == runs[1]["peak_activations"]
