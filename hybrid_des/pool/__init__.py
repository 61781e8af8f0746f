"""One pool for work that is done in parallel: in this process, on local processes, or on any executor."""
