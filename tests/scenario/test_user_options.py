"""The documentation's plug-ins with options: schedules, topologies, collectives and placements; mistakes in them."""

import json
import pickle
from fractions import Fraction

import pytest
from support.paths import ROOT
from support.readme import PLUGINS
from support.scenarios import values
from support.tables import from_table

from hybrid_des import collectives, costs
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.interface.cli.main import main
from hybrid_des.pipeline import schedules
from hybrid_des.registry import import_file
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, misnamed, scenario_from
from hybrid_des.workload.models.layer import Part
from hybrid_des.workload.models.mixers.registration import mixer
from hybrid_des.workload.models.operations import Scan
from hybrid_des.workload.placements import Wanted, placed

BASE = """\
parallel: {pipeline: 2, data: 2}
schedule: {kind: 1f1b, microbatches: 8}
workload: {forward: 1 ms, backward: 2 ms, activation: 1 MB, parameters: 1e6}
"""


@pytest.fixture
def own(scratch, tmp_path):
    """The documentation's files in a folder; what they register is forgotten afterwards."""
    for name, text in PLUGINS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def imported(own):
    """The documentation's files, imported."""
    for name in PLUGINS:
        import_file(own / name)
    return own


def summary(run, file, *arguments):
    code, out, err = run(file, "--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def test_the_readme_shows_one_file_of_each_kind():
    kinds = ("codec", "collective", "mixer", "placement", "schedule", "topology")
    assert sorted(PLUGINS) == [f"my_{kind}.py" for kind in kinds]


def test_a_schedule_reads_its_option(own, run, write):
    file, mine = write(BASE), ("--import", own / "my_schedule.py", "--set", "schedule.kind=gpipe-in-groups")
    assert summary(run, file, *mine)["peak_activations"] == [4, 4]
    assert summary(run, file, *mine, "--set", "schedule.group=2")["peak_activations"] == [2, 2]


def test_a_topology_reads_its_options(own, ran, write):
    file, mine = write(BASE), ("--import", own / "my_topology.py", "--set", "cluster.topology=star")
    out, _ = ran("topology", file, *mine, "--set", "cluster.cable=40 GB/s", "--set", "cluster.delay=3 us")
    assert "gpu*/up    8      40 GB/s" in out
    out, _ = ran("topology", "--import", own / "my_topology.py")
    assert any(line.startswith("star ") and line.endswith("cable, delay") for line in out.splitlines())


def test_a_mixer_takes_the_place_of_attention(imported, run):
    """8h² and a norm of 2h instead of attention's products, for each of three blocks of four."""
    file = ROOT / "scenarios" / "llama3.1-8b_8.yaml"
    kinds = {"a": {"mixer": "retention"}, "f": {}}
    sizes = {"mixers": {"retention": {"heads": 16}}, "kinds": kinds, "pattern": "a*3 f"}
    parallel = {"parallel": {"context_method": "all-to-all"}}
    plain, mixed = (
        load(file, {"model": {"base": "llama3.1-8b", **more}, **parallel}).model.network for more in ({}, sizes)
    )
    attention = 4096 * (2 * 4096 + 2 * 1024)
    assert mixed.parameters - plain.parameters == 24 * (8 * 4096**2 + 2 * 4096 - attention)
    ways = "--set", "parallel.context_method=all-to-all"
    assert run(file, *ways, "--set", f"model={json.dumps({'base': 'llama3.1-8b', **sizes})}")[0] == 0
    wrong = {**sizes, "mixers": {"retention": {"heds": 16}}}
    code, _, err = run(file, "--set", f"model={json.dumps({'base': 'llama3.1-8b', **wrong})}")
    assert code == 2 and err[-1].endswith('model.mixers.retention.heds: unknown "heds"; did you mean "heads"?')
    code, _, err = run(
        file, "--set", "model={base: llama3.1-8b, kv_heads: null, mixer: retention, mixers: {retention: {}}}"
    )
    assert code == 2 and err[-1].endswith("model.mixers.retention: heads: is required")


def test_a_scan_takes_its_own_share_of_the_peak(imported):
    """Twice the share, half the time; context ranks exchange its heads; an unknown key of a share is one line."""

    def step(rate, **parallel):
        sizes = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 96, "sequence": 4096}
        model = {**sizes, "mixer": "retention", "mixers": {"retention": {"heads": 4, "rate": rate}}}
        return costs({"cluster": {"gpu": "h100"}, "model": model, "parallel": parallel, "efficiency": {"launch": 0}})

    scan = 2 * 4096 * 4 * (256 * (16 + 32) + 4 * 16 * 32) / 989e12
    slow, fast = (step(rate)["forward_s"].sum() for rate in (0.01, 0.02))
    assert slow - fast == pytest.approx(scan / 0.01 - scan / 0.02, rel=1e-6)
    assert step(0.01, context=2, context_method="all-to-all")["context_exposed_s"].sum() > 0


