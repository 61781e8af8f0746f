"""The counterfactuals of an explanation, one task after the other."""

from hybrid_des.analysis.counterfactual.attribution import straggler_tasks, stragglers_of
from hybrid_des.analysis.counterfactual.ladder import ladder_tasks, rungs_of
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.tasks import in_turn


def stragglers(base):
    return stragglers_of(base, in_turn(straggler_tasks(base)))


def ladder(base):
    return rungs_of(base, in_turn(ladder_tasks(Variant.of(base))))
