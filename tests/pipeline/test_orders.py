"""PyTorch's order format both ways, and what is said about an order that cannot be."""

import pytest
from support.paths import GOLDEN
from support.plans import options_of, plan_of, rows
from support.sizes import exists, grid
from support.tables import from_table

from hybrid_des.errors import PlanError
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import crossed_messages, read_order, write_order
from hybrid_des.pipeline.plan import Op, Plan, loop

# V-Half and V-Min are held to the reference by time and memory, not by the letter.
ORDERS = {
    row["variant"]: row
    for row in rows("schedules.csv")
    if (GOLDEN / "orders" / f"{row['variant']}_p4_m8.csv").exists() and row["compare"] == "exact"
}
GOOD = "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"


@pytest.mark.parametrize("variant", ORDERS)
def test_orders_are_the_reference(variant):
    row = ORDERS[variant]
    plan = plan_of(row["kind"], 4, 8, int(row["chunks"]), **options_of(row["options"]))
    assert write_order(plan) == (GOLDEN / "orders" / f"{variant}_p4_m8.csv").read_text()


WRITTEN = [(kind, size) for kind in schedules.names() for size in grid(kind, 4, 8, 2) if size[:2] == (4, 8)]


@pytest.mark.parametrize(("kind", "size"), [(kind, size) for kind, size in WRITTEN if exists(kind, size)])
def test_what_is_written_reads_back(kind, size):
    plan = plan_of(kind, *size)
    again = read_order(write_order(plan), "order.csv", pipeline=4)
    assert again == plan
    assert write_order(again) == write_order(plan)


def test_empty_cells_and_trailing_lines_mean_nothing():
    assert read_order(GOOD.replace("0B0", ", 0B0,") + "\n,,\n", "x") == read_order(GOOD, "x")


def test_any_placement_is_read():
    plan = read_order("0F0,3F0,3B0,0B0\n2F0,2B0\n1F0,1B0\n", "x")
    assert plan.paths == (((0, 0), (2, 0), (1, 0), (0, 1)),)


def refused(text: str, pipeline: int | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        read_order(text, "order.csv", pipeline=pipeline)
    message = str(caught.value)
    assert message.startswith("order.csv: ")
    return message


def test_missing_op_is_marked_on_its_rank():
    message = refused(GOOD.replace("1B1,", ""))
    assert "rank 1: 1B1 is missing" in message
    assert ">rank 1<" in message and ">1F1<" in message


def test_doubled_op():
    message = refused(GOOD.replace("0B2", "0B2,0B1"))
    assert "0B1 occurs twice, at actions 4 and 6" in message and message.count(">0B1<") == 2


def test_circular_wait_names_every_stuck_rank():
    message = refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    assert "circular wait" in message
    assert "rank 0 at action 1 (0B0) waits for 1B0" in message and "rank 1 at action 0 (1F1) waits for 0F1" in message
    assert ">0B0<" in message and ">1F1<" in message


def test_op_in_a_wrong_row():
    message = refused(GOOD.replace("0F1,", "0F1,1F1,").replace("1B0,1F1,", "1B0,"))
    assert "rank 0, action 2: 1F1 does not belong there: stage 1 is on rank 1" in message
    assert ">1F1<" in message


def test_a_copy_that_a_micro_batch_leaves_half_way():
    text = write_order(plan_of("chimera", 2, 4))
    first, second = text.splitlines()
    message = refused(f"{first.replace('0B0,', '')}\n{second},0B0\n")
    assert "micro-batch 0 runs stage 0 on ranks 0 and 1" in message and message.count(">0") == 2
    assert "micro-batch 0 skips stage 1" in refused(text.replace("1F0,", "").replace("1B0,", ""))
    mixed = "0F0,0F1,1F2,1B2,0B0,0B1\n1F0,1B0,0F2,0B2\n1F1,1B1\n"
    assert "neither of two disjoint paths" in refused(mixed)


@from_table
def test_unreadable_orders(text, said):
    assert said in refused(text)


def test_number_of_rows():
    assert "2 rows, one for each rank, but the pipeline has 4" in refused(GOOD, pipeline=4)


def test_long_orders_are_drawn_around_the_mark():
    text = write_order(plan_of("1f1b", 4, 64))
    message = refused(text.replace("2B40,", ""))
    assert "2B40 is missing" in message and ">2F40<" in message and len(message.splitlines()) < 40


def test_plan_that_names_a_place_that_does_not_exist():
    plan = Plan.of([[Op("F", 0), Op("B", 0)], [Op("F", 0, 7), Op("B", 0)]], [loop(2, 1)], [0])
    with pytest.raises(PlanError, match=r"rank 1, action 0: F of micro-batch 0 on chunk 7.*\n(.*\n)*.*>\?F0<"):
        plan.check()


def test_crossed_messages():
    for kind in ("1f1b", "gpipe", "zb-h1", "eager-1f1b", "zb-h2"):
        assert crossed_messages(plan_of(kind, 4, 8)) == []
    assert crossed_messages(plan_of("zb-v", 4, 8))[0].startswith("rank 0 → rank 1: message ")
    crossed = Plan.of(
        [[Op("F", 0), Op("F", 1), Op("B", 0), Op("B", 1)], [Op("F", 1), Op("F", 0), Op("B", 0), Op("B", 1)]],
        [loop(2, 1)],
        [0, 0],
    )
    crossed.check()
    assert crossed_messages(crossed) == [
        "rank 0 → rank 1: message 0 is sent as activation of stage 0, micro-batch 0, but awaited as activation of "
        "stage 0, micro-batch 1; a runtime that pairs messages by their order (PyTorch with defer_pp_recv) would mix "
        "them up"
    ]
