"""Many runs: sweeps, searches, weeks with failures, several jobs, seeds, replays, corpora and imports."""
