"""Scenarios: a YAML file or plain mapping becomes a frozen, validated `Scenario`, or a list of all its problems.

From a file, with overrides from the command line:

    from hybrid_des import load

    scenario = load("scenarios/a100_8x.yaml", ["schedule.kind=gpipe"])
    scenario.workload.forward       # Fraction(1, 20), in seconds
"""
