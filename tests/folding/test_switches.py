"""Members of a node whose switch reduces for them stand for each other; nodes of a tree do not."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from support.campaigns import thinned
from support.foldings import both_of, differences, run_of
from support.switch_foldings import switched_layers, switched_values

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.lineage_mailboxes import SwitchMailbox
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import SURE, Fold, FoldedAxis, root_of
from hybrid_des.layout import Layout
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario import sizes
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.folds import Replicas, check

CAMPAIGNS, EACH = 36, 4
LAYERS = [(switched_layers, number) for number in range(20)]
GRADIENTS = [(switched_values, number) for number in range(CAMPAIGNS)]


@pytest.fixture(autouse=True)
def _fold_however_small(monkeypatch):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)


def values(nodes=2, width=8, *, sharing="fifo", parameters=2**22, **gradients):
    return {
        "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": width, "sharing": sharing},
        "parallel": {"data": nodes * width},
        "schedule": {"kind": "1f1b", "microbatches": 1},
        "workload": {"forward": "1 us", "backward": "9 us", "activation": 0, "parameters": parameters},
        "gradients": {"algorithm": "nccl", "codec": "bf16", **gradients},
    }


def checked(described, *axes):
    scenario = load(described)
    check(Fold(scenario.parallel.layout, axes), Replicas(scenario, parts_of(scenario)))


@pytest.mark.parametrize(("drawn", "campaign"), thinned([*GRADIENTS, *LAYERS], slow=[*GRADIENTS[2:], *LAYERS]))
def test_random_runs_with_switches_fold_exactly(drawn, campaign):
    reached = Counter()
    for seed in range(campaign * EACH, (campaign + 1) * EACH):
        both = both_of(drawn(Random(seed)))
        folded = both is not None and both[0].run.fold is not None
        reached[folded] += 1
        assert not folded or not differences(*both), f"seed {seed}"
    assert reached[True] >= 1


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize(
    ("nodes", "width", "parameters", "algorithm"),
    [
        (2, 8, 2**22, "nvls-tree, Simple"),
        (4, 4, 2**24, "nvls-tree, Simple"),
        (3, 2, 2**24, "nvls-tree, Simple"),
        (1, 8, 2**23, "nvls, Simple"),
        (2, 8, 2**14, "tree, LL"),
    ],
)
def test_one_member_of_every_node_is_simulated(nodes, width, parameters, algorithm, sharing):
    described = values(nodes, width, sharing=sharing, parameters=parameters)
    run, whole = (run_of(described, fold) for fold in ("auto", "off"))
    assert list(run.run.choices) == [algorithm]
    assert run.summary["ranks_simulated"] == nodes
    assert not differences(run, whole)
    assert run.run.carried == whole.run.carried


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_members_of_one_switch_stand_for_each_other(sharing):
    described = values(1, 8, sharing=sharing, algorithm="in-switch", pieces=3)
    run, whole = (run_of(described, fold) for fold in ("auto", "off"))
    assert run.summary["ranks_simulated"] == 1
    assert not differences(run, whole)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_replicas_whose_layers_pass_switches_fold(sharing):
    """The switch of a node is that of its image, for all-reduces of eight tensor ranks."""
    described = {
        "cluster": {"gpu": "h100", "nodes": 2, "sharing": sharing},
        "model": {"layers": 2, "hidden": 8192, "heads": 64, "ffn": 8192, "vocab": 4096, "sequence": 4096},
        "parallel": {"tensor": 8, "data": 2, "sequence": False},
        "batch": 2,
        "schedule": {"kind": "1f1b"},
        "gradients": {"codec": "bf16", "pad": True},
        "tensor_traffic": "messages",
    }
    run, whole = (run_of(described, fold) for fold in ("auto", "off"))
    assert run.summary["ranks_simulated"] == 8
    assert whole.summary["bytes_switched"] > 0
    assert not differences(run, whole)


def test_two_members_that_share_an_adapter_are_both_simulated():
    described = values(2, 4)
    described["cluster"]["infiniband"] = {"nics_per_node": 2}
    run, whole = (run_of(described, fold) for fold in ("auto", "off"))
    assert run.summary["ranks_simulated"] == 2 * 2
    assert not differences(run, whole)


def test_nodes_of_a_switch_tree_do_not_do_the_same():
    """A leaf sends partial sums up before the root sends sums down."""
    with pytest.raises(FoldRefusal, match="ranks 0 and 8: the nodes whose switches add do not all do the same"):
        checked(values(), FoldedAxis("data", 8))
    timeline = run_of(values(), "off").run.timeline
    messages = timeline.all_messages()
    link = np.array([channel.link for channel in timeline.channels])[messages["channel"]]
    starts = [messages["start"][link == name].tolist() for name in ("node0/nic0/out", "node1/nic0/out")]
    assert len(starts[0]) == len(starts[1])
    assert starts[0] != starts[1]


def test_members_with_unequal_pieces_do_not_turn():
    with pytest.raises(FoldRefusal, match="ranks 0 and 1: the 128 pieces of 4,194,305 gradients differ in size"):
        checked(values(parameters=2**22 + 1), FoldedAxis("data", 1, block=1, size=8))


@pytest.mark.parametrize(("name", "algorithm"), [("nccl", "nvls, Simple"), ("in-switch", "")])
def test_collectives_alone_fold_at_a_switch(name, algorithm):
    """Of eight members one is simulated where a collective is tried alone; all take the same time."""
    fabric, layout = parts_of(load(values(1, 8))).fabric, Layout({"data": 8}, ["data"])
    folded, whole = (CollectiveTimes(fabric, layout, folded=folds) for folds in (True, False))
    asked = Concurrent([range(8)], [2**24], codecs.find("bf16").build())
    [alike] = folded.simulated(name, asked)
    assert not algorithm or str(alike.groups[0].tuned.choice("all-reduce", 2**25)) == algorithm
    assert alike.folds[0].order == 8
    assert folded.of(name, asked) == whole.of(name, asked)


def transport_of(fold):
    fabric: Fabric = parts_of(load(values(2, 4))).fabric
    return folded_transport(fabric, "fifo", Recorder(), fold)


def turned_on_nodes():
    return Fold(Layout({"data": 8}, ["data"]), [FoldedAxis("data", 1, block=1, size=4)])


def test_what_a_switch_does_descends_from_any_member():
    """Which of four members' messages comes last is not known, but that it is one of their node's."""
    fold = turned_on_nodes()
    transport = transport_of(fold)
    switch = transport._fabric.reducers[1]
    _, mailbox = transport.flow(Channel(4, switch, REDUCTION, "nccl", 0, 0))
    assert isinstance(mailbox, SwitchMailbox)
    env: LineageEnvironment = transport.env
    env.begin(root_of(4))
    waiting = mailbox.receive()
    mailbox.put(Message(8), 0, 5)
    assert waiting.lineage[1] >> 4 == 4
    assert waiting.lineage[1] & SURE == 1  # the node is certain, the place on it is not
    assert not env.decided(waiting.lineage, (waiting.lineage[0], root_of(4)))
    assert env.decided(waiting.lineage, (waiting.lineage[0], root_of(0)))


def test_a_pause_continues_the_process_that_pauses():
    """Of two ranks that pause for the same time, each goes on as the descendant of its own events."""
    transport = transport_of(turned_on_nodes())
    env, seen = transport.env, []

    def pausing(member):
        group = Group(transport, ProcessGroup("nccl", 0, range(8), [0] * 8), member)
        yield group.pause(5)
        seen.append(env.lineage[1])

    for rank in (0, 4):
        transport.begin(rank)
        env.process(pausing(rank))
    env.run()
    assert seen == [root_of(0), root_of(4)]
