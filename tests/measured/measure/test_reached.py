"""What a GPU reached: planted rates are found again, from tables as `measure` writes them, without PyTorch."""

import pytest

from hybrid_des import load
from hybrid_des.cluster.operator_table import read_operator_table
from hybrid_des.cost_model.operation_times import Device, shape
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.measured.measure.chosen import Options
from hybrid_des.measured.measure.machine import Facts, as_yaml, machine_of
from hybrid_des.measured.measure.reached import reached_in
from hybrid_des.measured.measure.shapes import model_of, scenario_of_model, shape_of
from hybrid_des.measured.measure.trained import trained_on
from hybrid_des.measured.measure.training_step import layers_that_fit

GEMM, ATTENTION, MEMORY, LATENCY, BANDWIDTH, START = 0.6, 0.4, 0.7, 3e-6, 200e9, 12e-6
H100 = Facts("NVIDIA H100 80GB HBM3", "h100", 80 * 10**9, 132, 8, 8, on_gpu=True)
PEAK, MOVED = 989e12, 3.35e12
SIZES = [2**10, 2**16, 2**20, 2**26]


def operators(peak=PEAK, moved=MOVED, multiprocessors=132):
    products = [(4096, 6144, 4096), (4096, 4096, 6144), (8192, 28672, 4096)]
    rows = [
        {"operator": "gemm", "m": m, "n": n, "k": k,
         "seconds": 2 * m * n * k / (GEMM * peak * shape(m, n, k, 1, multiprocessors))}
        for m, n, k in products
    ]  # fmt: skip
    core = {"operator": "attention", "length": 4096, "heads": 32, "kv_heads": 8, "head_size": 128, "causal": 1}
    rows.append({**core, "seconds": 2 * 4096**2 * 32 * 128 / (ATTENTION * peak), "backward_s": 1})
    rows += [{"operator": "norm", "bytes": size, "seconds": size / (MEMORY * moved)} for size in (10**6, 10**8)]
    return [*rows, {"operator": "launch", "seconds": 2e-6}, {"operator": "residual", "seconds": 3},
            {"operator": "copy to host", "bytes": 1, "seconds": 1}]  # fmt: skip


def collectives():
    rows = [
        {"bytes": size, "time_us": 1e6 * (LATENCY + size / BANDWIDTH), "collective": "send-receive", "ranks": 8,
         "nodes": 1}
        for size in SIZES
    ]  # fmt: skip
    for ranks in (2, 4, 8):
        for size in SIZES:
            ring = 2 * (ranks - 1) * (LATENCY + size / ranks / BANDWIDTH)
            time = 1e6 * (ring + START * (1 + 0.2 * (ranks - 1)))
            rows.append({"bytes": size, "time_us": time, "collective": "all-reduce", "ranks": ranks, "nodes": 1})
    return rows


OVERLAPS = [
    {"work": "product", "beside": "all-reduce", "slowed": 0.3},
    {"work": "product", "beside": "copy", "slowed": 0.1},
    {"work": "memory", "beside": "all-reduce", "slowed": 0.15},
]


def test_planted_shares_of_a_known_gpu_are_found_again():
    reached = reached_in(H100, operators(), OVERLAPS, collectives(), "operators.csv")
    efficiency = reached.pop("efficiency")
    assert reached == {}  # the catalogue has its peaks
    shares = {"gemm": GEMM, "attention": ATTENTION, "memory": MEMORY, "slowed": 0.2, "slowed_memory": 0.15}
    assert {key: efficiency[key] for key in shares} == pytest.approx(shares, rel=0.02)
    assert (efficiency["launch"], efficiency["collective_overhead"]) == ("2 us", "12 us")


def test_an_unknown_device_has_its_best_rates_as_peaks(tmp_path):
    facts = Facts("a processor", None, 2**34, 1, 2, 2)
    reached = reached_in(facts, operators(1e12, 4e10, 1), [], [], "operators.csv")
    assert (reached["peak"], reached["bandwidth"]) == ("600 GFLOP/s", "28 GB/s")
    assert reached["efficiency"]["gemm"] == pytest.approx(1, rel=0.02)
    machine = machine_of(facts, {}, {**reached, "efficiency": {**reached["efficiency"], "table": None}})
    (tmp_path / "machine.yaml").write_text(as_yaml(machine))
    (tmp_path / "mine.yaml").write_text("base: machine.yaml\nmodel: {base: llama3.1-8b, layers: 1}\n")
    assert float(load(tmp_path / "mine.yaml").cluster.kinds[0].gpu.peak) == 600e9


