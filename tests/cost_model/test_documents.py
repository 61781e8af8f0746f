"""Documents of unequal length: laws of what they cost, in time, messages and memory."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from support.paths import SCENARIOS

from hybrid_des import simulate
from hybrid_des.cost_model.documents import Load, PackedSteps, packed_steps
from hybrid_des.planning.planner import parts_of
from hybrid_des.registry import import_file
from hybrid_des.scenario.loading import load, read_scenario, scenario_from
from hybrid_des.shortcuts.run import run

SMALL = {"base": "llama3.1-8b", "layers": 4, "sequence": 4096}
PS = 10**12
VARIES = ("wall_s", "events", "data")  # of a summary


def given(p=1, d=2, m=2, **sections):
    """A small model on one node of H100s, with documents."""
    data = {"lengths": {"kind": "lognormal", "mean": 1024, "sigma": 1}, "packing": "greedy"}
    values = {
        "cluster": {"gpu": "h100", "gpus_per_node": p * d * sections.get("parallel", {}).get("context", 1)},
        "model": SMALL,
        "parallel": {"pipeline": p, "data": d},
        "schedule": {"kind": "1f1b", "microbatches": m},
        "data": data,
    }
    return scenario_from({**values, **sections, "parallel": {**values["parallel"], **sections.get("parallel", {})}})


def with_a_model():
    """The shipped scenarios with a model of tokens, by name."""
    for file in sorted(SCENARIOS.glob("*.yaml")):
        model = read_scenario(file).value.get("model")
        if model not in (None, "none") and "vit" not in file.stem and "resnet" not in file.stem:
            yield pytest.param(file, id=file.stem, marks=() if file.stem == "first" else pytest.mark.slow)


def compared(result):
    return {key: value for key, value in result.summary.items() if key not in VARIES}


@pytest.mark.parametrize("file", list(with_a_model()))
@pytest.mark.parametrize("packing", ["none", "greedy"])
def test_fixed_lengths_equal_samples_to_the_picosecond(file, packing):
    documents = f"data={{lengths: {{kind: fixed}}, packing: {packing}}}"
    assert compared(simulate(load(file, [documents, "record=none"]))) == compared(simulate(load(file, ["record=none"])))


@pytest.mark.slow
def test_lanes_with_equal_documents_equal_samples_to_the_picosecond(monkeypatch):
    """The costs of every lane and micro-batch by themselves, as where they differ."""
    monkeypatch.setattr(PackedSteps, "varies", True)
    tensor = ["parallel.tensor=2", "parallel.pipeline=4", "schedule.microbatches=4", "sharding=zero-1"]
    for change in ([*tensor, "overlap.parameters=true"], ["schedule.kind=zb-h1", "schedule.microbatches=4"]):
        samples = simulate(load(SCENARIOS / "first.yaml", change))
        documents = simulate(load(SCENARIOS / "first.yaml", [*change, "data={lengths: {kind: fixed}}"]))
        assert documents.run.costs.lanes is not None
        assert compared(documents) == compared(samples)
        assert documents.summary["events"] == samples.summary["events"]


PLUG_IN = """
from hybrid_des.workload.packing.registration import packer

@packer("by-length", summary="the shortest documents on the first replica")
def by_length(lengths, request):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    replicas, half = [], 2 * len(lengths) // 3
    return [[order[:half]], [order[half:]]]
