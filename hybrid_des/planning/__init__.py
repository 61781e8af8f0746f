"""From a scenario to the parts of a simulation: wiring, plan, reductions, programs, and folds that look exact."""