def test_a_scan_with_an_unknown_rate_is_refused(scratch):
    @mixer("odd", summary="odd")
    def odd(block):
        return Part((Scan("odd", "skan", Fraction(1), 4, 4, there=4, shared=0, back=4),))

    sizes = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 96, "sequence": 64, "mixer": "odd"}
    with pytest.raises(ScenarioError, match='model: a scan has unknown rate "skan"; did you mean "scan"'):
        load({"cluster": {"gpu": "h100"}, "model": sizes})


def test_a_collective_reads_its_option_and_adds_up_right(own, run, write):
    file, mine = write(BASE), ("--import", own / "my_collective.py", "--set", "gradients.algorithm=chain")
    few, many = (summary(run, file, *mine, *more) for more in ((), ("--set", "gradients.pieces=16")))
    assert few["algorithm"] == "chain"
    assert many["messages"] - few["messages"] == 2 * 2 * (16 - 8)  # two groups of two, a message there and back
    code, out, _ = run("schedules", "--verify", file, *mine)
    assert (code, out.startswith("pass")) == (0, True)


def test_a_placement_is_asked_with_the_loads(imported):
    """The most wanted first, to and fro: 3 and 0, then 2 and 1 on two ranks."""
    assert placed("to-and-fro", Wanted((2.0, 0.0, 1.0, 5.0), (0, 0))) == ((3, 1), (0, 2))
    scenario = load(ROOT / "scenarios" / "mixtral-8x7b_64.yaml", ["experts.placement=to-and-fro"])
    assert scenario_from(to_mapping(scenario)) == scenario


def test_auto_gives_each_algorithm_the_options_that_it_reads(imported, run, write):
    auto = summary(run, write(BASE), "--set", "gradients.algorithm=auto", "--set", "gradients.pieces=1")
    assert auto["algorithm"] in collectives.all_reduces()
    chosen = load(write(BASE), ["gradients.algorithm=auto", "gradients.pieces=1"])
    assert scenario_from(to_mapping(chosen)) == chosen


def test_options_are_held_typed_and_written_flat(imported, write):
    text = BASE.replace("1f1b", "gpipe-in-groups, group: 3") + "cluster: {topology: star, cable: inf}\n"
    scenario = load(write(text), ["gradients.algorithm=chain"])
    assert (scenario.schedule.options.group, scenario.gradients.options.pieces) == (3, 8)
    assert (scenario.cluster.options.cable, scenario.cluster.options.delay) == (None, 0)
    mapping = to_mapping(scenario)
    assert (mapping["schedule"]["group"], mapping["gradients"]["pieces"]) == (3, 8)
    assert scenario_from(mapping) == scenario
    assert pickle.loads(pickle.dumps(scenario)) == scenario


@pytest.mark.slow
def test_the_schema_has_the_options_while_they_are_registered(own, run):
    imports = [word for name in PLUGINS for word in ("--import", own / name)]
    defs = json.loads(run("docs", "--schema", *imports)[1])["$defs"]
    assert defs["Schedule"]["properties"]["group"] == {
        "default": 4,
        "description": "gpipe-in-groups: Micro-batches per group.",
        "maximum": 2**20 - 1,
        "minimum": 1,
        "type": "integer",
    }
    assert "star: Bandwidth of each cable" in defs["Cluster"]["properties"]["cable"]["description"]
    assert {"chain", "auto"} <= set(defs["Gradients"]["properties"]["algorithm"]["enum"])
    shared = defs["Gradients"]["properties"]["pieces"]
    assert "default" not in shared  # chain has another one than the others
    assert {kind["maximum"] for kind in shared["anyOf"]} == {4096, 2**20 - 1}


@from_table
def test_a_wrong_option_is_reported_beside_other_mistakes(imported, write, cluster, said):
    file = write(f"schedule: {{kind: gpipe-in-groups, microbatches: 4, group: 0}}\n\ncluster: {{{cluster}}}\n"
                 "workload: {forward: 1, backward: 2, weight: 3}\n")  # fmt: skip
    with pytest.raises(ScenarioError) as error:
        load(file)
    problems = [line.replace(f"{file}:", "") for line in error.value.problems]
    assert problems[0] == "1: schedule.group: must be at least 1, not 0"
    assert problems[-1].startswith("4: workload.weight: the weight gradient takes 3 s")
    assert len(problems) == len(said) + 2
    assert all(any(part in line for line in problems[1:-1]) for part in said)


def test_a_wrong_key_is_answered_with_the_nearest_option(imported):
    assert misnamed("schedule.grup") == 'unknown "grup"; did you mean "group"?'
    assert misnamed("cluster.cable.x") == 'cluster.cable has no keys such as "x"'
    assert misnamed("cluster.options") is not None
    assert [misnamed(path) for path in ("schedule.group", "cluster.links.0.between", "gradients.pieces")] == [None] * 3


