"""Profiles and traces of measured runs, and execution traces of other simulators, read and written."""
