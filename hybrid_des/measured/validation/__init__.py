"""Predictions against measurements: corpora of published runs, their errors, and fitted numbers."""
