"""From a scenario to a run: costs, programs, GPUs that run them, and the timeline."""
