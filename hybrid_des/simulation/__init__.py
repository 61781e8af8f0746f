"""From a scenario to a run: planner, lowering, GPUs, memory."""
