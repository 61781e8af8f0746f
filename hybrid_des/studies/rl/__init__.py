"""Reinforcement learning as one simulated program: engines generate, a queue holds, the trainer trains, weights return.

| module | |
|---|---|
| `trainer` | how long the trainer takes: its steps and forward passes over the samples of a take, simulated |
| `measured_trainer` | the same, measured |
| `record` | what happened: samples, spans of engines and of the trainer, takes, syncs |
| `weight_sync` | how long new weights take to the engines, as messages |

All times are whole picoseconds, so that busy and idle times sum to the simulated time exactly.
"""
