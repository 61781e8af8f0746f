"""Short histories worked by hand: the ledger holds what happened, to the picosecond."""

import pytest
from support.campaigns import thinned
from support.weeks import lived, seconds, weeks

from hybrid_des.studies.goodput.failures import history

JOB_FAILS = {"what": "job", "times": ["250 s"]}
SYNC = {"every": "100 s", "cost": "20 s"}


def ledger(scenario):
    job, (one,) = lived(scenario)
    assert sum(one.ledger.values()) == job.horizon
    return seconds(one)


def test_a_failure_costs_work_detection_and_restart():
    """Saved at 120 and 240; 10 s are lost at 250; work again from 270 on."""
    scenario = weeks(horizon="600 s", classes=[JOB_FAILS], detect="5 s", restart={"time": "15 s"}, checkpoint=SYNC)
    assert ledger(scenario) == {"useful": 490, "rework": 10, "checkpoint": 80, "detection": 5, "restart": 15}


def test_a_failure_during_a_checkpoint_loses_what_it_saves():
    fails = {"what": "job", "times": ["110 s"]}
    scenario = weeks(horizon="200 s", classes=[fails], detect=0, restart={"time": 0}, checkpoint=SYNC)
    assert ledger(scenario) == {"rework": 100, "checkpoint": 10, "useful": 90}


def test_a_checkpoint_comes_at_the_end_of_a_step():
    """Steps of 10 s, 25 s of work: three steps and 5 s, eight times and 20 s of a ninth."""
    scenario = weeks(horizon="300 s", classes=[{"what": "job", "times": []}], checkpoint={"every": 25, "cost": 5})
    assert ledger(scenario) == {"useful": 260, "checkpoint": 40}


@pytest.mark.parametrize("every", ["3 steps", "30 s", "21 s"])
def test_intervals_in_steps_and_in_time_agree(every):
    scenario = weeks(horizon="301 s", classes=[JOB_FAILS], checkpoint={"every": every, "cost": 5})
    assert ledger(scenario) == {"useful": 256, "rework": 5, "checkpoint": 40}


def test_an_asynchronous_checkpoint_counts_when_it_is_written():
    """Written from 102 to 152: a failure at 130 loses it, one at 160 loses 58 s of work after it."""
    mode = {"every": "100 s", "mode": "async", "blocking": "2 s", "write": "50 s"}
    lost = {}
    for at in (130, 160):
        fails = {"what": "job", "times": [at]}
        scenario = weeks(horizon="200 s", classes=[fails], detect=0, restart={"time": 0}, checkpoint=mode)
        lost[at] = ledger(scenario)["rework"]
    assert lost == {130: 128, 160: 58}


def test_a_checkpoint_waits_until_the_last_one_is_written():
    """Due every 10 s, written in 25 s: after 10, 40 and 70 s of work."""
    mode = {"every": "10 s", "mode": "async", "blocking": 0, "write": "25 s"}
    _, (one,) = lived(weeks(horizon="99 s", classes=[{"what": "job", "times": []}], checkpoint=mode))
    assert one.checkpoints == 3


@pytest.mark.parametrize("mode", [SYNC, {"every": "100 s", "mode": "async", "blocking": "20 s", "write": "90 s"}])
@pytest.mark.parametrize("cycles", [2, 3, 50])
def test_many_checkpoints_are_counted_like_few(mode, cycles):
    """A failure 10 s into the work after a number of checkpoints of 100 + 20 s; async, that work is not yet written."""
    at = 120 * cycles + 10
    fails = {"what": "job", "times": [at]}
    scenario = weeks(horizon=at, classes=[fails, {"what": "job", "times": [at - 1]}], checkpoint=mode)
    lost = 9 if "cost" in mode else 109
    assert ledger(scenario) == {"useful": 100 * cycles + 9 - lost + 1, "rework": lost, "checkpoint": 20 * cycles}


def test_copies_in_memory_survive_one_node_only():
    """Copies after 100 and 200 s, in storage only that of 100: a node loses 50 s, a switch 150."""
    memory = {"every": "100 s", "mode": "memory", "blocking": 0, "write": 0, "persist": {"every": 60, "write": "110 s"}}
    rework = {}
    for what, domain in (("node", "node"), ("switch", 2)):
        fails = {"what": what, "times": [250], "domain": domain}
        spares = {"nodes": 2, "swap": 0, "repair": "1 d"}
        scenario = weeks(d=2, horizon="300 s", classes=[fails], spares=spares, checkpoint=memory)
        rework[what] = ledger(scenario)["rework"]
    assert rework == {"node": 50, "switch": 150}


def test_without_checkpoints_everything_is_lost():
    scenario = weeks(horizon="300 s", classes=[JOB_FAILS], detect=0, restart={"time": 0}, checkpoint="none")
    assert ledger(scenario) == {"rework": 250, "useful": 50}


