"""Measured runs replayed op by op: how well the simulation matches them, and who was slow."""
