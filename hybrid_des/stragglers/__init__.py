"""Measured runs replayed op by op: how well the simulation meets them, and who was slow."""