def test_options_vary_in_sweeps(own, ran, write):
    sweep = "sweep:\n  - {schedule.group: [1, 2, 0]}\n  - {schedule.kind: [gpipe-in-groups, gpipe]}\n"
    out, _ = ran(write(BASE + sweep), "--import", own / "my_schedule.py", "--json")
    rows = json.loads(out)
    assert [row["peak_activations"][0] for row in rows if "error" not in row] == [1, 2]
    assert [row["error"].rpartition("schedule.group: ")[2] for row in rows if "error" in row] == [
        "is not read by gpipe; read by gpipe-in-groups",
        "is not read by gpipe; read by gpipe-in-groups",
        "must be at least 1, not 0",
        "must be at least 1, not 0",
    ]


def test_a_sweep_reports_a_wrong_option_before_it_runs(own, run, write):
    sweep = "sweep:\n  - {schedule.grup: [1, 2]}\n"
    code, _, err = run(write(BASE + sweep), "--import", own / "my_schedule.py")
    assert code == 2
    assert err[0].endswith('unknown "grup"; did you mean "group"?')


def test_an_option_may_name_a_file_beside_the_scenario(own, write):
    (own / "mine.py").write_text(
        "from hybrid_des.cluster.link_figures import Table\n"
        "from hybrid_des.cluster.topologies import find, topology\n"
        "from hybrid_des.options import Options\n\n\n"
        "class Mine(Options):\n    cables: Table\n\n\n"
        "@topology('measured-cables', summary='', options=Mine)\n"
        "def mine(cluster, options):\n    return find('nodes').build(cluster)\n"
    )
    import_file(own / "mine.py")
    write("bytes,time_us\n1000,10\n2000,20\n", "t.csv")
    scenario = load(write(BASE + "cluster: {topology: measured-cables, cables: t.csv}\n"))
    assert scenario.cluster.options.cables.time(1500) == 15 * 10**6


def test_an_option_cannot_take_the_name_of_a_common_key(imported):
    @schedules.schedule("greedy", summary="", time="", memory="", source="", options=_options("chunks"))
    def greedy(request, options):
        raise AssertionError

    with pytest.raises(UsageError, match='greedy: an option cannot be called "chunks"'):
        scenario_from({"schedule": {"kind": "greedy", "microbatches": 1}, "workload": {"forward": 1, "backward": 1}})


def _options(name):
    from hybrid_des.options import Count, Options

    return type("Odd", (Options,), {"__annotations__": {name: Count}, name: 1, "__module__": __name__})


@pytest.mark.parametrize(
    "option",
    [{"fused": True}, {"fused_time": 1}, {"backward_order": "fifo"}, {"max_activations": "2p"}, {"max_activations": 4}],
)
def test_a_neutral_option_is_accepted_by_other_kinds(option):
    scenario = scenario_from(values("1f1b", p=2, m=2, schedule=option))
    assert [name for name in option if hasattr(scenario.schedule.options, name)] == []
    assert scenario_from(to_mapping(scenario)) == scenario


def test_an_order_file_reads_the_time_of_fused_pairs(tmp_path):
    values = {"schedule": {"file": "x.csv", "microbatches": 2}, "workload": {"forward": 1, "backward": 1}}
    values["schedule"]["fused_time"] = "0.5"
    assert scenario_from(values).schedule.options.fused_time * 2 == 1
    values["schedule"]["max_activations"] = 1
    with pytest.raises(ScenarioError, match="max_activations: is not read by an order file; read by zb-auto"):
        scenario_from(values)


def test_two_plugins_share_a_name_with_defaults_of_their_own():
    def order(kind):
        values = {"schedule": {"kind": kind, "microbatches": 2}, "workload": {"forward": 1, "backward": 1}}
        return scenario_from(values).schedule.options.backward_order

    assert (order("gpipe"), order("looped-bfs")) == ("fifo", "lifo")


@from_table
def test_a_bandwidth_without_its_unit_is_refused(own, capsys, arguments, said):
    overrides = [word for one in arguments for word in ("--set", one)]
    file = ROOT / "scenarios/a100_8x.yaml"
    assert main([str(file), "--import", str(own / "my_topology.py"), *overrides]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.endswith("?")


def test_load_takes_a_mapping_and_leaves_it_alone():
    values = {"schedule": {"kind": "1f1b", "microbatches": 4}, "workload": {"forward": "1 ms", "backward": 2}}
    scenario = load(values, ["parallel.pipeline=2", "schedule.kind=gpipe"])
    assert (scenario.parallel.pipeline, scenario.schedule.kind, scenario.workload.backward) == (2, "gpipe", 2)
    assert values["schedule"] == {"kind": "1f1b", "microbatches": 4}
    with pytest.raises(ScenarioError, match=r'^scenario: schedule.kind: unknown "1f2b"; did you mean "1f1b"'):
        load({**values, "schedule": {"kind": "1f2b", "microbatches": 1}})
