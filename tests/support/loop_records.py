"""Records of loops made by hand: three cycles of 100 s, two replicas of four GPUs, a trainer of eight."""

from dataclasses import replace

from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.rl.figures import LoopFigures
from hybrid_des.studies.rl.record import EngineSpan, LoopRecord, QueueLength, Sample, TrainerSpan, WeightSync

SECOND = 10**12
CYCLE, CYCLES = 100, 3
TRAINER = (  # of a cycle, in seconds
    ("first samples", 20), ("long tail", 10), ("passes", 5), ("train", 61), ("rest", 2), ("sync", 2),
)  # fmt: skip
ENGINES = (  # of a cycle, by replica: state, seconds, sequences
    (("decode", 60, 4), ("prefill", 2, 4), ("allowance", 36, 0), ("sync", 2, 0)),
    (("decode", 80, 2), ("drained", 18, 0), ("sync", 2, 0)),
)
VALUES = {
    "name": "by_hand",
    "description": "made by hand",
    "cluster": {"gpu": "h100", "nodes": 2},
    "model": {"base": "llama3.1-8b"},
    "parallel": {"data": 8},
    "sharding": "zero-3",
    "batch": 8,
    "rl": {
        "samples": 2,
        "ahead": 0.5,
        "prompt": 100,
        "response": {"kind": "lognormal", "mean": 500, "sigma": 1, "max": 1000},
        "rollout": {"nodes": [1], "tensor": 4},
        "sync": {"time": "2 s"},
        "trainer": {"time": "66 s"},
    },
    "steps": 3,
}


def scenario(**rl):
    """The scenario of the record, with other keys of `rl`."""
    return scenario_from({**VALUES, "rl": {**VALUES["rl"], **rl}})


def spans(parts, begin):
    """Parts of a cycle one after the other: begin, end, state and what else they hold."""
    for state, seconds, *more in parts:
        yield (begin * SECOND, (begin + seconds) * SECOND, state, *more)
        begin += seconds


def sample(batch, number, **changes):
    """A sample of a batch: the first half was begun a cycle before, and every second one has the longest response."""
    begun = max(batch - (number < 4), 0) * CYCLE
    ended = batch * CYCLE + 10 + 5 * (number // 2)
    values = {
        "group": 4 * batch + number // 2, "replica": number % 2, "prompt": 100, "response": 1000 if number % 2 else 200,
        "begun": begun * SECOND, "started": (begun + 1) * SECOND, "ended": ended * SECOND, "ready": ended * SECOND,
        "version": begun // CYCLE, "last_version": batch, "batch": batch, "age": batch - begun // CYCLE,
        "fate": "trained", "recomputed": 50 if number < 4 else 0, "discarded": 0,
    }  # fmt: skip
    return Sample(**{**values, **changes})


def record(**changes):
    """The record, with other values."""
    engines = [
        EngineSpan(replica, begin, end, state, sequences)
        for replica, parts in enumerate(ENGINES)
        for cycle in range(CYCLES)
        for begin, end, state, sequences in spans(parts, cycle * CYCLE)
    ]
    trainer = [
        TrainerSpan(begin, end, state, cycle)
        for cycle in range(CYCLES)
        for begin, end, state in spans(TRAINER, cycle * CYCLE)
    ]
    samples = [sample(batch, number) for batch in range(CYCLES) for number in range(8)]
    more = {"batch": -1, "age": -1}
    samples += [
        sample(2, 4)._replace(group=12, fate="dropped", **more),
        sample(2, 5)._replace(group=13, fate="queued", **more),
    ]
    syncs = [WeightSync((100 * n - 2) * SECOND, 100 * n * SECOND, n) for n in range(1, CYCLES + 1)]
    queue = [
        QueueLength((cycle * CYCLE + at) * SECOND, groups, running)
        for cycle in range(CYCLES)
        for at, groups, running in ((0, 2, 6), (30, 0, 2), (80, 2, 0))
    ]
    rows = (tuple(samples), tuple(engines), tuple(trainer), tuple(syncs), tuple(queue))
    made = LoopRecord(CYCLES * CYCLE * SECOND, *rows, (4, 4), 0, 8)
    return replace(made, **changes)


def figures(made=None, **rl):
    """The figures of a record, by default of the one above."""
    return LoopFigures(made or record(), scenario(**rl).rl, VALUES["batch"])
