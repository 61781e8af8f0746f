"""Weeks of wall time as a renewal process: failures occur, the job loses work, recovers and continues.

Two time scales meet here. A training step is simulated exactly, once for each state of the cluster (`states`); weeks
are a discrete-event simulation over these step times (`process`), driven by random histories of failures (`failures`).

| module | |
|---|---|
| `failures` | what fails (parts, rates, nodes), and when: each class has random numbers of its own |
| `states` | how long a step takes in each state of the cluster |
| `work` | steps and checkpoints between two events; closed forms of the best interval |
| `process` | the job: running, stopped, recovering |
| `summary` | mean, percentiles and confidence over replications; availability of spares |
| `goodput` | the replications of a scenario on any number of processes, with their report; `plot`: pictures and files |

All times are whole picoseconds, so that useful and lost time sum to the wall time exactly.
"""
