"""Runs of one scenario that differ in their seed: their table, statistics and plot."""
