"""Replays of measured runs: who was slow, and what it cost."""
