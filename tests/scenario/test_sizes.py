"""Sizes that would exhaust memory are refused at once, with the estimate."""

import pytest
from support.scenarios import scenario, values

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.loading import load
from hybrid_des.scenario.sizes import MOST_LINKS, MOST_PLANNED, reduction_messages
from hybrid_des.simulation.planning.wiring import fabric_of

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
        assert ran.messages <= reduction_messages(name, 8, {}), name


def test_the_collective_command_refuses_endless_work(run):
    code, out, err = run("collective", "ring", "--ranks", "100000")
    assert (code, out) == (2, "")
    assert err == ["--ranks 100000: 2.2e+11 messages for 11 sizes are more than can be simulated (at most 2.68e+08)"]
    for name in ("all-to-all", "auto", "parameter-server"):
        code, out, (err,) = run("collective", name, "--ranks", "5000", "--max", "1 KiB")
        assert (code, out) == (2, "")
        assert err.startswith("--ranks 5000: 2.5e+07 pairs of ranks that send to each other are more than can be")
