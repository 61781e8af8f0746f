"""The document that held a run, and what other packings would give."""

import pytest
from support.counterfactuals import ladder

from hybrid_des import explain, render_explanation
from hybrid_des.analysis.counterfactual.attribution import work_of_ranks
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.scenario.loading import scenario_from

LENGTHS = [4096, 512, 512, 512, 4000, 512, 512, 512]
SMALL = {
    "cluster": {"gpu": "h100", "gpus_per_node": 2},
    "model": {"base": "llama3.1-8b", "layers": 2, "sequence": 4096},
    "schedule": {"kind": "1f1b"},
    "parallel": {"data": 2},
    "batch": 8,
    "seed": 1,
}


@pytest.fixture
def packed(write):
    """Documents of a file, two to a micro-batch."""

    def build(packing="greedy", **more):
        file = write("\n".join(map(str, LENGTHS)), "lengths.csv")
        data = {"lengths": {"kind": "file", "file": str(file)}, "packing": packing}
        return scenario_from({**SMALL, "data": data, **more})

    return build


def test_the_longest_document_of_the_slowest_replica_held_the_step(packed):
    scenario = packed()
    documents = packed_steps(scenario)
    step = documents.steps[0]
    longest = step.lengths.index(max(step.lengths))
    ((microbatch, replica),) = [
        (number, place)
        for number, packs in enumerate(step.packed)
        for place, group in enumerate(packs)
        if longest in group.documents
    ]
    held = explain(scenario).document
    assert (held.tokens, held.step, held.replica, held.microbatch) == (4096, 0, replica, microbatch)
    assert held.context is None
    assert held.over_mean > 1


def test_time_over_the_mean_is_that_of_ops(packed):
    explanation = explain(packed())
    ops, held = explanation.run.timeline.op_rows(), explanation.document
    took = {}
    for rank, microbatch, start, end in zip(ops["rank"], ops["microbatch"], ops["start"], ops["end"], strict=True):
        if microbatch >= 0:
            took[rank, microbatch] = took.get((rank, microbatch), 0) + int(end - start)
    assert held.time == took[held.replica, held.microbatch]
    nonempty = [time for time in took.values() if time]
    assert held.over_mean == pytest.approx(held.time * len(nonempty) / sum(nonempty))


@pytest.mark.slow
def test_other_packings_are_tried(packed):
    explanation = explain(packed())
    assert "data.packing=balanced" in {one.change for one in explanation.proposals}
    assert "Long document" in render_explanation(explanation, details=True)
    assert "4,096 tokens" in render_explanation(explanation, details=True)


def test_equal_documents_hold_nothing(packed):
    scenario = packed(data={"lengths": {"kind": "fixed", "length": 1024}})
    assert explain(scenario).document is None


@pytest.mark.parametrize("packing", ["greedy", "balanced"])
def test_ranks_at_the_mean_compute_as_much_as_before(packed, packing):
    """Also where a step has fewer micro-batches than another, and the others are empty."""
    base = traced_run(packed(packing, steps=3))
    last = ladder(base)[-1].duration
    work = int(work_of_ranks(base).sum()) // base.scenario.parallel.ranks
    assert last == pytest.approx(work, rel=1e-6)