"""


@pytest.fixture
def twice_the_squares(write, scratch):
    """Replica 0 has four documents of 1,024 tokens, replica 1 two of 2,048: equal tokens, and twice the squares."""
    import_file(write(PLUG_IN, "by_length.py"))
    file = write("1024\n" * 4 + "2048\n" * 2, "lengths.csv")
    data = {"lengths": {"kind": "file", "file": str(file)}, "packing": "by-length"}
    return given(m=1, d=2, batch=6, schedule={"kind": "1f1b"}, data=data)


def test_a_replica_waits_for_one_with_twice_the_squares_exactly(twice_the_squares):
    """Attention: 4 · hidden FLOP per key that a query meets, half of them masked; 2.5 / 0.78 times in the backward."""
    result = run(twice_the_squares)
    loads = packed_steps(twice_the_squares).loads
    assert [(load.tokens, load.squares) for load in loads] == [(4096, 4 * 1024**2), (4096, 8 * 1024**2)]
    lanes, ops = result.costs.lanes, result.timeline.ops
    took = [sum(lanes.cost(0, lane, 0, 0).time(kind) for kind in "FB") for lane in (0, 1)]
    busy = [int((ops["end"] - ops["start"])[(ops["rank"] == rank) & (ops["index"] >= 0)].sum()) for rank in (0, 1)]
    assert busy == took
    steps = result.timeline.steps
    sent = [int(steps["sent"][steps["rank"] == rank][0]) for rank in (0, 1)]
    assert sent[1] - sent[0] == took[1] - took[0]
    flop = SMALL["layers"] * 4 * 4096 * (loads[1].squares - loads[0].squares) / 2
    efficiency, gpu = twice_the_squares.efficiency, twice_the_squares.cluster.gpu
    more = flop / float(gpu.peak * efficiency.attention) * (1 + 2.5 / 0.78)
    assert abs(took[1] - took[0] - more * PS) <= 2 * SMALL["layers"]  # each layer and pass is rounded


def test_the_step_is_that_of_the_busier_replica(twice_the_squares):
    """Nobody reduces before the last: both replicas with its documents take as long."""
    unequal = run(twice_the_squares)
    lengths = {"kind": "fixed", "length": 2048}
    equal = given(m=1, batch=4, schedule={"kind": "1f1b"}, data={"lengths": lengths, "packing": "greedy"})
    assert unequal.duration == run(equal).duration


@pytest.mark.slow
def test_the_mean_step_is_the_expected_maximum_over_replicas():
    """Against 10⁴ draws of our own of the maximum over 8 replicas of the sum of 4 documents' times."""
    values, weights, replicas, each = (512, 1024, 4096), (3, 2, 1), 8, 4
    times = []
    for length in values:
        data = {"lengths": {"kind": "fixed", "length": length}, "packing": "per-document"}
        costs = parts_of(given(m=each, d=replicas, data=data)).costs.stages[0, 0]
        times.append((costs.time("F") + costs.time("B")) / PS)
    rng = np.random.default_rng(1)
    drawn = rng.choice(times, (10**4, replicas, each), p=np.array(weights) / 6).sum(axis=2).max(axis=1)
    lengths = {"kind": "histogram", "values": list(values), "weights": list(weights)}
    data = {"lengths": lengths, "packing": "per-document"}
    steps = run(given(m=each, d=replicas, data=data, record="compute", steps=80)).timeline.steps
    order = np.lexsort((steps["rank"], steps["step"]))
    sent = ((steps["sent"] - steps["begin"])[order].reshape(80, replicas).max(axis=1)) / PS
    error = np.sqrt(np.var(sent) / len(sent) + np.var(drawn) / len(drawn))
    assert abs(np.mean(sent) - drawn.mean()) < 3 * error


def test_messages_and_activations_go_with_tokens():
    scenario = given(p=2, d=2, m=3)
    result = run(scenario)
    packed = packed_steps(scenario)
    assert result.bytes_pipeline == 2 * 2 * 4096 * packed.tokens  # an activation and its gradient, 2 bytes per element
    fixed = parts_of(given(p=2, d=2, m=3, data={"lengths": {"kind": "fixed"}})).costs
    for lane in (0, 1):
        tokens = [packed.load(0, microbatch, lane).tokens for microbatch in range(3)]
        rank = scenario.parallel.layout.rank(pipeline=1, data=lane)
        rows = result.timeline.memory
        held = rows["bytes"][rows["rank"] == rank]
        kept = [Fraction(fixed.stages[1, 0].kept, 4096) * number for number in tokens]
        assert abs(held.max() - held[0] - max(kept)) < len(kept)  # the last stage has one micro-batch in flight


