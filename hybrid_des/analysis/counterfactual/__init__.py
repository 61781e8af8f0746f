"""Counterfactuals: runs with one thing changed or made ideal, simulated again."""
