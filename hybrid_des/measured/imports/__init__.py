"""Profiles of other programs as scenarios, and scenarios as traces for other simulators."""
