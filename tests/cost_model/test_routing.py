"""What the host does before a step to find out which documents a rank sends, as in Megatron-LM's schedulers."""

from random import Random

import pytest

from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

US = 10**6  # picoseconds
LOGNORMAL = {"kind": "lognormal", "mean": 1024, "sigma": 1.5, "min": 128, "max": 8192}
PACKINGS = {
    "none": {},
    "greedy": {"tokens": 8192},
    "balanced": {"tokens": 8192},
    "dynamic-context": {"tokens_per_rank": 2048},
}


def scenario(packing, lengths=LOGNORMAL, *, data=2, context=4, pipeline=1, steps=2, routing="0 s", seed=0):
    return scenario_from({
        "cluster": {"gpu": "h100", "gpus_per_node": data * context * pipeline},
        "model": {"base": "llama3.1-8b", "layers": 2},
        "parallel": {"context": context, "data": data, "pipeline": pipeline},
        "schedule": {"kind": "1f1b"},
        "batch": 8 * data,
        "data": {"lengths": lengths, "packing": packing, **PACKINGS[packing]},
        "efficiency": {"routing": routing},
        "steps": steps,
        "seed": seed,
    })  # fmt: skip


def asked(step, ranks, context):
    """The questions of the published loop: of every rank with the same place, about every document that it gets."""
    held = [[] for _ in range(ranks)]
    for packs in step.packed:
        rank = 0
        for pack in packs:
            for _ in range(pack.ranks):
                held[rank].extend(pack.documents)
                rank += 1
    return max(sum(len(held[rank]) for rank in range(place, ranks, context)) for place in range(context))


@pytest.mark.parametrize("packing", PACKINGS)
def test_documents_are_asked_for_on_ranks_of_one_place(packing):
    random = Random(41)
    for seed in range(8):
        data, context = random.choice([(1, 4), (2, 2), (4, 1), (2, 4), (4, 4), (8, 2)])
        packed = packed_steps(scenario(packing, data=data, context=context, seed=seed))
        expected = [asked(step, data * context, context) for step in packed.steps]
        assert list(packed.routed) == expected
        if packing != "dynamic-context":
            assert expected == [8 * data] * 2  # context ranks share every document


def ends(**values):
    steps = run(scenario(**values)).timeline.steps
    return [int(steps["end"][steps["step"] == step].max()) for step in range(2)]


@pytest.mark.parametrize(("packing", "pipeline"), [*((packing, 1) for packing in PACKINGS), ("dynamic-context", 2)])
def test_every_step_takes_six_operators_per_document_longer(packing, pipeline):
    values = {"packing": packing, "pipeline": pipeline, "data": 2 * pipeline, "context": 4 // pipeline}
    without, slower = ends(**values), ends(routing="10 us", **values)
    each = [6 * 10 * US * documents for documents in packed_steps(scenario(**values)).routed]
    assert slower == [end + sum(each[: step + 1]) for step, end in enumerate(without)]


def test_equal_documents_are_asked_for_too():
    lengths = {"kind": "fixed", "length": 4096}
    without, slower = (ends(packing="greedy", lengths=lengths, routing=time) for time in ("0 s", "10 us"))
    assert [after - before for before, after in zip(without, slower, strict=True)] == [
        step * 6 * 10 * US * 16 for step in (1, 2)
    ]
