"""The timeline as a table, of runs written down by hand in whole picoseconds."""

import io

import numpy as np
import pandas as pd
import pytest
from support import handmade
from support.handmade import uniform
from support.plans import plan_of

from hybrid_des.analysis.table import COLUMNS, ops_of, reductions_of
from hybrid_des.pipeline.plan import Op, Plan, loop
from hybrid_des.result import Result

MS = 10**9


def table_of(run):
    return Result(run).timeline


def fused_pair():
    """One rank, two micro-batches, the second's forward together with the first's backward."""
    program = [Op("F", 0), (Op("F", 1), Op("B", 0)), Op("B", 1)]
    return Plan.of([program], [loop(1, 1)], [0, 0])


def split_backward():
    """Two ranks, one micro-batch, input and weight parts apart."""
    program = [Op("F", 0), Op("I", 0), Op("W", 0)]
    return Plan.of([program, program], [loop(2, 1)], [0])


def test_timeline_has_the_columns_of_the_contract():
    run = handmade.run(plan_of("1f1b", 2, 3), uniform(MS, 2 * MS), delay=MS, data=2, reduction=MS, optimizer=MS)
    table = table_of(run)
    assert tuple(table.columns) == COLUMNS
    compute = table[table.lane == "compute"]
    assert compute.kind.value_counts().to_dict() == {"F": 12, "B": 12, "optimizer": 4}
    assert table.kind.isin(["activation", "gradient"]).sum() == run.messages
    assert compute[["peer", "bytes", "hop"]].isna().all(axis=None)
    assert compute[compute.kind == "optimizer"][["microbatch", "chunk", "stage"]].isna().all(axis=None)
    for name in ("microbatch", "chunk", "stage", "peer", "bytes", "hop"):
        assert table[name].dtype == "Int64"
    assert (table.replica == table["rank"] % 2).all()
    assert (table.pipeline_rank == table["rank"] // 2).all()


def test_a_message_is_named_by_who_sends_what_to_whom():
    table = table_of(handmade.run(plan_of("gpipe", 2, 2), uniform(10 * MS, 20 * MS), delay=3 * MS))
    row = table[(table.kind == "gradient") & (table.microbatch == 1)].iloc[0]
    assert (row["rank"], row.peer, row.stage, row.chunk, row.bytes, row.hop) == (1, 0, 1, 0, 1000, 0)
    assert (row.asked_s, row.start_s, row.end_s) == (0.073, 0.073, 0.076)


def test_rows_come_by_start_then_rank_then_lane():
    table = table_of(handmade.run(plan_of("1f1b", 3, 3), uniform(5, 5), delay=5, data=2, steps=2))
    keys = list(zip(table.start_s, table["rank"], table.lane != "compute", table.lane, strict=True))
    assert keys == sorted(keys)


def test_a_fused_pair_goes_by_its_forward():
    table = table_of(handmade.run(fused_pair(), uniform(10, 20)))
    assert table.kind.tolist() == ["F", "FB", "B"]
    assert table.microbatch.tolist() == [0, 1, 1]
    assert table.end_s.tolist() == [10 / 1e12, 40 / 1e12, 60 / 1e12]


def test_the_input_part_of_a_split_backward_shows_as_b():
    table = table_of(handmade.run(split_backward(), uniform(10, 20, weight=5)))
    assert table[(table["rank"] == 1) & (table.lane == "compute")].kind.tolist() == ["F", "B", "W"]


@pytest.mark.parametrize(("record", "lanes"), [("all", 3), ("compute", 1), ("none", 0)])
def test_record_says_which_rows_are_kept(record, lanes):
    table = table_of(handmade.run(plan_of("1f1b", 2, 2), uniform(5, 5), record=record))
    assert table.lane.nunique() == lanes
    assert tuple(table.columns) == COLUMNS


def test_a_csv_reads_back_as_it_was():
    table = table_of(handmade.run(plan_of("1f1b", 2, 4), uniform(50 * MS, 80 * MS), delay=12345, reduction=MS))
    text = table.to_csv(index=False)
    again = pd.read_csv(io.StringIO(text))
    assert (again.end_s - again.start_s == table.end_s - table.start_s).all()
    assert again.to_csv(index=False).count("\n") == text.count("\n")


def test_a_ring_message_has_a_stage_and_no_microbatch():
    table = table_of(handmade.run(plan_of("1f1b", 2, 2), uniform(5, 5), reduction=7))
    rings = table[table.kind == "ring"]
    assert len(rings) == 2
    assert rings.microbatch.isna().all()
    assert rings.stage.tolist() == [0, 0]


def test_the_table_reads_back_as_the_timelines_columns():
    options = {"delay": 12345, "data": 2, "steps": 2, "reduction": MS, "optimizer": 777}
    run = handmade.run(plan_of("zb-h1", 3, 4), uniform(50 * MS + 1, 80 * MS, weight=30 * MS), **options)
    table, rows = table_of(run), run.timeline.op_rows()
    order = np.lexsort((rows["rank"], rows["start"]))
    again = ops_of(table)
    assert {name: column.tolist() for name, column in again.items()} == {
        name: rows[name][order].tolist() for name in again
    }
    reduced = run.timeline.messages_of(lambda channel: channel.kind == "ring")
    assert sorted(reductions_of(table)["end"].tolist()) == sorted(reduced["end"].tolist())


def test_further_columns_of_a_recorder_change_nothing():
    run = handmade.run(plan_of("1f1b", 2, 3), uniform(5, 5), delay=1)
    before = table_of(run)
    run.timeline.ops["released"] = np.zeros_like(run.timeline.ops["rank"])
    pd.testing.assert_frame_equal(table_of(run), before)
