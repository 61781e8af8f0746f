"""Random cases for the command line, recounted scenarios, and killed sweeps: what `test_fuzz.py` runs."""
