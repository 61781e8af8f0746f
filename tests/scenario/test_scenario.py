"""Scenarios: the contract's defaults, exact quantities, and one clear line for each thing that is wrong."""

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import PACKAGE
from support.scenarios import MINIMAL, values

import hybrid_des
from hybrid_des import hardware as catalogue
from hybrid_des import load
from hybrid_des.errors import ScenarioError
from hybrid_des.pipeline import schedules
from hybrid_des.scenario import Parallel, Scenario, json_schema, scenario_from, to_mapping


def plain(**sections):
    """The smallest scenario as a mapping, with sections put in its place."""
    return {key: values()[key] for key in ("schedule", "workload")} | sections


@pytest.fixture
def problems(write):
    """What is wrong with a scenario file, line by line, without the file's name."""

    def problems(text, *overrides):
        file = write(text)
        with pytest.raises(ScenarioError) as error:
            load(file, overrides)
        assert str(error.value) == "\n".join(error.value.problems)
        return [line.replace(f"{file}:", "") for line in error.value.problems]

    return problems


def test_the_defaults_are_the_contracts(write):
    scenario = load(write(MINIMAL, "tiny.yaml"))
    assert (scenario.version, scenario.name, scenario.description) == (1, "tiny", "")
    cluster = scenario.cluster
    assert (cluster.gpu.name, cluster.gpu.memory, cluster.gpu.peak) == ("a100-80gb", 80 * 10**9, 312 * 10**12)
    assert (cluster.nodes, cluster.gpus_per_node, cluster.topology, cluster.sharing) == (1, 8, "nodes", "fifo")
    assert (cluster.nvlink.bandwidth, cluster.nvlink.latency) == (300 * 10**9, Fraction(3, 2 * 10**6))
    assert (cluster.infiniband.bandwidth, cluster.infiniband.latency) == (25 * 10**9, Fraction(5, 10**6))
    assert cluster.infiniband.nics_per_node == 8
    assert scenario.parallel == Parallel(pipeline=1, data=1, tensor=1, order=("tensor", "data", "pipeline"))
    schedule = scenario.schedule
    assert (schedule.chunks, schedule.options, schedule.p2p) == (1, None, "async")
    workload = scenario.workload
    assert (workload.per, workload.weight, workload.recompute, workload.activation) == ("rank", None, 0, 0)
    assert (workload.parameters, workload.optimizer) == (0, 0)
    assert (workload.memory.per_parameter, workload.memory.activation) == (16, 0)
    gradients = scenario.gradients
    assert (gradients.algorithm, gradients.codec, gradients.bucket, gradients.overlap) == ("ring", "fp32", None, False)
    assert (scenario.steps, scenario.barrier, scenario.seed) == (1, True, 0)
    assert (scenario.on_oom, scenario.record, scenario.numerics) == ("warn", "all", None)


def test_quantities_are_exact(write):
    scenario = load(
        write(
            """
            parallel: {pipeline: 2}
            schedule: {kind: gpipe, microbatches: 1e1, backward_order: lifo}
            workload:
              forward: [0.1, 50 ms]
              backward: 1e-1
              weight: 10 ms
              recompute: 0.3
              activation: 64 MiB
              parameters: 125e6
              memory: {per_parameter: 0.5 B, activation: [1.2 GB, 0]}
            cluster:
              gpu: {memory: 24 GiB}
              nvlink: {bandwidth: inf}
              infiniband: {latency: 0, nics_per_node: 2}
            """.replace("\n            ", "\n")
        )
    )
    assert scenario.schedule.microbatches == 10
    assert scenario.schedule.options.backward_order == "lifo"
    assert scenario.workload.forward == (Fraction(1, 10), Fraction(1, 20))
    assert scenario.workload.backward == Fraction(1, 10)
    assert scenario.workload.recompute == Fraction(3, 10)
    assert scenario.workload.parameters == 125 * 10**6
    assert scenario.workload.memory.per_parameter == Fraction(1, 2)
    assert scenario.workload.memory.activation == (12 * 10**8, 0)
    assert (scenario.cluster.gpu.name, scenario.cluster.gpu.memory) == ("custom", 24 * 2**30)
    assert (scenario.cluster.nvlink.bandwidth, scenario.cluster.nvlink.latency) == (None, Fraction(3, 2 * 10**6))
    assert scenario.cluster.infiniband.bandwidth == 25 * 10**9


