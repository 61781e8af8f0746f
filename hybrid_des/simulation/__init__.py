"""The plain run of a scenario: GPUs that read their programs, communicators, jobs, memory, and what is recorded."""
