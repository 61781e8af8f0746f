"""Reinforcement learning as one simulated program: engines generate, a queue holds, the trainer trains, weights return.

| module | |
|---|---|
| `loop` | a loop, simulated: `run_loop(scenario)` |
| `parts`, `parts_of_scenario` | what it is made of: engines, trainer, weight syncs |
| `draws`, `sample` | prompts, responses, turns and rewards, drawn; a sample on its way |
| `engine`, `fleet` | a replica of an engine; all of them, and which sample goes to which |
| `engine_all_reduce` | all-reduces over the tensor ranks of an engine on several nodes |
| `admission`, `queue`, `rewards` | which prompts may be begun, which are trained first, what computes rewards |
| `training` | the trainer: it waits, trains, changes sides, sends weights |
| `trainer` | how long the trainer takes: its steps and forward passes over the samples of a take, simulated |
| `measured_trainer` | the same, measured |
| `weight_sync` | how long new weights take to the engines, as messages |
| `record` | what happened: samples, spans of engines and of the trainer, takes, syncs |
| `figures`, `summary` | cycle, throughput, idle time by cause, ages, lengths; the same by public keys |
| `whatifs`, `few_steps` | changes that are simulated with the same draws; the trainer's times in them |
| `report`, `explained` | what is said of a loop: its verdict, and a line per change |
| `timeline`, `page`, `plot` | what is drawn of it |
| `result` | `simulate_rl(source)`, with tables and files |
| `calibration` | the engines' share of their speed, from what a run took |
| `bounds` | the least time of a cycle, for a search of splits |

All times are whole picoseconds, so that busy and idle times sum to the simulated time exactly.
"""