def test_a_scenario_does_not_change():
    scenario = scenario_from(plain())
    with pytest.raises(ValueError, match="frozen"):
        scenario.steps = 2
    with pytest.raises(ValueError, match="frozen"):
        scenario.workload.forward = 2


@pytest.mark.parametrize("kind", schedules.names())
def test_every_kind_brings_its_own_defaults(kind):
    entry = schedules.find(kind)
    schedule = scenario_from(plain(schedule={"kind": kind, "microbatches": 8}, parallel={"pipeline": 4})).schedule
    assert schedule.chunks == (entry.facts["chunks"] or 1)
    if "max_activations" in entry.keys:
        assert schedule.options == entry.options(max_activations=8)
    else:
        assert schedule.options == (entry.options and entry.options())


def test_a_limit_may_be_a_multiple_of_the_ranks():
    kinds = [name for name in schedules.names() if "max_activations" in schedules.find(name).keys]
    for kind in kinds:
        for text, value in (("p", 4), ("1.5p", 6), ("2 p", 8), (3, 3), ("2.5", Fraction(5, 2))):
            schedule = {"kind": kind, "microbatches": 8, "max_activations": text}
            read = scenario_from(plain(schedule=schedule, parallel={"pipeline": 4})).schedule
            assert read.options.max_activations == value
        for text in ("2q", "p2", "-1", 0):
            schedule = {"kind": kind, "microbatches": 8, "max_activations": text}
            with pytest.raises(ScenarioError, match="max_activations"):
                scenario_from(plain(schedule=schedule, parallel={"pipeline": 4}))


def test_all_mistakes_are_told_at_once_in_file_order(problems):
    text = """\
name: bad
clutser: {nodes: 2}
parallel:
  pipline: 4
  data: 0
  order: [data, pipeline]
schedule:
  kind: 1f2b
  microbatches: 4.5
workload:
  forward: 50 mss
  backward: [1, x, -3]
  weight: 0
cluster:
  gpu: a100-80
  nodes: 1
  nvlink: {bandwidth: 0, latency: inf}
  infiniband: 25 GB/s
barrier: yes
record: 'no'
"""
    assert problems(text) == [
        '2: clutser: unknown "clutser"; did you mean "cluster"?',
        '4: parallel.pipline: unknown "pipline"; did you mean "pipeline"?',
        "5: parallel.data: must be at least 1, not 0",
        "6: parallel.order: expected the three axes tensor, data, pipeline in some order, each once",
        '8: schedule.kind: unknown "1f2b"; did you mean "1f1b"?',
        "9: schedule.microbatches: expected a whole number, found 4.5",
        '11: workload.forward: unknown unit "mss"; expected a time such as 50 ms',
        '12: workload.backward[1]: "x" is not a quantity; expected a time such as 50 ms',
        "12: workload.backward[2]: -3 is negative; expected a time such as 50 ms",
        '15: cluster.gpu: unknown "a100-80"; did you mean "a100-80gb"?',
        "17: cluster.nvlink.bandwidth: a bandwidth of 0 delivers nothing; "
        "expected a bandwidth such as 25 GB/s or 200 Gb/s, or inf for a free link",
        '17: cluster.nvlink.latency: "inf" is not a quantity; expected a time such as 50 ms',
        '18: cluster.infiniband: expected a mapping, found "25 GB/s"',
        '19: barrier: expected true or false, found "yes"',
        '20: record: unknown "no"; did you mean "none"?',
    ]


