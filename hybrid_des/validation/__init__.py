"""Predictions against measurements: a corpus of published runs, its errors, and a fit of few numbers to some of it."""