def test_a_failure_while_restarting_begins_anew():
    fails = {"what": "job", "times": [101, 111]}
    rest = {"horizon": "200 s", "classes": [fails], "detect": "5 s", "checkpoint": {"every": 100, "cost": 0}}
    hit = weeks(**rest, restart={"time": "15 s", "can_fail": True})
    assert ledger(hit) == {"useful": 169, "rework": 1, "detection": 10, "restart": 20}
    safe = weeks(**rest, restart={"time": "15 s", "can_fail": False})
    assert ledger(safe) == {"useful": 179, "rework": 1, "detection": 5, "restart": 15}


NODE_FAILS = {"what": "node", "times": [100]}
SAVED = {"every": "1 steps", "cost": 0}


def test_a_spare_takes_the_place_of_a_node():
    scenario = weeks(d=2, horizon="300 s", classes=[NODE_FAILS], detect=0, restart={"time": "4 s"}, checkpoint=SAVED,
                     spares={"nodes": 1, "swap": "6 s", "repair": "50 s"})  # fmt: skip
    assert ledger(scenario) == {"useful": 290, "swap": 6, "restart": 4}


def test_without_spares_the_job_waits_for_the_repair():
    scenario = weeks(d=2, horizon="300 s", classes=[NODE_FAILS], detect="10 s", restart={"time": "4 s"},
                     checkpoint=SAVED, spares={"nodes": 0, "swap": "6 s", "repair": "50 s"})  # fmt: skip
    assert ledger(scenario) == {"useful": 240, "detection": 10, "repair": 40, "swap": 6, "restart": 4}


def test_a_repaired_node_is_the_next_spare():
    """Two failures 60 s apart, with one spare: the second waits only while the first node is not back."""
    waits = {}
    for repair in (50, 80):
        twice = {"what": "node", "times": [100, 160]}
        scenario = weeks(d=2, horizon="300 s", classes=[twice], detect=0, restart={"time": 0}, checkpoint=SAVED,
                         spares={"nodes": 1, "swap": 0, "repair": repair})  # fmt: skip
        waits[repair] = ledger(scenario).get("repair", 0)
    assert waits == {50: 0, 80: 20}


def test_a_class_may_be_repaired_sooner_than_others():
    rest = {"d": 2, "horizon": "300 s", "detect": 0, "restart": {"time": 0}, "checkpoint": SAVED}
    quick = weeks(**rest, classes=[{**NODE_FAILS, "repair": 30}], spares={"nodes": 0, "swap": 0, "repair": 50})
    assert ledger(quick) == {"useful": 270, "repair": 30}


def test_a_domain_takes_down_all_nodes_below_it():
    """Four nodes below two switches, one spare: a switch takes two nodes, and the job waits for one."""
    fails = {"what": "switch", "times": [100], "domain": 2}
    scenario = weeks(d=4, horizon="300 s", classes=[fails], detect=0, restart={"time": 0}, checkpoint=SAVED,
                     spares={"nodes": 1, "swap": 0, "repair": 50})  # fmt: skip
    assert ledger(scenario) == {"useful": 250, "repair": 50}


def test_a_flap_within_a_step_costs_its_length():
    fails = {"what": "link", "times": [15], "effect": {"flap": "7 s"}}
    scenario = weeks(horizon="107 s", classes=[fails], checkpoint={"every": 100, "cost": 9})
    assert ledger(scenario) == {"useful": 100, "flap": 7}


def test_a_slow_node_slows_the_steps_that_begin_meanwhile():
    """From 15 s on at half speed for 30 s: steps from 20, 40 to 60 take 20 s, the others 10 s."""
    slow = {"what": "node", "times": [15], "effect": {"slow": "0.5", "lasts": "30 s"}}
    scenario = weeks(horizon="100 s", classes=[slow], checkpoint={"every": "1 steps", "cost": 0})
    assert ledger(scenario) == {"useful": 80, "slow": 20}


def elastic(batch, m=2, **more):
    """Two replicas of two micro-batches; one node fails at 100 s for 100 s."""
    return weeks(10, d=2, m=m, horizon="400 s", classes=[{"what": "node", "times": [100]}], detect=0,
                 restart={"time": 0}, checkpoint=SAVED, spares={"nodes": 0, "swap": 0, "repair": "100 s"},
                 elastic={"min_replicas": 1, "batch": batch}, **more)  # fmt: skip


def test_other_replicas_take_over_the_batch():
    """From 100 to 220 s steps of 40 s instead of 20: the node is back at 200, and joins after the third step."""
    assert ledger(elastic("keep")) == {"useful": 340, "fewer_replicas": 60}