def test_conflicts_are_told_beside_single_mistakes(problems):
    text = """\
parallel: {pipeline: 4, data: 3}
schedule: {kind: gpipe, microbatches: 4, chunks: 2, fused: false}
workload:
  forwards: 1
  forward: [1, 2]
  backward: 2 s
  weight: 3 s
"""
    found = problems(text)
    assert found[0] == (
        "1: parallel: 12 ranks (pipeline 4 × data 3 × tensor 1) need one GPU each; "
        "the cluster has 8 (nodes 1 × gpus_per_node 8)"
    )
    assert found[1] == "2: schedule.chunks: gpipe has 1 per rank, not 2"
    assert found[2].startswith("2: schedule.fused: is not read by gpipe")
    assert found[3:] == [
        '4: workload.forwards: unknown "forwards"; did you mean "forward"?',
        "5: workload.forward: found a list of 2; expected 4, one per pipeline rank",
        "7: workload.weight: the weight gradient takes 3 s, more than the whole backward (2 s)",
    ]


def test_no_verdict_rests_on_a_value_that_is_itself_wrong(problems):
    """The list would not fit a pipeline of 1, and 9 GPUs would not fit either: but neither size is known."""
    text = MINIMAL.replace("1 s", "[1, 1]") + "parallel: {pipeline: two, data: 9}\ncluster: {nodes: x}\n"
    assert problems(text) == [
        '3: parallel.pipeline: expected a whole number, found "two"',
        '4: cluster.nodes: expected a whole number, found "x"',
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version: must be at most 1, not 2"),
        ({"name": 5}, "name: expected a string, found 5; quote it if it is meant as one"),
        ({"seed": -1}, "seed: must be at least 0, not -1"),
        ({"steps": 0}, "steps: must be at least 1, not 0"),
        ({"steps": True}, "steps: expected a whole number, found true"),
        ({"barrier": 1}, "barrier: expected true or false, found 1"),
        ({"on_oom": "eror"}, 'on_oom: unknown "eror"; did you mean "error"?'),
        ({"parallel": {"pipeline": 0}}, "parallel.pipeline: must be at least 1, not 0"),
        ({"parallel": {"pipeline": -4}}, "parallel.pipeline: must be at least 1, not -4"),
        ({"parallel": {"pipeline": "4"}}, 'parallel.pipeline: expected a whole number, found "4"'),
        ({"parallel": {"order": "data"}}, "parallel.order: expected the three axes tensor, data, pipeline in some"),
        ({"parallel": None}, "parallel: expected a mapping, found nothing"),
        ({"parallel": []}, "parallel: expected a mapping, found a list"),
        ({"cluster": {"gpu": 3}}, "cluster.gpu: expected a name such as a100-80gb, or its figures, found 3"),
        ({"cluster": {"gpu": {"peak": 1}}}, "cluster.gpu.memory: is required"),
        ({"cluster": {"gpu": {"memory": "0.3 B"}}}, 'cluster.gpu.memory: "0.3 B" is not a whole number of bytes'),
        ({"cluster": {"gpu": {"memory": 1, "peek": 1}}}, 'cluster.gpu.peek: unknown "peek"; did you mean "peak"?'),
        ({"cluster": {"nodes": 0}}, "cluster.nodes: must be at least 1, not 0"),
        ({"cluster": {"gpus_per_node": 0}}, "cluster.gpus_per_node: must be at least 1, not 0"),
        ({"cluster": {"nodes": 10**6, "gpus_per_node": 10**6}}, "more than can be simulated"),
        ({"cluster": {"infiniband": {"nics_per_node": 0}}}, "nics_per_node: must be at least 1, not 0"),
        ({"cluster": {"infiniband": {"nics": 8}}}, 'unknown "nics"; did you mean "nics_per_node"?'),
        ({"cluster": {"nvlink": {"bandwidth": "25 GB"}}}, "is a size; expected a bandwidth"),
        ({"cluster": {"nvlink": {"bandwidth": float("-inf")}}}, "expected a bandwidth"),
        ({"cluster": {"topology": "node"}}, 'cluster.topology: unknown "node"; did you mean "nodes"?'),
        ({"schedule": {"microbatches": 4}}, "schedule.kind: is required, one of"),
        ({"schedule": {"kind": "1f1b"}}, "schedule.microbatches: is required"),
        ({"schedule": {"kind": "1f1b", "microbatches": 2**20}}, "must be at most 1048575"),
        ({"schedule": {"kind": "1f1b", "microbatches": 4, "backward_order": "lifo"}}, "is not read by 1f1b; read by"),
        ({"schedule": {"kind": "1f1b", "microbatches": 4, "chunks": 2}}, "schedule.chunks: 1f1b has 1 per rank, not 2"),
        ({"schedule": {"kind": "zb-v", "microbatches": 4, "chunks": 1}}, "schedule.chunks: zb-v has 2 per rank, not 1"),
        ({"schedule": {"kind": "zb-v", "microbatches": 4, "max_activations": "3p"}}, "is not read by zb-v"),
        ({"workload": {"backward": 1}}, "workload.forward: is required"),
        ({"workload": {"forward": 1, "backward": None}}, "workload.backward: expected a time such as 50 ms, found not"),
        ({"workload": {"forward": [], "backward": 1}}, "found a list of 0; expected 1"),
        ({"workload": {"forward": [[1]], "backward": 1}}, "workload.forward[0]: expected a time such as 50 ms, found"),
        ({"workload": {"forward": float("inf"), "backward": 1}}, "inf is allowed for a bandwidth only"),
        ({"workload": {"forward": float("nan"), "backward": 1}}, "workload.forward:"),
        ({"workload": {"forward": "200 days", "backward": 1}}, 'unknown unit "days"'),
        ({"workload": {"forward": "9999 h", "backward": 1}}, "is more than can be simulated (at most 1e6 s)"),
        ({"workload": {"forward": 1, "backward": 1, "recompute": 1.5}}, "recompute: must be from 0 to 1, not 1.5"),
        ({"workload": {"forward": 1, "backward": 1, "recompute": [2]}}, "recompute: must be from 0 to 1, not 2"),
        (
            {"workload": {"forward": 1, "backward": [1], "weight": [2]}},
            "workload.weight: the weight gradient takes 2 s",
        ),
        ({"workload": {"forward": [1], "backward": 1, "per": "model"}}, "`per: model` takes one number"),
        ({"workload": {"forward": 1, "backward": 1, "per": "stage"}}, 'workload.per: unknown "stage"; expected one'),
        ({"workload": {"forward": 1, "backward": 1, "memory": 3}}, "workload.memory: expected a mapping, found 3"),
        ({"gradients": {"codec": "fp33"}}, 'gradients.codec: unknown "fp33"; did you mean "fp32"?'),
        ({"gradients": {"algorithm": "rings"}}, 'gradients.algorithm: unknown "rings"; did you mean "ring"?'),
    ],
)
def test_one_mistake_is_one_line(change, said):
    with pytest.raises(ScenarioError) as error:
        scenario_from(plain(**change), source="here")
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith("here: ")
    assert said in error.value.problems[0]


