"""Runs of a scenario over seeds: how its step time is distributed under jitter, and how two scenarios compare."""
