"""Scenarios: a YAML file or plain mapping becomes a frozen, validated `Scenario`, or a list of all its problems.

From a file, with overrides from the command line:

    scenario = load("scenarios/a100_8x.yaml", ["schedule.kind=gpipe"])
    scenario.workload.forward       # Fraction(1, 20), in seconds
"""

from hybrid_des.scenario.definition import LABELS, Scenario
from hybrid_des.scenario.export import json_schema, to_mapping
from hybrid_des.scenario.loading import (
    Source,
    document_of,
    fewest,
    given_values,
    load,
    misnamed,
    read_scenario,
    scenario_from,
    scenario_of,
)
from hybrid_des.scenario.sections.cluster import Cluster, GpuKind, InfiniBand
from hybrid_des.scenario.sections.numerics import Numerics
from hybrid_des.scenario.sections.training import Gradients, Memory, Parallel, Schedule, Workload

__all__ = [
    "LABELS", "Cluster", "GpuKind", "Gradients", "InfiniBand", "Memory", "Numerics", "Parallel", "Scenario",
    "Schedule", "Source", "Workload", "document_of", "fewest", "given_values", "json_schema", "load",
    "misnamed", "read_scenario", "scenario_from", "scenario_of", "to_mapping",
]  # fmt: skip