def test_tensor_parallelism_is_refused_beside_other_mistakes(problems):
    found = problems(MINIMAL + "parallel: {tensor: 2, data: 8}\nsteps: 0\n")
    assert found == [
        "3: parallel: 16 ranks (pipeline 1 × data 8 × tensor 2) need one GPU each; "
        "the cluster has 8 (nodes 1 × gpus_per_node 8)",
        "3: parallel.tensor: tensor parallelism is not available in this version; expected 1",
        "4: steps: must be at least 1, not 0",
    ]


def test_a_memory_without_a_unit_is_in_bytes():
    assert scenario_from(plain(cluster={"gpu": {"memory": "80"}})).cluster.gpu.memory == 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", " is empty; expected keys such as schedule: and workload:"),
        ("# nothing\n", " is empty; expected keys such as schedule: and workload:"),
        ("hello", ' contains "hello"; expected keys such as schedule: and workload:'),
        ("- 1", " contains a list; expected keys such as schedule: and workload:"),
    ],
)
def test_a_file_that_is_no_scenario_says_what_it_is(problems, text, said):
    assert problems(text) == [said]


def test_overrides_take_the_place_of_what_the_file_says(write):
    file = write(MINIMAL + "parallel: {pipeline: 2}\n")
    scenario = load(
        file,
        [
            "schedule.kind=gpipe",
            "parallel.pipeline=4",
            "parallel.pipeline=8",
            "workload.forward=[1, 2, 3, 4, 5, 6, 7, 8 ms]",
            "workload.forward.0=50 ms",
            "cluster.nvlink={bandwidth: inf}",
            "description=a=b",
        ],
    )
    assert (scenario.schedule.kind, scenario.parallel.pipeline, scenario.description) == ("gpipe", 8, "a=b")
    assert scenario.workload.forward == (Fraction(1, 20), 2, 3, 4, 5, 6, 7, Fraction(8, 1000))
    assert scenario.cluster.nvlink.bandwidth is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("schedule.kind", "--set schedule.kind: expected a path and a value, such as parallel.pipeline=8"),
        ("=3", "--set =3: expected a path and a value, such as parallel.pipeline=8"),
        ("a..b=3", "--set a..b=3: expected a path and a value, such as parallel.pipeline=8"),
        ("parallel.pipeline=0", "--set parallel.pipeline=0: parallel.pipeline: must be at least 1, not 0"),
        ("paralel.pipeline=4", '--set paralel.pipeline=4: paralel: unknown "paralel"; did you mean "parallel"?'),
        ("parallel.pipelin=4", '--set parallel.pipelin=4: parallel.pipelin: unknown "pipelin"; did you mean'),
        ("schedule.kind.x=1", '--set schedule.kind.x=1: schedule.kind is "1f1b"; it has no "x"'),
        ("workload.memory=[1", "--set workload.memory=[1: not valid YAML"),
        ("workload.memory={a: 1, a: 2}", "a: given twice"),
        ("workload.forward=", "workload.forward: expected a time such as 50 ms, found nothing"),
        ("steps=&a 1", "YAML anchors and aliases are not supported"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(problems, override, said):
    (line,) = problems(MINIMAL, override)
    assert said in line
    assert override.split("=")[0] in line


def test_an_override_beyond_a_list_is_refused(problems):
    text = MINIMAL.replace("1 s", "[1]")
    for step in ("1", "-1", "x"):
        (line,) = problems(text, f"workload.forward.{step}=1")
        assert f'workload.forward is a list of 1; it has no "{step}"' in line


def test_wrong_overrides_are_all_told(problems):
    assert len(problems(MINIMAL, "steps", "x", "schedule.kind.x=1")) == 3
    assert len(problems(MINIMAL, "steps=0", "seed=-1")) == 2


def test_micro_batches_may_be_a_multiple_of_the_ranks(write, problems):
    text = MINIMAL.replace("microbatches: 4", "microbatches: 2p")
    assert load(write(text), ["parallel.pipeline=4"]).schedule.microbatches == 8
    text = MINIMAL.replace("microbatches: 4", "microbatches: 0.5p")
    assert load(write(text), ["parallel.pipeline=4"]).schedule.microbatches == 2
    assert problems(text) == ["1: schedule.microbatches: expected a whole number, found 0.5"]


def test_a_file_gives_only_what_differs_from_its_base(write, problems):
    write(MINIMAL + "name: below\nparallel: {pipeline: 2, data: 3}\nsteps: 0\n", "below.yaml")
    scenario = load(write("base: below.yaml\nparallel: {data: 4}\nsteps: 2\n", "above.yaml"))
    assert (scenario.name, scenario.parallel.pipeline, scenario.parallel.data) == ("above", 2, 4)
    assert scenario.steps == 2
    (line,) = problems("base: below.yaml\nparallel:\n  data: 4\n")
    assert line.endswith("below.yaml:5: steps: must be at least 1, not 0")
    assert problems("base: below.yaml\nsteps: 1\nparallel:\n  data: 0\n") == [
        "4: parallel.data: must be at least 1, not 0"
    ]


def test_a_base_that_cannot_be_read_is_named(write, problems, tmp_path):
    assert problems("base: none.yaml\n") == [f"1: base: {tmp_path / 'none.yaml'}: no such file"]
    assert problems("base: a.yaml\n") == ['1: base: "a.yaml" is based on this file itself']
    assert problems("base: 3\n") == ["1: base: expected the path of a file, found 3"]
    write("base: a.yaml\n", "b.yaml")
    (line,) = problems("base: b.yaml\n")
    assert "is based on this file itself" in line


def test_a_sweep_is_not_one_scenario(problems):
    (line,) = problems(MINIMAL + "sweep:\n  - {steps: [1, 2]}\n")
    assert line.startswith("3: sweep: expands to several scenarios")


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


def test_loading_leaves_the_given_mapping_as_it_was():
    values = plain(cluster={"nvlink": {"latency": 0}}, gradients={})
    before = json.dumps(values)
    scenario_from(values)
    assert json.dumps(values) == before


def shipped():
    return sorted(Path(hybrid_des.__file__).parent.parent.glob("scenarios/**/*.yaml"))


@pytest.mark.parametrize("file", shipped(), ids=lambda file: file.stem)
def test_every_shipped_scenario_names_its_purpose_and_schema(file):
    comments = [line for line in file.read_text().splitlines()[:30] if line.startswith("#")]
    assert len(comments) > 1
    (schema,) = filter(None, (re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line) for line in comments))
    assert (file.parent / schema.group(1)).resolve() == SCHEMA_FILE


