"""Reinforcement learning as one simulated program: engines generate, a queue holds, the trainer trains, weights return.

| module | |
|---|---|
| `trainer` | how long the trainer takes: its steps and forward passes over the samples of a take, simulated |
| `measured_trainer` | the same, measured |
| `record` | what happened: samples, spans of engines and of the trainer, takes, syncs |

All times are whole picoseconds, so that busy and idle times sum to the simulated time exactly.
"""