def test_transients_are_those_of_the_largest_micro_batch():
    scenario = given(m=4)
    packed, costs = packed_steps(scenario), parts_of(scenario).costs
    for lane in (0, 1):
        of_lane = [packed.load(0, microbatch, lane) for microbatch in range(4)]
        most = max(of_lane, key=lambda load: load.tokens)
        largest = given(m=1, d=1, data={"lengths": {"kind": "fixed", "length": most.tokens}})
        assert costs.transients(0, lane) == parts_of(largest).costs.transients(0)


def test_padding_counts_as_work_but_not_as_tokens():
    lengths = {"kind": "histogram", "values": [512, 4096]}
    changed = {"schedule": {"kind": "1f1b", "microbatches": 2, "microbatch_size": 8}}
    plain, padded = (
        simulate(given(**changed, data={"lengths": lengths, "padded": padded})) for padded in (False, True)
    )
    assert padded.summary["data"]["tokens"] == plain.summary["data"]["tokens"]
    assert padded.summary["flop_per_step"] == plain.summary["flop_per_step"]
    assert padded.summary["data"]["padding"] > 0.2 and plain.summary["data"]["padding"] == 0
    assert padded.summary["step_time_s"] > 1.2 * plain.summary["step_time_s"]
    every = {load.tokens for load in packed_steps(padded.run.scenario).loads}
    assert every == {8 * 4096}


@pytest.mark.parametrize("context", [1, 2])
def test_micro_batches_may_be_padded_to_the_fullest(context):
    """The last document is lengthened, so that attention sees it longer too."""
    layout = {"parallel": {"context": context}, "steps": 2, "batch": 24, "schedule": {"kind": "1f1b"}}
    data = {"lengths": {"kind": "lognormal", "mean": 1024, "sigma": 1, "max": 4096}, "packing": "balanced"}
    plain, padded = (given(p=2, data={**data, "padded": how}, **layout) for how in (False, "step"))
    before, after = packed_steps(plain), packed_steps(padded)
    assert before.steps == after.steps
    fullest = []
    for step in range(2):
        places = [(step, microbatch, lane) for microbatch in range(after.microbatches) for lane in range(2 * context)]
        held = [before.load(*place).tokens for place in places]
        assert {after.load(*place).tokens for place in places} - {0} == {max(held)}
        for was, now in ((before.load(*place), after.load(*place)) for place in places):
            longer = Counter(now.lengths) - Counter(was.lengths)
            assert longer.total() == (now != was) and len(now.lengths) == len(was.lengths)
        fullest.append(max(held))
    assert fullest[0] != fullest[1]
    took = [simulate(one).summary for one in (plain, padded)]
    assert took[1]["step_time_s"] > took[0]["step_time_s"]
    assert took[1]["data"]["padding"] > took[0]["data"]["padding"]


def test_a_step_draws_documents_of_its_own():
    scenario = given(m=3, steps=3)
    packed = packed_steps(scenario)
    assert packed.steps[0] == packed_steps(given(m=3)).steps[0]
    assert len({step.lengths for step in packed.steps}) == 3
    steps = run(scenario).timeline.steps
    ends = [int(steps["end"][steps["step"] == step].max()) for step in range(3)]
    alone = int(run(given(m=3)).timeline.steps["end"].max())
    assert ends[0] == alone
    assert len({*np.diff([0, *ends])}) == 3


def test_steps_that_need_fewer_micro_batches_end_with_empty_ones():
    scenario = given(m=1, batch=12, schedule={"kind": "1f1b"}, steps=6)
    packed = packed_steps(scenario)
    counts = [len(step.packed) for step in packed.steps]
    assert len(set(counts)) > 1
    short = counts.index(min(counts))
    assert packed.load(short, packed.microbatches - 1, 0) == Load(0, 0, 1)
    alone = simulate(scenario)
    assert alone.summary["data"]["documents"] == 12
    assert alone.run.plan.microbatches == max(counts)


