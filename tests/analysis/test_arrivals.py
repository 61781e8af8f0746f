"""When messages arrive, and a step from its timeline alone."""

import io
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import SCENARIOS

from hybrid_des.analysis.compare import side_of_folder
from hybrid_des.analysis.table import Arrivals
from hybrid_des.cluster.sharing.registration import Flow
from hybrid_des.planning.program_table import NONE
from hybrid_des.report.files.run_files import timeline_csv
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load

PS = 10**12
STEPS = {  # scenario → changes: pipelines, rings, collectives that end with a copy, jitter
    "a100_8x": [], "dgx1_cube_mesh": [], "prototype_4gpu": ["steps=3"], "h100_2x8": ["cluster.sharing=priority"],
    "llama3.1-8b_8": [], "first": ["cluster.sharing=fair"], "jitter_64": ["steps=2", "barrier=false"],
    "resnet50_4stages": ["gradients.algorithm=nccl"],
}  # fmt: skip
VARIES = "slow=[{link: node0/gpu2/nvlink-in, latency: 20 ms, from: 0.1 s}]"
SHARING = ("fifo", "fair", "priority", "priority-fair")


def written(result, folder):
    """The timeline as somebody else reads it."""
    timeline_csv(result, folder)
    return pd.read_csv(folder / "timeline.csv")


def picoseconds(seconds):
    return (seconds * PS).round().astype("int64")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_recomputed_from_its_timeline_alone(name, tmp_path):
    result = simulate(load(SCENARIOS / f"{name}.yaml", STEPS[name]))
    table = written(result, tmp_path)
    last, steps = picoseconds(table.arrived_s.dropna()).max(), table.step.max() + 1
    assert float(Fraction(int(last), int(steps) * PS)) == result.summary["step_time_s"]


@pytest.mark.parametrize("name", ["a100_8x", "h100_2x8", "prototype_4gpu"])
def test_ops_start_when_the_last_of_what_they_need_arrives(name, tmp_path):
    """An op starts when its rank is free and its message is there: the whole pipeline follows from the columns."""
    table = written(simulate(load(SCENARIOS / f"{name}.yaml", ["schedule.kind=1f1b"])), tmp_path)
    sent = table[table.arrived_s.notna() & table.kind.isin(["activation", "gradient"])]
    needed = {
        ("F" if message.kind == "activation" else "B", int(message.peer), message.step, message.microbatch): message
        for message in sent.itertuples()
    }
    ops, waited = table[table.lane == "compute"], 0
    for op in ops[ops.kind.isin(["F", "B"])].itertuples():
        message = needed.pop((op.kind, op.rank, op.step, op.microbatch), None)
        assert op.start_s == max(op.asked_s, message.arrived_s if message else 0)
        waited += op.start_s > op.asked_s
    assert not needed and waited


@pytest.fixture(params=SHARING)
def handed_over(request, monkeypatch):
    """A run without shortcuts, and when its flows hand messages over."""
    times, before = [], Flow.__init__

    def init(flow, hops, put, rows):
        def noted(message, tag, at):
            if rows is not None:
                times.append(at)
            return put(message, tag, at)

        before(flow, hops, noted, rows)

    monkeypatch.setattr(Flow, "__init__", init)
    monkeypatch.setenv("HYBRID_DES_PLAIN", "1")
    changes = [f"cluster.sharing={request.param}", "fold=off"]
    return simulate(load(SCENARIOS / "contention_faster.yaml", changes)).run.timeline, times


def test_a_message_arrives_when_it_is_handed_over(handed_over):
    timeline, times = handed_over
    arrived = Arrivals(timeline).of(timeline.messages)
    assert sorted(arrived[arrived != NONE].tolist()) == sorted(times)
    assert len(times) > 1000


@pytest.fixture(scope="module")
def timelines():
    return [
        simulate(load(SCENARIOS / f"{name}.yaml", [f"cluster.sharing={sharing}"])).run.timeline
        for name, sharing in (("h100_2x8", "fifo"), ("first", "fair"), ("llama3.1-8b_8", "priority"))
    ]


@given(number=st.integers(0, 2), data=st.data())
def test_arrivals_of_pieces_are_those_of_the_whole(timelines, number, data):
    timeline = timelines[number]
    order = np.argsort(timeline.messages["start"], kind="stable")
    rows = {name: column[order] for name, column in timeline.messages.items()}
    bounds = st.lists(st.integers(0, len(order)), max_size=12).map(sorted)
    cuts = np.searchsorted(rows["start"], rows["start"][[min(at, len(order) - 1) for at in data.draw(bounds)]])
    arrivals, ends = Arrivals(timeline), [0, *cuts.tolist(), len(order)]
    pieces = [arrivals.of({name: column[begin:end] for name, column in rows.items()}) for begin, end in pairwise(ends)]
    assert np.concatenate(pieces).tolist() == Arrivals(timeline).of(timeline.messages)[order].tolist()


def test_where_latencies_vary_arrivals_are_not_known(tmp_path):
    result = simulate(load(SCENARIOS / "a100_8x.yaml", [VARIES]))
    table = written(result, tmp_path)
    assert table[table.lane != "compute"].arrived_s.isna().all()
    last = picoseconds(table.arrived_s.dropna()).max()
    assert last / PS == result.summary["step_time_s"]


def test_a_message_has_one_arrival_on_its_last_link():
    table = simulate(load(SCENARIOS / "h100_2x8.yaml")).timeline
    sent = table[table.lane != "compute"]
    known = sent[sent.arrived_s.notna()]
    assert len(known) == (sent.hop == 0).sum() < len(sent)
    assert (known.arrived_s >= known.end_s).all()
    text = io.StringIO()
    table.to_csv(text, index=False)
    assert text.getvalue().splitlines()[0].endswith("hop,arrived_s")


@pytest.mark.usefixtures("unpainted")
def test_folders_without_arrivals_are_still_compared(tmp_path):
    result = simulate(load(SCENARIOS / "a100_8x.yaml"))
    result.write(tmp_path)
    (tmp_path / "timeline.parquet").unlink(missing_ok=True)
    table = pd.read_csv(tmp_path / "timeline.csv").drop(columns="arrived_s")
    table.to_csv(tmp_path / "timeline.csv", index=False)
    assert side_of_folder(tmp_path).summary["step_time_s"] == result.summary["step_time_s"]
