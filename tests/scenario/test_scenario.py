"""Scenarios: the contract's defaults, exact quantities, shipped files and their schema."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from support.paths import PACKAGE
from support.scenarios import MINIMAL, plain

import hybrid_des
from hybrid_des import load, simulate
from hybrid_des.cluster import gpus as catalogue
from hybrid_des.errors import ScenarioError
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.schedules.one_f_one_b import InPairs
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import json_schema, to_mapping
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.scenario.sections.training import Parallel


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
    assert (schedule.chunks, schedule.options, schedule.p2p) == (1, InPairs(), "async")
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
    assert schedule.chunks == (entry.facts["chunks"] or (2 if entry.facts["many_chunks"] else 1))
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


def test_a_memory_without_a_unit_is_in_bytes():
    assert scenario_from(plain(cluster={"gpu": {"memory": "80"}})).cluster.gpu.memory == 80


def test_micro_batches_may_be_a_multiple_of_the_ranks(write, problems):
    text = MINIMAL.replace("microbatches: 4", "microbatches: 2p")
    assert load(write(text), ["parallel.pipeline=4"]).schedule.microbatches == 8
    text = MINIMAL.replace("microbatches: 4", "microbatches: 0.5p")
    assert load(write(text), ["parallel.pipeline=4"]).schedule.microbatches == 2
    assert problems(text) == ["1: schedule.microbatches: expected a whole number, found 0.5"]


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


@pytest.fixture(scope="module")
def schema():
    return json_schema()


def test_the_schema_that_editors_read_is_fresh(schema):
    assert json.loads(SCHEMA_FILE.read_text()) == schema, (
        "run: python -m hybrid_des schema > hybrid_des/scenario/scenario.schema.json"
    )


def test_the_schema_requires_only_keys_without_a_default(schema):
    assert sorted(schema["properties"]) == sorted(
        [*Scenario.model_fields, "base", "sweep", "plot", "search", "jobs", "placement"]
    )
    required = {name: section.get("required") for name, section in schema["$defs"].items() if "required" in section}
    assert required == {
        "GpuKind": ["memory"],
        "Mamba": ["heads", "head_size"],
        "Delta": ["key_heads", "value_heads", "key_size", "value_size"],
        "Kda": ["heads", "size"],
        "Lightning": ["heads", "size"],
        "Conv": ["width"],
        "Data": ["lengths"],
        "Lengths": ["kind"],
        "Faults": ["horizon"],
        "FailureClass": ["what"],
        "Weibull": ["scale", "shape"],
        "Restart": ["time"],
        "Spares": ["nodes", "repair"],
        "Checkpoint": ["every"],
        "Persist": ["every", "write"],
        "Price": ["gpu_hour"],
        "Elastic": ["min_replicas"],
        "Wire": ["between", "bandwidth"],
        "Experts": ["count", "active", "ffn"],
        "Latent": ["key_value", "nope", "rope", "value"],
        "SystemNoise": ["period", "detour"],
        "Background": ["from", "to", "rate"],
        "Site": ["nodes"],
        "Adapters": ["rank"],
        "Indexer": ["heads", "size", "top"],
        "Delay": ["time"],
        "Lend": ["below", "to_rollout", "to_trainer"],
        "Reward": ["time"],
        "Rl": ["samples", "prompt", "response", "rollout", "sync"],
        "Turns": ["count", "wait"],
        "Compressed": ["size", "rope", "query", "out_groups", "out_rank", "window"],
    }
    pipeline = {"required": ["pipeline"], "properties": {"pipeline": {"minimum": 2}}}
    assert schema["else"] == {
        "oneOf": [{"required": ["workload"]}, {"required": ["model"]}],
        "properties": {
            "workload": {"anyOf": [{"required": one} for one in (["forward", "backward"], ["durations"], ["trace"])]},
        },
        "if": {"required": ["parallel"], "properties": {"parallel": pipeline}},
        "then": {
            "anyOf": [
                {"required": ["workload"], "properties": {"workload": {"required": ["trace"]}}},
                {
                    "required": ["schedule"],
                    "properties": {"schedule": {"anyOf": [{"required": ["kind"]}, {"required": ["file"]}]}},
                },
            ]
        },
    }
    sections = [schema, *schema["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)
    assert all("description" in field or "$ref" in field for one in sections for field in one["properties"].values())


def test_without_a_pipeline_no_schedule_is_needed():
    costs = {"workload": {"forward": 1, "backward": 2}}
    schedule = load(costs).schedule
    assert (schedule.kind, schedule.microbatches, schedule.chunks) == ("1f1b", 1, 1)
    assert load({**costs, "schedule": {"microbatches": 8}}).schedule.kind == "1f1b"
    batch = load({"model": "gpt2", "parallel": {"data": 2}, "batch": 8, "schedule": {"microbatch_size": 2}})
    assert (batch.schedule.kind, batch.schedule.microbatches) == ("1f1b", 2)
    assert simulate(costs).summary["step_time_s"] == 3
    with pytest.raises(ScenarioError, match=r"microbatches: is required\n.*kind: is required, one of"):
        load({**costs, "parallel": {"pipeline": 2}})


def test_the_catalogue_says_what_the_makers_say():
    parts = {name: catalogue.part(name) for name in catalogue.names()}
    assert parts["a100-80gb"].nvlink.bandwidth == 300 * 10**9
    assert parts["a100-40gb"].memory == 40 * 10**9
    assert parts["h100"].infiniband.bandwidth == 50 * 10**9
    assert parts["v100-16gb"].peak == 125 * 10**12
    text = Path(catalogue.__file__).with_name("gpus.yaml").read_text()
    keys = "bandwidth|latency|memory|peak|nics_per_node|efficiency"
    figures = [line for line in text.splitlines() if re.match(rf"\s+({keys}):", line)]
    assert figures
    assert all("#" in line for line in figures)


def test_parameters_of_a_trained_model_are_not_written_down():
    values = plain(numerics={})
    assert "parameters" not in to_mapping(scenario_from(values))["workload"]
    values["workload"]["parameters"] = 7
    assert to_mapping(scenario_from(values))["workload"]["parameters"] == 7
    assert to_mapping(scenario_from(plain()))["workload"]["parameters"] == 0
