"""Documents that lanes share for a micro-batch only: dynamic context parallelism in a run."""

import numpy as np
import pytest

from hybrid_des import simulate
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.registry import import_file
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

SMALL = {"base": "llama3.1-8b", "layers": 2, "sequence": 4096}
GIVEN_BY_THE_RUN = ("wall_s", "events", "data", "scenario")


def given(data, parallel, **sections):
    """A small model on one node of H100s."""
    ranks = int(np.prod(list(parallel.values())))
    values = {"cluster": {"gpu": "h100", "gpus_per_node": ranks}, "model": SMALL, "schedule": {"kind": "1f1b"}}
    return scenario_from({**values, "parallel": parallel, "data": data, **sections})


def dynamic(lengths, **options):
    return {"lengths": lengths, "packing": "dynamic-context", **options}


@pytest.mark.parametrize("parallel", [{"data": 2, "context": 2}, {"data": 1, "context": 2, "tensor": 2, "pipeline": 2}])
def test_fixed_lengths_on_the_usual_ranks_take_the_usual_time(parallel):
    """Every document on two neighbouring ranks, as without the key: to the picosecond."""
    usual = given({"lengths": {"kind": "fixed"}}, parallel, batch=8, tensor_traffic="replay")
    documents = dynamic({"kind": "fixed"}, tokens_per_rank=2048, least=2)
    both = [simulate(one).summary for one in (usual, given(documents, parallel, batch=8, tensor_traffic="replay"))]
    for name in ("step_time_s", "idle_s", "bytes_context", "peak_memory_bytes", "mfu", "communication_s"):
        assert both[0][name] == both[1][name], name


VIRTUAL = {"kind": "interleaved-1f1b", "chunks": 2}


def test_virtual_stages_take_the_usual_time_too():
    parallel = {"data": 1, "context": 2, "pipeline": 2}
    model = SMALL | {"layers": 4}
    how = {"batch": 8, "model": model, "schedule": VIRTUAL, "tensor_traffic": "replay"}
    data = {"lengths": {"kind": "fixed"}}, dynamic({"kind": "fixed"}, tokens_per_rank=2048, least=2)
    usual, shared = (run(given(documents, parallel, **how)).duration for documents in data)
    assert usual == shared


@pytest.mark.parametrize("packing", ["greedy", "balanced", "dynamic-context"])
def test_micro_batches_are_a_multiple_of_ranks_with_virtual_stages(packing):
    parallel, model = {"data": 2, "pipeline": 4}, SMALL | {"layers": 8}
    data = {"lengths": {"kind": "lognormal", "mean": 700, "sigma": 1}, "packing": packing}
    counts, tokens = [], []
    for schedule in ({"kind": "1f1b"}, VIRTUAL):
        result = simulate(given(data, parallel, batch=44, model=model, schedule=schedule))
        counts.append(result.run.microbatches)
        tokens.append(result.summary["data"]["tokens"])
    assert counts[0] % 4 and counts[1] == -(-counts[0] // 4) * 4
    assert tokens[0] == tokens[1]


PLUG_IN = """
from hybrid_des.workload.packing.registration import packer

@packer("then-together", summary="a document on each lane, then the others on both", lanes=True)
def then_together(lengths, request):
    return [[[0], [1]], [[2, 3], [2, 3]]]
"""


@pytest.fixture
def then_together(write, scratch):
    """A long and a short document side by side, then one that both lanes share."""
    import_file(write(PLUG_IN, "then_together.py"))
    file = write("4096\n1024\n4096\n1024\n", "lengths.csv")
    data = {"lengths": {"kind": "file", "file": str(file)}, "packing": "then-together"}
    return given(data, {"data": 2}, batch=4)


def test_ranks_wait_for_those_that_share_their_next_document(then_together):
    result = run(then_together)
    lanes, waits = result.costs.lanes, result.timeline.waits
    took = [sum(lanes.cost(0, lane, 0, 0).time(kind) for kind in "FB") for lane in (0, 1)]
    assert waits["rank"].tolist() == [took.index(min(took))]
    assert int(waits["end"][0] - waits["start"][0]) == max(took) - min(took) > 0
    ops = result.timeline.ops
    shared = (ops["index"] >= 2) & (ops["rank"] < 2)
    begins = ops["start"][shared].reshape(-1, 2)
    assert len(begins) == 2
    assert (begins[:, 0] == begins[:, 1]).all()  # forward and backward


def test_waiting_for_shared_documents_has_a_cause_of_its_own(then_together):
    summary = simulate(then_together).summary
    waits = run(then_together).timeline.waits
    assert summary["idle_s"]["context_collective"] == pytest.approx(float((waits["end"] - waits["start"]).sum()) / 2e12)


def test_collectives_take_as_long_as_between_these_lanes():
    """Of two nodes, lanes of one exchange over NVLink, those of both over adapters."""
    data = dynamic({"kind": "fixed"}, tokens_per_rank=1024)
    apart = {"cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 2}, "batch": 4}
    inside = given(data, {"data": 4}, batch=4)
    outside = given(data, {"data": 4}, **apart)
    loads = [packed_steps(one).loads for one in (inside, outside)]
    assert loads[0] == loads[1]
    waits = [sum(one.exposed for one in run(one).costs.lanes.cost(0, 0, 0, 0).traffic) for one in (inside, outside)]
    assert 0 < waits[0] < waits[1]
