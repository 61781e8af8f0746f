"""One of several gloo processes that record schedules of PyTorch over sleeping stages.

Usage: recording_worker.py STEPS FOLDER,… NAME:CHUNKS:MICROBATCHES:SHAPE… (SHAPE is loop or v).
Each folder is a round of all runs, and gets a NAME_CHUNKS.csv of each.
"""

import sys
from pathlib import Path

import torch.distributed as dist

import hybrid_des
from support.sleeping_stages import join, schedule_of, step


def main():
    steps, folders, *runs = sys.argv[1:]
    join()
    for folder in folders.split(","):
        for run in runs:
            name, chunks, microbatches, shape = run.split(":")
            schedule = schedule_of(name, int(chunks), int(microbatches), v_shaped=shape == "v")
            with hybrid_des.record(Path(folder) / f"{name}_{chunks}.csv"):
                for _ in range(1 + int(steps)):
                    dist.barrier()
                    step(schedule, int(microbatches))
    dist.destroy_process_group()


main()
