"""Generated scenarios: valid ones read back as they were, others are refused in whole lines."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import plain

from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.fractions() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
paths = [
    (name, *inner)
    for name, field in Scenario.model_fields.items()
    for inner in [(), *((key,) for key in getattr(field.annotation, "model_fields", ()))]
]


def put(mapping, changes):
    """The mapping with values at paths, as far as the paths lead through mappings."""
    for path, value in changes.items():
        section = mapping
        for key in path[:-1]:
            section = section.setdefault(key, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict):
            section[path[-1]] = value
    return mapping


def test_what_is_no_scenario_is_refused_in_whole_lines():
    refused = Counter()

    @given(st.dictionaries(st.sampled_from(paths), anything, max_size=4))
    def every_case(changes):
        try:
            scenario_from(put(plain(), changes))
        except ScenarioError as error:
            assert error.problems
            assert all(line.startswith("scenario: ") and line.isprintable() for line in error.problems)
            refused[True] += 1
        else:
            refused[False] += 1

    every_case()
    assert refused[True] >= refused[False], refused


numbers = st.integers(0, 10**6) | st.fractions(0, 10**6) | st.sampled_from(["50 ms", "1e-3", "2.5 us"])
counts = st.integers(0, 10**9) | st.sampled_from(["64 MiB", "1.5 GB", "3e6"])
valid = {
    ("name",): st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8),
    ("steps",): st.integers(1, 9),
    ("barrier",): st.booleans(),
    ("seed",): st.integers(0, 2**32),
    ("record",): st.sampled_from(["all", "compute", "none"]),
    ("on_oom",): st.sampled_from(["warn", "error"]),
    ("parallel", "order"): st.permutations(["tensor", "data", "pipeline"]),
    ("schedule", "microbatches"): st.integers(1, 99),
    ("schedule", "p2p"): st.sampled_from(["async", "blocking"]),
    ("workload", "forward"): numbers | st.tuples(numbers),
    ("workload", "backward"): numbers,
    ("workload", "recompute"): st.fractions(0, 1),
    ("workload", "activation"): counts,
    ("workload", "parameters"): st.integers(0, 10**9),
    ("workload", "memory"): st.fixed_dictionaries({"activation": counts}),
    ("cluster", "nvlink"): st.fixed_dictionaries({"latency": numbers}),
    ("gradients", "codec"): st.sampled_from(["fp16", "fp32", "int8"]),
    ("gradients", "overlap"): st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=valid))
def test_a_valid_scenario_reads_back_as_it_was(changes):
    scenario = scenario_from(put(plain(), changes))
    assert scenario_from(to_mapping(scenario)) == scenario