def test_context_ranks_split_every_document_or_take_whole_ones():
    ring, whole = (
        given(d=1, m=4, parallel={"context": 4, "context_method": method}) for method in ("ring", "per-document")
    )
    split, taken = packed_steps(ring), packed_steps(whole)
    assert all(load.ranks == 4 and load.tokens % 4 == 0 for load in split.loads)
    assert all(load.ranks == 1 for load in taken.loads)
    assert sum(taken.load(0, number, lane).tokens for number in range(4) for lane in range(4)) == taken.tokens
    results = [simulate(scenario).summary for scenario in (ring, whole)]
    assert [figures["communication_s"]["context"]["exposed"] > 0 for figures in results] == [True, False]


def test_replicas_with_sharded_weights_meet_in_every_layer():
    """Whole weights: who has less to compute is done earlier by just that; gathers of every layer leave less of it."""
    spread = {}
    for sharding in ("none", "zero-3"):
        result = run(given(d=4, m=2, sharding=sharding))
        ops, steps = result.timeline.ops, result.timeline.steps
        busy = np.bincount(ops["rank"][ops["index"] >= 0], (ops["end"] - ops["start"])[ops["index"] >= 0])
        spread[sharding] = int(np.ptp(steps["sent"])), int(np.ptp(busy))
    assert spread["none"][0] == spread["none"][1]
    assert spread["zero-3"][0] < spread["none"][0] / 2


def test_replicas_with_documents_of_their_own_are_not_folded():
    scenario = given(d=2, m=2, fold=1)
    with pytest.raises(Exception, match="fold: 1: with `data` every replica has its own documents"):
        run(scenario)
    assert run(given(d=2, m=2, fold=1, data={"lengths": {"kind": "fixed"}})).fold is not None


def test_plain_attention_costs_products_of_every_document():
    """Equal documents, packed, cost what as many samples do."""
    plain = {**SMALL, "attention": "plain", "sequence": 1024}
    samples = scenario_from({**given(model=plain).model_dump(include={"name"}), **_values(plain, 4)})
    packed = given(m=2, model=plain, data={"lengths": {"kind": "fixed"}, "packing": "greedy", "tokens": 4096})
    assert run(packed).duration == run(samples).duration


def _values(model, size):
    return {
        "cluster": {"gpu": "h100", "gpus_per_node": 2},
        "model": model,
        "parallel": {"data": 2},
        "schedule": {"kind": "1f1b", "microbatches": 2, "microbatch_size": size},
    }


def test_replay_of_layers_is_not_proven_where_replicas_end_apart():
    """Gradients of a replica that is done cross links of tensor ranks that still compute: these send messages."""
    sizes = {"cluster": {"gpu": "h100", "gpus_per_node": 4}, "parallel": {"tensor": 2}}
    equal, unequal = (
        simulate(given(**sizes, data={"lengths": lengths}))
        for lengths in ({"kind": "fixed"}, {"kind": "histogram", "values": [1024, 4096]})
    )
    assert equal.summary["tensor_traffic"] == {"tensor": "replay"}
    assert unequal.summary["tensor_traffic"] == {"tensor": "messages"}


def test_replay_of_layers_is_exact_where_nothing_shares_links():
    """Switches serve what ranks of their lane send in each step: NVLS takes some collectives, rings smaller ones."""
    sections = {
        "cluster": {"gpu": "h100", "gpus_per_node": 8, "nodes": 2},
        "model": SMALL | {"layers": 1},
        "parallel": {"tensor": 8},
        "data": {"lengths": {"kind": "histogram", "values": [64, 4096]}, "packing": "greedy"},
        "steps": 2,
    }
    replayed, messages = (simulate(given(**sections, tensor_traffic=traffic)) for traffic in ("auto", "messages"))
    assert replayed.summary["tensor_traffic"] == {"tensor": "replay"}
    for name in ("ops", "steps"):
        assert (
            getattr(replayed.run.timeline, name)["end"].tolist() == getattr(messages.run.timeline, name)["end"].tolist()
        )
