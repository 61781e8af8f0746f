"""Searches for the best plan that fits, with a proof.

found = search("scenarios/search/13b_64.yaml", jobs=2)
found.sentence          # optimal: 9 simulated, 264 excluded by bound, 15 do not fit, …
found.table()           # a row per plan

space         the plans, and their values                     space
screen        a first bound on time and memory, from costs    least_times
bound_order   memory from the order of ops, a bound on time   bound, least_times
simulate      best first                                      branch, evaluation
"""

from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.studies.plan_search.best_plan import explore, search
from hybrid_des.studies.plan_search.bound import least_step
from hybrid_des.studies.plan_search.branch import Candidate, Standing
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.plot import draw
from hybrid_des.studies.plan_search.space import plans_in, values_of
from hybrid_des.studies.plan_search.terms import Settings, settings_of

__all__ = [
    "Candidate", "SearchResult", "Settings", "Standing", "draw", "explore", "least_step", "megatron",
    "plans_in", "search", "settings_of", "torchtitan", "values_of",
]  # fmt: skip
