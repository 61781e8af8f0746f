"""Predictions against measurements: a corpus of published runs, its errors, and a fit of some numbers to part of it."""
