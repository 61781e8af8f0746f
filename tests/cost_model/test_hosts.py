"""What hosts do for a layer: launches of kernels, and copies to and from their memory."""

import pytest

from hybrid_des import costs, load, simulate
from hybrid_des.errors import ScenarioError
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.workload.models.catalogue import model

SMALL = {
    "cluster": {"gpu": "h100", "gpus_per_node": 1},
    "model": {"base": "llama3-8b", "layers": 2},
    "schedule": {"microbatches": 2},
}
NO_HOST = {"launch": 0}
PARAMETERS = 2 * (4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096) + 2 * 128256 * 4096 + 4096


def table(**values):
    """The costs of the only stage."""
    return costs(SMALL | values).iloc[0]


def test_a_layer_takes_at_least_its_launches():
    counts = [layer.kernels() for layer in model(SMALL["model"]).layers]
    assert counts[1] == (4 + 2 + 5, 4 + 2 + 2 * 4 + 3)  # norms, passes, products and attention
    slow = table(efficiency={"launch": "10 ms"})
    assert slow.forward_s == pytest.approx(sum(forward for forward, _ in counts) * 0.01)
    assert slow.input_gradient_s + slow.weight_gradient_s == pytest.approx(sum(back for _, back in counts) * 0.01)
    assert table(efficiency={"launch": "1 ns"}).forward_s == table(efficiency=NO_HOST).forward_s


def test_collectives_of_a_layer_are_launched_too():
    alone = {"efficiency": {"launch": "10 ms"}}
    divided = {"tensor": 2, "sequence": True}
    found = load(SMALL | alone | {"cluster": {"gpu": "h100"}, "parallel": divided})
    layer = parts_of(found).costs.stages[0, 0].layers[1]
    kernels = model(SMALL["model"]).layers[1].kernels()
    waits = [sum(one.repeats * one.waits for one in way) for way in layer.collectives]
    assert layer.forward - waits[0] == (kernels[0] + 4) * 10**10
    assert layer.backward - waits[1] == (kernels[1] + 4) * 10**10


def test_graphs_launch_layers_but_for_experts():
    sparse = {"model": {"base": "qwen3-30b-a3b", "layers": 2}, "efficiency": {"launch": "1 ms"}}
    none, layers, full = (table(**sparse, cuda_graphs=graphs).forward_s for graphs in ("none", "layers", "full"))
    assert full == table(model=sparse["model"], efficiency=NO_HOST).forward_s
    assert none > layers > full
    of_experts = [layer.kernels(of_experts=True)[0] for layer in model(sparse["model"]).layers]
    assert of_experts == [0, 9, 9, 0]


def test_graphs_leave_experts_to_the_least_time_of_a_layer():
    sparse, floor = {"model": {"base": "qwen3-30b-a3b", "layers": 2}}, {"layer_overhead": "1 s", **NO_HOST}
    none, layers, full = (table(**sparse, efficiency=floor, cuda_graphs=how) for how in ("none", "layers", "full"))
    ends = table(**sparse, efficiency=NO_HOST).forward_s  # less than a millisecond
    (some, back), (of, of_back) = (model(sparse["model"]).layers[1].kernels(of_experts=one) for one in (True, False))
    assert none.forward_s == pytest.approx(2, abs=ends)
    assert layers.forward_s == pytest.approx(2 * some / of, abs=ends)
    both = none.input_gradient_s + none.weight_gradient_s, layers.input_gradient_s + layers.weight_gradient_s
    assert both == pytest.approx((4, 4 * back / of_back), abs=3 * ends)
    assert full.forward_s == ends


@pytest.mark.parametrize(("graphs", "late"), [("none", (2, 2)), ("layers", (1, 0)), ("full", (0, 0))])
def test_hosts_are_late_after_they_count_tokens(graphs, late):
    def waits(overhead):
        found = load({
            "model": {"base": "qwen3-30b-a3b", "layers": 1}, "cluster": {"gpu": "h100"}, "cuda_graphs": graphs,
            "parallel": {"data": 4, "expert": 4}, "schedule": {"kind": "1f1b"},
            "efficiency": {"exchange_overhead": overhead},
        })  # fmt: skip
        layer = parts_of(found).costs.stages[0, 0].layers[1]
        return [sum(one.exposed for one in way) for way in layer.collectives]

    more = [after - before for before, after in zip(waits(0), waits("1 ms"), strict=True)]
    assert more == [count * 10**9 for count in late]


def test_an_offloaded_optimizer_is_bound_by_the_link():
    plain, away = (simulate(SMALL | {"offload": {"optimizer": share}}).summary for share in (0, 1))
    moved = 12 * PARAMETERS
    assert plain["peak_memory_bytes"][0] - away["peak_memory_bytes"][0] == moved
    took = away["step_time_s"] - plain["step_time_s"]
    assert took == pytest.approx(moved / 63e9 - 40 * PARAMETERS / (0.8 * 3350e9), rel=1e-6)
    grace = simulate(SMALL | {"offload": {"optimizer": 1}, "cluster": SMALL["cluster"] | {"host": "450 GB/s"}}).summary
    assert away["step_time_s"] - grace["step_time_s"] == pytest.approx(moved / 63e9 - moved / 450e9, rel=1e-6)


def test_a_report_says_what_hosts_hold():
    text = simulate(SMALL | {"offload": {"optimizer": 0.8}, "cuda_graphs": "full"}).report(width=200)
    assert "80 % of optimizer state on hosts, a CUDA graph of the step" in text


def test_offloaded_activations_hide_behind_computation():
    plain = table()
    for share, host, hidden in ((0.5, "900 GB/s", True), (0.5, "1 GB/s", False)):
        away = table(offload={"activations": share}, cluster=SMALL["cluster"] | {"host": host})
        assert away.kept_bytes < plain.kept_bytes
        assert bool(away.forward_s == plain.forward_s) is hidden
    less = table(offload={"activations": 1}).kept_bytes
    assert less == plain.kept_bytes - 2 * 8192 * (2 * 6 * 4096 + 4 * 1024 + 6 * 14336)


def test_activations_of_stacks_that_fuse_less_are_larger():
    plain, more = table(), table(efficiency={"kept": 1.5})
    logits = plain.kept_bytes - 2 * 8192 * (2 * 6 * 4096 + 4 * 1024 + 6 * 14336)
    assert more.kept_bytes - logits == 1.5 * (plain.kept_bytes - logits)


@pytest.mark.parametrize("key", ["offload", "cuda_graphs"])
def test_hosts_are_asked_with_a_model_only(key):
    values = {"schedule": {"microbatches": 1}, "workload": {"forward": 1, "backward": 2}}
    with pytest.raises(ScenarioError, match=f"{key}: is read with `model` only"):
        scenario_from(values | {key: {"optimizer": 1} if key == "offload" else "full"})
