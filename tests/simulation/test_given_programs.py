"""Programs that came from elsewhere, without any plan: simulated, explained and drawn like all others."""

from fractions import Fraction

import pytest
from support.scenarios import scenario

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.paths import count_paths, critical_path
from hybrid_des.analysis.critical_path.rows import Names
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.idle import CAUSES, idle_pieces
from hybrid_des.analysis.reasons import reasons_of
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import ACTIVATION, REDUCTION
from hybrid_des.engine.causes import Causes
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.gradients import DONE, Bucket, ReplicaGroup
from hybrid_des.planning.planner import parts_of_programs
from hybrid_des.planning.program import (
    BARRIER,
    COMPUTE,
    Begin,
    Block,
    Call,
    Collective,
    Compute,
    End,
    Mark,
    Program,
    Receive,
    Row,
    Send,
    block_of,
)
from hybrid_des.planning.program_table import NONE
from hybrid_des.result import Result
from hybrid_des.shortcuts.run import run

MS = 10**9
GROUP = (REDUCTION.name, 0, 0)
NVLINK = {"nvlink": {"bandwidth": "1 GB/s", "latency": "1 us"}}


def op(label, stage, duration, *before, after=()):
    """A call with a row of its own, which waits for some messages before it and sends others after it."""
    block = block_of((stage,), *before, Begin(), Compute(duration), End(), *after)
    return Block(block.stages, block.instructions, label)


def program(*blocks):
    """A step: the ops, then a collective among both ranks, then the barrier."""
    calls = [Call(block, number, (Op("F", 0),)) for number, block in enumerate(blocks)]
    reduced = Collective(GROUP, 0, Row("reductions", 0, 0))
    rest = block_of((), Mark(), reduced, Mark(), Mark(last=True), Collective(BARRIER, None))
    return Program({COMPUTE: (Call(block_of((), Mark())), *calls, Call(rest))})


PROGRAMS = (
    program(op("embed", 0, 3 * MS, after=[Send(0, 1, ACTIVATION, 7, Message(10**6))]), op("", 0, MS)),
    program(op("head", 1, 5 * MS, Receive(0, 0, 0, ACTIVATION, 7))),
)


@pytest.fixture(scope="module")
def result():
    chosen = scenario("1f1b", 2, 1, steps=2, cluster=NVLINK, workload={"forward": 1, "backward": 1})
    group = ReplicaGroup(0, 0, (0, 1), (0, 0), [Bucket(500_000, DONE)])
    return Result(run(chosen, parts=parts_of_programs(chosen, PROGRAMS, [group]), trace=Causes()))


def test_rows_say_what_ran_and_when(result):
    table = result.timeline.query("lane == 'compute' and step == 0")
    assert [*zip(table["rank"], table["kind"], table["stage"], strict=True)] == [(0, "F", 0), (0, "F", 0), (1, "F", 1)]
    sent = result.timeline.query("kind == 'activation' and step == 0 and hop == 0")
    assert sent["start_s"].tolist() == [0.003] and sent[["microbatch", "chunk"]].to_numpy().tolist() == [[7, 0]]
    arrived = sent["end_s"].iloc[0] + 1e-6
    assert table[table["rank"] == 1]["start_s"].tolist() == pytest.approx([arrived])
    assert result.summary["peak_activations"] == [0, 0]


def test_idle_time_sums_to_the_steps(result):
    pieces = idle_pieces(result.run.timeline)
    idle = sum((pieces["end"] - pieces["start"]).tolist())
    assert idle + 2 * 9 * MS == 2 * result.run.duration
    assert {CAUSES[cause] for cause in pieces["cause"].tolist()} >= {"dependency", "pipeline_message"}


def test_the_critical_path_goes_from_op_to_message_to_op(result):
    graph = graph_of(result.run)
    assert (graph.recomputed() == graph.time).all()
    names = Names(result.run.timeline, graph)
    path = [names(piece.activity) for piece in critical_path(graph)]
    assert path[:3] == ["step 0: embed@0", "step 0: a7", "step 0: head@1"]
    assert sum(piece.end - piece.start for piece in critical_path(graph)) == result.run.duration
    assert count_paths(Slack.of(graph))
    first = next(piece for piece in IdleTime(graph).pieces() if piece.rank == 1)
    assert (first.start, first.end, names(first.activity)) == (0, 3 * MS, "step 0: embed@0")


def test_the_message_releases_the_op_that_needs_it(result):
    by = reasons_of(result.run.timeline).released_by
    ops = result.run.timeline.op_rows()
    head = next(row for row in range(len(by)) if by[row] != NONE and ops["rank"][row] == 1)
    assert (ops["rank"][by[head]], ops["op"][by[head]]) == (0, 0)


def test_pictures_and_files_are_those_of_any_run(result, tmp_path):
    written = result.write(tmp_path / "out")
    assert {"gantt.png", "trace.json.gz", "report.html", "timeline.csv"} <= {path.name for path in written.paths}
    assert not (tmp_path / "out" / "order.csv").exists()


def test_half_the_speed_takes_twice_as_long():
    chosen = scenario("1f1b", 2, 1, steps=1, cluster=NVLINK, slow=[{"gpu": 1, "factor": 0.5}])
    group = ReplicaGroup(0, 0, (0, 1), (0, 0), [Bucket(500_000, Fraction(1))])
    ops = run(chosen, parts=parts_of_programs(chosen, PROGRAMS, [group])).timeline.ops
    assert (ops["end"] - ops["start"])[ops["rank"] == 1].tolist() == [10 * MS]
