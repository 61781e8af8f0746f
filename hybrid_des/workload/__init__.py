"""Costs of the stages of a model."""
