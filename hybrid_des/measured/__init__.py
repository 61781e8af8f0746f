"""Measured data in and out: measurements, imports, replays, corpora of published runs, tables of links."""
