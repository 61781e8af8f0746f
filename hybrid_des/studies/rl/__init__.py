"""Reinforcement learning as one simulated program: engines generate, a queue holds, the trainer trains, weights return.

| module | |
|---|---|
| `record` | what happened: samples, spans of engines and of the trainer, takes, syncs |
| `calibration` | the engines' share of their speed, from what a run took |

All times are whole picoseconds, so that busy and idle times sum to the simulated time exactly.
"""