def test_without_products_nothing_is_reached():
    assert reached_in(H100, [{"operator": "norm", "bytes": 1, "seconds": 1}], [], [], "operators.csv") == {}


def test_a_residual_makes_all_operators_longer_but_the_optimizer(tmp_path):
    path = tmp_path / "operators.csv"
    path.write_text(
        "operator,m,n,k,bytes,parameters,seconds,backward_s\ngemm,2,2,2,,,1,\nnorm,,,,10,,1,2\n"
        "optimizer,,,,,10,1,\nblock,,,,,,5,5\nresidual,,,,,,1.5,\n"
    )
    table = read_operator_table(path)
    assert table.product(2, 2, 2) == 1.5
    assert table.sized("norm", 10) == (1.5, 3)
    assert table.sized("optimizer", 10) == (1, 0)
    path.write_text(path.read_text().replace("1.5", "none"))
    with pytest.raises(UsageError, match="residual: expected a factor above 0, found none"):
        read_operator_table(path)


def test_a_table_tells_nothing_of_other_optimizers_than_it_has(tmp_path):
    path = tmp_path / "operators.csv"
    path.write_text("operator,m,n,k,bytes,parameters,seconds,backward_s\noptimizer,,,,,10,1,\n")
    device = Device(1e15, 1e15, 1e15, 1e12, 132, measured=read_operator_table(path))
    assert device.update(10, 12) == 1  # Adam with a copy and moments of 32 bits
    assert device.update(10, 8) == 10 * (16 + 2 * 8) / 1e12


def test_tensor_ranks_have_a_share_of_a_models_sizes():
    model, samples = model_of("llama3.1-8b")
    sizes = shape_of(scenario_of_model(model, samples, 2))
    assert (samples, sizes.hidden, sizes.heads, sizes.kv_heads) == (1, 4096, 16, 4)
    assert (sizes.ffn, sizes.vocab, sizes.head, sizes.mlp) == (7168, 64128, 128, "swiglu")


def test_models_whose_step_is_not_measured_say_why(tmp_path):
    with pytest.raises(Refusal, match="not measured of models with experts"):
        shape_of(scenario_of_model({"base": "mixtral-8x7b"}, 1, 1))
    with pytest.raises(UsageError, match=r'--model: unknown model "lama3.1-8b"; did you mean "llama3.1-8b"'):
        model_of("lama3.1-8b")
    (tmp_path / "none.yaml").write_text("workload: {forward: 1, backward: 2}\n")
    with pytest.raises(UsageError, match="has no `model`"):
        model_of(str(tmp_path / "none.yaml"))


def test_a_step_has_the_layers_that_fit():
    model, samples = model_of("llama3.1-8b")
    scenario = scenario_of_model(model, samples, 1)
    whole = shape_of(scenario)
    parameters = scenario.model.network.parameters
    fitting = layers_that_fit(whole, parameters, 80 * 10**9, on_gpu=True)
    each = (parameters - 2 * whole.vocab * whole.hidden) / 32
    assert 24 * (2 * whole.vocab * whole.hidden + fitting * each) <= 40e9
    assert 24 * (2 * whole.vocab * whole.hidden + (fitting + 1) * each) > 40e9
    assert layers_that_fit(whole, parameters, 10**9, on_gpu=True) == 1
    assert layers_that_fit(whole, parameters, 10**15, on_gpu=True) == 32
    assert layers_that_fit(whole, parameters, 10**15, on_gpu=False) == 2


def test_tensor_ranks_that_do_not_divide_processes_are_told(tmp_path):
    facts = Facts("a processor", None, 2**34, 1, 3, 3)
    trained = trained_on(facts, Options(tmp_path, model="llama3.1-8b", tensor=(1, 2)))
    assert [one.layout.data if one.layout else None for one in trained] == [3, None]
    assert trained[1].lacking == ["a step with tensor 2: expected a multiple of 2 processes, not 3"]
