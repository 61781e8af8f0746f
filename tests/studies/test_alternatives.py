"""What a step would take with sizes that tensor cores take whole."""

import pytest
import yaml

from hybrid_des import load
from hybrid_des.studies.alternatives import alignment, misaligned

SIZES = {"layers": 2, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 4096, "sequence": 256}


def given(model=(), **sections):
    return load({"model": SIZES | dict(model), "cluster": {"gpu": "h100"}, "schedule": {"microbatches": 2}, **sections})


def builder(model=()):
    def build(more):
        sections = {}
        for text in more:
            path, _, value = text.partition("=")
            section, _, key = path.partition(".")
            sections.setdefault(section, {})[key] = yaml.safe_load(value)
        return given(dict(model) | sections.pop("model", {}), **sections)

    return build


@pytest.mark.parametrize(("model", "parallel", "found"), [
    ({}, {}, []),
    ({"hidden": 600, "heads": 8, "attention": "plain"}, {}, [("model.head_size", 80)]),
    ({"vocab": 50257}, {"tensor": 4}, []),  # Megatron-LM pads it
    ({"vocab": 50257, "written": "jax"}, {"tensor": 4}, [("model.vocab", 50272)]),
    ({"ffn": 1000}, {"tensor": 8}, [("model.ffn", 1024)]),
])  # fmt: skip
def test_sizes_that_cost_tensor_cores_are_named(model, parallel, found):
    assert [(one.key, one.size) for one in misaligned(given(model, parallel=parallel))] == found


def test_the_next_aligned_size_is_simulated():
    odd = {"hidden": 600, "heads": 8, "attention": "plain"}
    (said,) = alignment(given(odd), 2.0, 100, builder(odd))
    assert said.startswith("model.heads: heads of 75 elements are no multiple of 8: plain attention runs without")
    assert "with 80 the step takes" in said
    assert said.endswith("instead of 2 s")