def test_half_of_a_batch_is_half_as_useful():
    """Six steps of 20 s for one replica: the node is back when the sixth begins."""
    assert ledger(elastic("shrink")) == {"useful": 340, "fewer_replicas": 60}


def test_a_checkpoint_without_cost_is_not_too_late():
    fails = {"what": "job", "times": [100]}
    for every in (10, 100):
        scenario = weeks(horizon="200 s", classes=[fails], detect=0, restart={"time": 0},
                         checkpoint={"every": every, "cost": 0})  # fmt: skip
        assert ledger(scenario) == {"useful": 200}


def test_a_job_waits_where_too_few_replicas_are_left():
    scenario = elastic("keep")
    faults = scenario.faults.model_copy(update={"elastic": scenario.faults.elastic.model_copy(
        update={"min_replicas": 2})})  # fmt: skip
    assert ledger(scenario.model_copy(update={"faults": faults})) == {"useful": 300, "repair": 100}


def test_a_node_may_fail_while_its_replica_is_loaded():
    """Both replicas have lost a node when the first restart would end: the job waits for the first to come back."""
    twice = [{"what": "node", "name": name, "times": [at]} for name, at in (("a", 100), ("b", 105))]
    for seed in range(4):  # which of the two nodes fails is drawn
        scenario = weeks(10, d=2, m=2, seed=seed, horizon="400 s", classes=twice, detect=0, restart={"time": "10 s"},
                         checkpoint=SAVED, spares={"nodes": 0, "swap": 0, "repair": "100 s"},
                         elastic={"min_replicas": 1})  # fmt: skip
        _, (one,) = lived(scenario)
        found = seconds(one)
        assert found.get("repair", 0) in (0, 95)  # the second node was idle, or the job waits until 200


def test_a_repaired_node_returns_to_its_own_replica():
    """Three of four nodes fail at 100, 101 and 102 s for 100 s: the replica that lost one of them is whole first.

    So the job goes on at 200 s if that one failed first, else at 201 s: by the second, or with the other two.
    """
    thrice = [{"what": "node", "name": name, "times": [at]} for name, at in (("a", 100), ("b", 101), ("c", 102))]
    waited = set()
    for seed in range(12):  # which nodes fail is drawn
        job, (one,) = lived(weeks(1, p=2, d=2, seed=seed, horizon="400 s", classes=thrice, detect=0,
                                  restart={"time": 0}, checkpoint=SAVED, elastic={"min_replicas": 1},
                                  spares={"nodes": 0, "swap": 0, "repair": "100 s"}))  # fmt: skip
        struck = [event.part for event in history(job.sources, job.horizon, seed, 0)]
        first, second, third = (job.replicas[place] for place in struck)
        if len(set(struck)) == 3:
            stops, goes_on = 101 if first != second else 102, 200 if second == third else 201
            assert seconds(one)["repair"] == goes_on - stops
            waited.add((stops, goes_on))
    assert len(waited) == 3


@pytest.mark.parametrize("seed", thinned(range(6), slow=[3, 4, 5]))
@pytest.mark.parametrize("mode", ["sync", "async", "memory", "none", None])
def test_every_ledger_adds_up_to_the_wall_time(mode, seed):
    checkpoint = {
        "sync": {"every": "7 min", "cost": "20 s"},
        "async": {"every": "13 steps", "mode": "async", "blocking": "1 s", "write": "90 s"},
        "memory": {"every": "2 min", "mode": "memory", "blocking": "1 s", "write": "3 s",
                   "persist": {"every": "1 h", "write": "5 min"}},
        "none": "none",
        None: None,
    }[mode]  # fmt: skip
    classes = [
        {"what": "gpu", "mtbf": "20 h"},
        {"what": "power", "mtbf": "50 h", "domain": 2},
        {"what": "link", "weibull": {"scale": "30 h", "shape": 0.7}, "effect": {"flap": "20 s"}},
        {"what": "node", "mtbf": "20 h", "effect": {"slow": 0.7, "lasts": "1 h"}},
        {"what": "job", "count": 9, "over": "1 d"},
    ]
    scenario = weeks(7, p=2, d=3, m=2, seed=seed, horizon="5 d", classes=classes, detect="1 min",
                     restart={"time": "5 min", "can_fail": seed % 2 == 0}, checkpoint=checkpoint,
                     spares={"nodes": seed % 3, "swap": "30 s", "repair": "6 h"},
                     elastic={"min_replicas": 1} if seed > 2 else "none")  # fmt: skip
    job, (one,) = lived(scenario)
    assert sum(one.ledger.values()) == job.horizon
    assert min(one.ledger.values()) >= 0
    assert sum(row.end - row.start for row in one.intervals) == job.horizon
    assert sum(failure.rework for failure in one.failures) == one.ledger["rework"]
