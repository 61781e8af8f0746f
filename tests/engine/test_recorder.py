"""Times that no row can hold are refused as such; other errors stay what they are."""

from dataclasses import replace
from struct import error

import pytest

from hybrid_des import collectives
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import LAST_TIME, MESSAGE_COLUMNS, Rows, TimeRangeError
from hybrid_des.scenario import scenario_from
from hybrid_des.simulation.run import run


def scenario(sharing="fifo", record="all", pipeline=1, data=1, **workload):
    return scenario_from(
        {
            "cluster": {"nvlink": {"bandwidth": "1 B/s", "latency": 0}, "gpus_per_node": 2, "sharing": sharing},
            "parallel": {"pipeline": pipeline, "data": data},
            "schedule": {"kind": "gpipe", "microbatches": 150},
            "workload": {"forward": "1 ms", "backward": "1 ms", **workload},
            "record": record,
        }
    )


@pytest.mark.parametrize("record", ["all", "none"])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_times_beyond_64_bits_are_refused(sharing, record):
    """150 messages, each of them 22 hours on the wire."""
    with pytest.raises(TimeRangeError, match="passes 106 days"):
        run(scenario(sharing, record, pipeline=2, activation=80_000))


def test_an_overflow_in_a_users_collective_stays_one(monkeypatch):
    def boastful(group, buffer):
        float(10**400)
        yield

    entry = collectives.find("ring")
    monkeypatch.setitem(collectives._REGISTRY._entries, "ring", replace(entry, build=boastful))
    with pytest.raises(OverflowError, match="too large to convert to float"):
        run(scenario(data=2, parameters=10))


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
