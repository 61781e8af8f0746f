"""From a scenario to the parts of a simulation: programs of ranks, their messages and gradients."""
