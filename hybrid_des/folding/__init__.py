"""Exact folding: ranks that do the same at the same time are simulated once."""
