"""Figures of loops that were written by hand, so that every one of them is known."""

from dataclasses import replace

import pytest
from support.loop_records import CYCLES, SECOND, figures, record, sample

from hybrid_des.studies.rl.record import EngineSpan, TrainerSpan, WeightSync
from hybrid_des.studies.rl.summary import summary


def test_warm_up_is_what_may_be_ahead():
    assert [figures(ahead=ahead).warm_up for ahead in (0, 0.5, 1, 2, 5)] == [0, 1, 1, 2, 2]
    assert figures(ahead=0, barrier=True).warm_up == 1


def test_cycles_are_from_sync_to_sync():
    slower = (WeightSync(128 * SECOND, 130 * SECOND, 1), *record().syncs[1:])
    ours = figures(record(syncs=slower))
    assert ours.cycles == [130, 70, 100]
    assert ours.cycle == 85


@pytest.mark.parametrize("ahead", [0, 0.5, 2])
def test_times_of_both_sides_sum_to_the_time(ahead):
    ours = figures(ahead=ahead)
    assert ours.time == (CYCLES - ours.warm_up) * 100 * SECOND
    assert sum(ours.trainer.values()) == ours.time
    assert sum(ours.engines.values()) == 8 * ours.time


def test_a_span_across_the_warm_up_counts_from_its_end():
    spans = [TrainerSpan(0, 150 * SECOND, "train", 0), TrainerSpan(150 * SECOND, 300 * SECOND, "rest", 1)]
    ours = figures(record(trainer=tuple(spans)))
    assert (ours.trainer["train"], ours.trainer["rest"]) == (50 * SECOND, 150 * SECOND)


def test_idle_time_is_told_by_cause():
    ours = figures()
    assert (ours.wait, ours.trainer_busy) == (30, 0.66)
    assert {state: time for state, time in ours.engines.items() if time} == {
        "decode": 4 * 2 * 140 * SECOND, "prefill": 4 * 2 * 2 * SECOND, "allowance": 4 * 2 * 36 * SECOND,
        "drained": 4 * 2 * 18 * SECOND, "sync": 2 * 4 * 2 * 2 * SECOND,
    }  # fmt: skip
    assert ours.rollout_busy == pytest.approx(0.71)


def test_sums_stay_whole_for_many_gpus_and_days():
    day = 86400 * SECOND
    many = tuple(EngineSpan(replica, 0, 30 * day, "decode", 1) for replica in range(4))
    ours = figures(record(engines=many, gpus_of_replicas=(4096,) * 4, end=30 * day), ahead=0)
    assert ours.engines["decode"] == 4 * 4096 * 30 * day > 2**63


def test_rates_are_of_trained_samples_after_the_warm_up():
    ours = figures()
    assert ours.samples_per_s == 16 / 200
    assert ours.tokens_per_s == (16 * 100 + 8 * 1000 + 8 * 200) / 200
    assert ours.gpus == 16
    assert ours.tokens_per_gpu_s == ours.tokens_per_s / 16


def test_cadence_counts_the_batches_of_a_sync():
    halves = [one._replace(batch=2 * one.batch + number % 2) for number, one in enumerate(record().samples[:24])]
    ours = figures(record(samples=tuple(halves)), sync={"time": 2, "every": 2})
    assert ours.samples_per_s == 16 / 200


def test_queue_is_a_mean_over_time():
    assert figures().queue == pytest.approx((2 * 0.3 + 2 * 0.2, 6 * 0.3 + 2 * 0.5))


def test_ages_and_versions_of_trained_samples():
    ours = figures()
    assert (ours.ages.mean, ours.ages.p95, ours.ages.largest, ours.ages.counts) == (0.5, 1, 1, {0: 8, 1: 8})
    assert ours.spans.counts == {1: 8, 2: 8}


def test_a_sample_begun_long_before_it_started_spans_fewer_versions():
    late = sample(2, 0, started=205 * SECOND)
    assert figures(record(samples=(late,))).spans.counts == {1: 1}


def test_lengths_are_those_drawn_and_those_trained():
    ours = figures()
    assert ours.drawn.mean == (13 * 1000 + 13 * 200) / 26
    assert (ours.trained_lengths.mean, ours.trained_lengths.median, ours.trained_lengths.at_cap) == (600, 600, 0.5)


def test_lost_tokens_and_samples_are_counted():
    ours = figures()
    assert (ours.tokens("recomputed"), ours.tokens("discarded")) == (2 * 4 * 50, 0)
    assert (ours.samples_with("dropped"), ours.samples_with("filtered")) == (1, 0)


def test_verl_counts_from_the_last_pause_of_all_engines():
    assert figures().idle_by_last_pause == pytest.approx((100 - 80) / 100)


def test_verl_overwrites_an_earlier_pause():
    parts = [("decode", 10), ("drained", 60), ("decode", 10), ("drained", 18), ("sync", 2)]
    spans = []
    for replica in range(2):
        for cycle in range(CYCLES):
            at = 100 * cycle
            for state, seconds in parts:
                spans.append(EngineSpan(replica, at * SECOND, (at + seconds) * SECOND, state, 1))
                at += seconds
    ours = figures(record(engines=tuple(spans)))
    assert ours.idle_by_last_pause == pytest.approx(0.2)
    assert 1 - ours.rollout_busy == pytest.approx(0.8)


def test_verl_sees_no_pause_while_any_engine_decodes():
    spans = [one for one in record().engines if one.replica == 0]
    spans += [EngineSpan(1, 0, 300 * SECOND, "decode", 1)]
    assert figures(record(engines=tuple(spans))).idle_by_last_pause == 0


def test_lent_gpus_are_apart():
    lending = [EngineSpan(2, 0, 150 * SECOND, "decode", 3), EngineSpan(2, 150 * SECOND, 300 * SECOND, "away", 0)]
    base = record()
    ours = figures(replace(base, engines=(*base.engines, *lending), gpus_of_replicas=(4, 4, 8), lent=1))
    assert (ours.rollout_gpus, ours.gpus) == (8, 16)
    assert {state: time for state, time in ours.lent.items() if time} == {
        "decode": 8 * 50 * SECOND,
        "away": 8 * 150 * SECOND,
    }
    assert sum(ours.engines.values()) == 8 * ours.time


def test_shared_gpus_count_once():
    assert figures(rollout={"on": "trainer", "tensor": 4}, ahead=0).gpus == 8


def test_summary_has_the_promised_keys():
    facts = summary(figures())
    promised = "cycle_s samples_per_s tokens_per_gpu_s trainer rollout queue staleness spans recomputed_tokens dropped"
    assert {*promised.split()} <= facts.keys()
    assert sum(facts["trainer"]["time_s"].values()) == pytest.approx(facts["cycle_s"])
    assert sum(facts["rollout"]["time_s"].values()) == pytest.approx(facts["cycle_s"])


def test_a_loop_without_samples_has_figures():
    facts = summary(figures(record(samples=())))
    assert (facts["samples_per_s"], facts["staleness"]["max"], facts["lengths"]["drawn"]["mean"]) == (0, 0, 0)