SCHEMA_FILE = PACKAGE / "scenario" / "scenario.schema.json"


def test_the_schema_that_editors_read_is_fresh():
    assert json.loads(SCHEMA_FILE.read_text()) == json_schema(), (
        "run: python -m hybrid_des schema > hybrid_des/scenario/scenario.schema.json"
    )


def test_the_schema_requires_only_keys_without_a_default():
    schema = json_schema()
    assert sorted(schema["properties"]) == sorted([*Scenario.model_fields, "base", "sweep", "plot"])
    required = {name: section.get("required") for name, section in schema["$defs"].items() if "required" in section}
    assert required == {"GpuKind": ["memory"], "Wire": ["between", "bandwidth"]}
    assert schema["else"] == {
        "required": ["schedule", "workload"],
        "properties": {
            "schedule": {"required": ["microbatches"]},
            "workload": {"required": ["forward", "backward"]},
        },
    }
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)
    assert all("description" in field or "$ref" in field for one in sections for field in one["properties"].values())


def test_the_catalogue_says_what_the_makers_say():
    parts = {name: catalogue.part(name) for name in catalogue.names()}
    assert parts["a100-80gb"].nvlink.bandwidth == 300 * 10**9
    assert parts["a100-40gb"].memory == 40 * 10**9
    assert parts["h100"].infiniband.bandwidth == 50 * 10**9
    assert parts["v100-16gb"].peak == 125 * 10**12
    text = Path(catalogue.__file__).with_name("gpus.yaml").read_text()
    figures = [
        line for line in text.splitlines() if re.match(r"\s+(bandwidth|latency|memory|peak|nics_per_node):", line)
    ]
    assert figures
    assert all("#" in line for line in figures)


def test_parameters_of_a_trained_model_are_not_written_down():
    values = plain(numerics={})
    assert "parameters" not in to_mapping(scenario_from(values))["workload"]
    values["workload"]["parameters"] = 7
    assert to_mapping(scenario_from(values))["workload"]["parameters"] == 7
    assert to_mapping(scenario_from(plain()))["workload"]["parameters"] == 0
