"""Tables of measured times from the output of benchmarks."""
