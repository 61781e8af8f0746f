"""Sizes that would exhaust memory are refused at once, with the estimate."""

import ast

import pytest
from support.paths import PACKAGE
from support.scenarios import scenario, values
from support.sources import nodes_of

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.engine.causes import Causes
from hybrid_des.errors import Refusal, ScenarioError
from hybrid_des.pipeline.schedules import schedule
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import load
from hybrid_des.scenario.sizes import MOST_LINKS, MOST_PLANNED
from hybrid_des.shortcuts.run import run as simulated

ONE_NIC = {"infiniband": {"nics_per_node": 1}}


def test_the_largest_sizes_are_accepted():
    nodes = MOST_LINKS // 4
    assert scenario(cluster={"nodes": nodes, "gpus_per_node": 1, **ONE_NIC}).cluster.gpus == nodes
    with pytest.raises(ScenarioError, match=f"{MOST_LINKS + 4} links"):
        scenario(cluster={"nodes": nodes + 1, "gpus_per_node": 1, **ONE_NIC})
    assert scenario(m=MOST_PLANNED // 2).schedule.microbatches == MOST_PLANNED // 2
    with pytest.raises(ScenarioError, match=f"{MOST_PLANNED + 2} ops"):
        scenario(m=MOST_PLANNED // 2 + 1)


def test_only_the_first_count_is_told_beside_other_mistakes():
    with pytest.raises(ScenarioError) as error:
        load(values(m=10**6, numerics={"layers": 4096, "width": 4096}, seed=-1))
    assert {line.split(": ")[1] for line in error.value.problems} == {"schedule.microbatches", "seed"}


def test_estimates_of_collectives_bound_what_they_send():
    fabric = fabric_of(scenario(p=16, cluster={"nvlink": {"in_switch": True}}))
    codec = codecs.find("fp32").build()
    for name in set(collectives.names()) - {"measured"}:
        ran = measure(fabric, name, [range(8)], lambda group, place: Buffer(10**7, codec))
        assert ran.messages <= collectives.most_messages(name, collectives.CallSize(8)), name


@pytest.mark.slow
def test_a_collective_says_itself_how_much_it_sends(scratch):
    """8 steps of 2 · 64 · 64³ messages; a plug-in is one file: nothing here names a collective."""

    @collectives.collective("chatty", summary="", messages=lambda call: call.ranks**3)
    def chatty(group, buffer):
        return collectives.configured("ring")(group, buffer)

    chosen = {"gradients": {"algorithm": "chatty"}, "workload": {"parameters": 1}}
    with pytest.raises(ScenarioError, match=r"2.68e\+08 messages with `record: all`"):
        scenario(m=1, d=64, steps=8, **chosen)
    named = {one.value for one in nodes_of(PACKAGE / "scenario/sizes.py") if isinstance(one, ast.Constant)}
    assert named & {*collectives.names()} == set()


def test_a_registration_refuses_facts_that_it_does_not_know():
    with pytest.raises(TypeError, match=r"collective.. got an unexpected keyword argument 'image'"):
        collectives.collective("mine", summary="", image=None)
    with pytest.raises(TypeError, match=r"schedule.. got an unexpected keyword argument 'chunk'"):
        schedule("mine", summary="", time="", memory="", source="", chunk=1)


def test_the_collective_command_refuses_endless_work(run):
    code, out, err = run("collective", "ring", "--ranks", "100000")
    assert (code, out) == (2, "")
    assert err == ["--ranks 100000: 2.2e+11 messages for 11 sizes are more than can be simulated (at most 2.68e+08)"]
    for name in ("all-to-all", "auto", "parameter-server"):
        code, out, (err,) = run("collective", name, "--ranks", "5000", "--max", "1 KiB")
        assert (code, out) == (2, "")
        assert err.startswith("--ranks 5000: 2.5e+07 pairs of ranks that send to each other are more than can be")


MANY = {"parallel": {"pipeline": 1, "data": 2304}, "cluster": {"nodes": 288, "gpus_per_node": 8, **ONE_NIC},
        "workload": {"forward": 0, "backward": 0, "parameters": 999_983 * 9}, "fold": "off",
        "gradients": {"bucket": "4 MB"}}  # fmt: skip


def test_a_refusal_names_the_settings_that_work():
    """9 million gradients in 9 or 10 buckets: 2 · 2304² messages around a ring for each."""
    with pytest.raises(ScenarioError) as refused:
        scenario(m=1, **MANY)
    (line,) = refused.value.problems
    assert "messages with `record: all`" in line and line.endswith("; with record: compute it can be simulated")
    assert scenario(m=1, **MANY, record="compute").parallel.data == 2304
    with pytest.raises(ScenarioError) as refused:
        scenario(m=1, **MANY, record="compute", steps=3)
    assert refused.value.problems[0].endswith("; with steps: 1 it can be simulated")
    with pytest.raises(ScenarioError) as refused:
        scenario(m=1, **MANY, steps=3)
    assert refused.value.problems[0].endswith("; with record: compute and steps: 1 it can be simulated")
    with pytest.raises(ScenarioError) as refused:
        scenario(m=1, **MANY | {"gradients": {"bucket": "4 kB"}})
    assert refused.value.problems[0].endswith(")")


def test_a_run_that_does_not_fold_names_them_too():
    """Its pieces differ in size, so that all replicas must be simulated."""
    large = scenario(m=1, **MANY | {"fold": "auto"})
    with pytest.raises(Refusal, match=r"replicas differ: .*; with record: compute it can be simulated$"):
        simulated(large)
    with pytest.raises(Refusal, match=r"gradients.pad makes them equal\)$"):
        simulated(large, trace=Causes())
