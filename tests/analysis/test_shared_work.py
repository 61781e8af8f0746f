"""What the what-ifs of one explanation share, or do not do at all: counted, as no time is worth a test."""

from fractions import Fraction

import numpy as np
import pytest
from support.scenarios import values

from hybrid_des import collectives
from hybrid_des.analysis import explanation
from hybrid_des.analysis.counterfactual import proposals as changes
from hybrid_des.analysis.counterfactual import what_if
from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, link_kind, links_in, variant_of
from hybrid_des.analysis.critical_path.messages import service_alone
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.cluster.rate import rate_of
from hybrid_des.collectives import registration
from hybrid_des.cost_model.collective_times import TimesAlone
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import load

MACHINE = {"gpu": "h100", "nodes": 64}
EXPERTS = {
    "cluster": {"gpu": "h100", "nodes": 1},
    "model": {"base": "mixtral-8x7b", "layers": 2, "sequence": 512},
    "parallel": {"data": 8, "expert": 8},
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "experts": {"power_law": 1.2},
    "gradients": {"bucket": "100 MB", "overlap": True},
}


@pytest.fixture(scope="module")
def base():
    """A run that tests of other changes begin with; none of them changes it."""
    return traced_run(load(EXPERTS))


@pytest.fixture
def measured(monkeypatch):
    """The exchanges that are simulated, by name."""
    names, exchange = [], TimesAlone.of_group

    def counted(times, name, asked):
        names.append(name)
        return exchange(times, name, asked)

    monkeypatch.setattr(TimesAlone, "of_group", counted)
    return names


def test_a_change_of_buckets_simulates_no_exchange_again(measured):
    base = traced_run(load(EXPERTS))
    build, each = builder_of(base.scenario), len(measured)
    assert each > 0
    alone = variant_of("gradients.overlap=false", Variant.of(base), build)
    shared = alone.timed_like(base)
    assert shared.simulated().duration == alone.simulated().duration
    assert len(measured) == 2 * each  # all of them those of the one alone


@pytest.mark.parametrize(
    "change",
    ["cluster.nvlink.bandwidth=2x", "parallel.expert=4", "cluster.sharing=fair", "slow=[{gpu: 0, factor: 0.5}]"],
)
def test_other_links_or_groups_have_times_of_their_own(base, change):
    variant = variant_of(change, Variant.of(base), builder_of(base.scenario))
    known = variant.timed_like(base)
    assert known.times is None or change == "parallel.expert=4"  # whose groups are asked for by their ranks
    assert known.simulated().duration == variant.simulated().duration


def test_a_wiring_of_the_caller_is_not_that_of_proposals(monkeypatch):
    own = []
    trials = changes.trials_of
    monkeypatch.setattr(explanation, "trials_of", lambda *args, **how: own.append(how["own"]) or trials(*args, **how))
    scenario = load(values("1f1b", p=2, m=2))
    explanation.explain(scenario)
    explanation.explain(scenario, fabric=fabric_of(scenario))
    assert own == [True, False]


def test_links_that_nobody_uses_are_not_changed(monkeypatch):
    scenario = load(
        {"cluster": MACHINE, "parallel": {"data": 8}, "workload": {"forward": 1, "backward": 1, "parameters": 1e6}}
    )
    at, asked, scaled = Variant(scenario, None, fabric_of(scenario)), set(), what_if._scaled_link

    def counted(link, factor):
        asked.add(link.name)
        return scaled(link, factor)

    monkeypatch.setattr(what_if, "_scaled_link", counted)
    parts, faster = [*links_in(at)], at.with_all_links(Fraction(2))
    assert not asked
    faster.simulated()
    assert 0 < len(asked) < len(at.fabric.links) / 16
    assert [part.name for part in parts] == ["nvlink", "nic"]


@pytest.mark.parametrize("factor", [Fraction(2), Fraction(1, 3), None])
def test_changed_links_are_those_changed_one_by_one(factor):
    scenario = load(
        {"cluster": {"gpu": "h100", "nodes": 3}, "parallel": {"data": 24}, "workload": {"forward": 1, "backward": 1}}
    )
    at = Variant(scenario, None, fabric_of(scenario))
    links = at.fabric.links
    one_by_one = at.with_links(dict.fromkeys(links, factor))
    assert dict(at.with_all_links(factor).fabric.links) == dict(one_by_one.fabric.links)
    for part in links_in(at):
        names = [name for name in links if link_kind(name) == part.name]
        changed, expected = part.scaled(at, factor).fabric, at.with_links(dict.fromkeys(names, factor)).fabric
        assert dict(changed.links) == dict(expected.links) != dict(links)
        assert changed.blocks is at.fabric.blocks is expected.blocks


def test_the_rings_of_a_group_are_found_once(monkeypatch):
    found, orders = [], registration.orders
    monkeypatch.setattr(registration, "orders", lambda *args, **how: found.append(args) or orders(*args, **how))
    fabric = fabric_of(load({"cluster": MACHINE, "workload": {"forward": 1, "backward": 1}, "parallel": {"data": 512}}))
    group = collectives.process_group("nccl", collectives.Site(fabric, range(0, 512, 2), ()))
    assert len(found) == 1
    assert group.channels == orders(fabric, range(0, 512, 2), None, tuned=True)


@pytest.mark.parametrize("count", [0, 1, 300])
def test_times_on_idle_links_are_those_of_their_rates(count):
    fabric, random = fabric_of(load({"cluster": {"gpu": "h100", "nodes": 2}, "parallel": {"data": 16},
                                     "workload": {"forward": 1, "backward": 1}})), np.random.default_rng(0)  # fmt: skip
    names = [*fabric.links]
    link, size = random.integers(len(names), size=count), random.choice([1, 7, 4096, 10**9, 2**40], count)
    expected = [rate_of(fabric.links[names[a]].bandwidth)[b] for a, b in zip(link.tolist(), size.tolist(), strict=True)]
    assert service_alone(fabric, names, link, size).tolist() == expected
