"""Jobs that are folded together are explained as with all of their ranks: paths, idle time, who waits for whom."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.joint_foldings import jobs_values, planned

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.jobs import load_jobs
from hybrid_des.shortcuts import joint_folds
from hybrid_des.studies.jobs import neighbours, variants
from hybrid_des.studies.jobs.explained import explain_jobs

CAMPAIGNS, MOST = 4 * TIMES, 60  # cases, of which each draws some
ENOUGH = 3  # jobs whose messages share a link with images of theirs, and wait
NOT_ALIKE = ("wall_s", "events", "ranks_simulated")


@pytest.fixture(autouse=True)
def _fold_however_few_messages(monkeypatch):
    monkeypatch.setattr(joint_folds, "MESSAGES", 0)
    monkeypatch.setattr(variants, "MOST_EVENTS", 0)  # changes are simulated without causes


def explained(seed, **how):
    """Jobs with an explanation; None if they are impossible."""
    try:
        return explain_jobs(jobs_values(Random(seed)), **how)
    except HybridDesError:
        return None


def told(found):
    """What an explanation says, and what files have of links, but for how it was simulated."""
    rows, facts = found.neighbours.rows, found.neighbours.summary
    of_jobs = {name: {key: job[key] for key in job if key not in NOT_ALIKE} for name, job in facts["jobs"].items()}
    summary = {**{key: facts[key] for key in facts if key not in NOT_ALIKE}, "jobs": of_jobs}
    paths = [(one.path, one.idle, one.to_mapping()) for one in found.jobs]
    periods = {link: [(name, *_sorted(*columns)) for name, *columns in rows.on(link)] for link in rows.links}
    return paths, summary, rows.waits, rows.end, periods


def _sorted(*columns):
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("campaign", thinned(range(CAMPAIGNS), slow=range(1, CAMPAIGNS)))
def test_folded_jobs_are_explained_as_all_of_their_ranks(campaign):
    reached = Counter()
    for seed in range(campaign * MOST, (campaign + 1) * MOST):
        if (whole := explained(seed, folded=False)) is None:
            continue
        folded = explained(seed)
        assert told(folded) == told(whole), f"seed {seed}"
        assert not whole.neighbours.folds
        for images in folded.neighbours.folds.values():
            several = any(weight > 1 for pair in images.pairs for weight in images.weights(*pair).values())
            reached[several, bool(folded.neighbours.rows.waits)] += 1
        if reached[True, True] >= ENOUGH:
            return
    pytest.fail("some messages must have several images on a link, and wait")


def folded_seed():
    """Jobs that are folded."""
    return next(seed for seed in range(20) if (found := explained(seed)) and found.neighbours.folds)


def test_events_of_folded_jobs_count_those_of_all_ranks():
    """An image has events of its own but for the ends of instants: up to 9 % of the few events of these runs."""
    seed = folded_seed()
    of_folded, of_all = (explained(seed, folded=folded).neighbours for folded in (True, False))
    assert of_folded.events_together == pytest.approx(of_all.events_together, rel=0.1)
    assert of_folded.events_of.values() and set(of_folded.events_of.values()) == {of_folded.events_together}
    assert max(one.together.events for one in of_folded.runs) < of_folded.events_together


def test_causes_without_known_images_are_recorded_anew(monkeypatch):
    seed = folded_seed()
    whole = told(explained(seed, folded=False))
    monkeypatch.setattr(neighbours, "images_are_known", lambda _: False)
    found = explained(seed)
    assert not found.neighbours.folds and told(found) == whole


def test_jobs_behind_parameter_servers_are_explained_with_all_ranks():
    """A server takes equal arrivals in any order: of a folded run, the cause of its next send may be another one."""
    served = load_jobs(jobs_values(Random(8)))
    assert any(one.scenario.gradients.algorithm == "parameter-server" for one in served.jobs)
    assert joint_folds.joint_folds(planned(served)) is not None
    assert not explained(8).neighbours.folds
