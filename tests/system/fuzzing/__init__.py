"""Random cases for the command line, recounted scenarios, and killed sweeps: what `tests/system/fuzz.py` runs."""
