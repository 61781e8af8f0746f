"""Times that no row can hold are refused as such; other errors stay what they are."""

from struct import error

import pytest
from support.scenarios import scenario

from hybrid_des.collectives.registration import collective
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import LAST_TIME, MESSAGE_COLUMNS, Rows, TimeRangeError
from hybrid_des.shortcuts.run import run

SLOW = {"nvlink": {"bandwidth": "1 B/s", "latency": 0}, "gpus_per_node": 2}


@pytest.mark.parametrize("record", ["all", "none"])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_times_beyond_64_bits_are_refused(sharing, record):
    """150 messages, each of them 22 hours on the wire."""
    with pytest.raises(TimeRangeError, match="passes 106 days"):
        cluster = {**SLOW, "sharing": sharing}
        run(scenario("gpipe", 2, 150, cluster=cluster, workload={"activation": 80_000}, record=record))


def test_an_overflow_in_a_users_collective_stays_one(scratch):
    @collective("boastful", summary="overflows")
    def boastful(group, buffer):
        float(10**400)
        yield

    with pytest.raises(OverflowError, match="too large to convert to float"):
        run(scenario(d=2, cluster=SLOW, workload={"parameters": 10}, gradients={"algorithm": "boastful"}))


def test_a_clock_past_the_last_picosecond_is_refused():
    env = Environment(LAST_TIME)
    env.run()
    env.timeout(1)
    with pytest.raises(TimeRangeError):
        env.run()


def test_a_row_holds_whole_numbers_of_64_bits():
    rows = Rows(MESSAGE_COLUMNS)
    rows.add((0, 0, 0, 0, LAST_TIME, 8))
    with pytest.raises(TimeRangeError):
        rows.add((0, 0, 0, 0, LAST_TIME + 1, 8))
    with pytest.raises(error, match="not an integer"):
        rows.add((0, 0, 0, 0, 0.5, 8))
    assert len(rows) == 1
