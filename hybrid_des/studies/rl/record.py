"""What happened in a loop: every sample, what engines and trainer did when, takes, syncs; times in picoseconds.

Spans of a replica, and those of the trainer, follow each other without gaps from 0 to `LoopRecord.end`, so that busy
and idle times of either side sum to the simulated time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

EngineState = Literal[
    "decode",  # generates; `sequences` says how many
    "prefill",  # reads prompts, answers of tools, or the tokens of samples that it resumes
    "allowance",  # idle: no more may be begun before the next sync, or take
    "drained",  # idle for a sync: its samples have ended, those of others have not; or the colocated trainer is at work
    "waiting",  # idle: all its samples wait for tools, or for nothing that the allowance or a sync explains
    "sync",  # gets weights
    "switching",  # colocated or lent GPUs change sides
    "away",  # lent GPUs that train, or that the trainer has taken back
]
TrainerState = Literal[
    "passes",  # forward passes over the samples
    "train",  # optimizer steps
    "first samples",  # idle: until half of the samples that it waits for are in the queue
    "long tail",  # idle: until the rest of them is
    "rest",  # time that no GPU explains
    "sync",  # sends weights, or waits for unfinished samples before it may (`running: wait`)
    "lent",  # its GPUs generate
    "switching",  # colocated or lent GPUs change sides
]


class Sample(NamedTuple):
    """A sample. Times are -1 where something has not happened.

    Attributes:
        group: number of its prompt, in the order in which prompts are begun.
        replica: the engine, the last one if there were several, by number; -1: none has taken it up.
        prompt, response: tokens as drawn (`response` after the cut).
        begun: when its group was admitted; started: when an engine took it up; ended: when its last token was there.
        ready: when it reached the queue: with its group, after its reward.
        version: weight syncs before it was begun; last_version: before its last token.
        batch: the batch that it was trained in, from 0; -1: not trained.
        age: syncs between its beginning and the take that it left the queue with; -1: not trained.
        fate: "trained", "dropped" (too old), "filtered" (equal rewards), "queued" or "running" at the end.
        recomputed: tokens whose keys and values were computed once more after syncs, preemption or tools.
        discarded: tokens that were generated and thrown away (`running: restart`).
        generated: tokens of the response that there were at the end; of a sample that ended, all.
    """

    group: int
    replica: int
    prompt: int
    response: int
    begun: int
    started: int
    ended: int
    ready: int
    version: int
    last_version: int
    batch: int
    age: int
    fate: str
    recomputed: int
    discarded: int
    generated: int = 0


class EngineSpan(NamedTuple):
    """A time in which a replica does one thing, with a constant number of sequences."""

    replica: int
    begin: int
    end: int
    state: EngineState
    sequences: int


class TrainerSpan(NamedTuple):
    """A time in which the trainer does one thing, for a batch."""

    begin: int
    end: int
    state: TrainerState
    batch: int


class WeightSync(NamedTuple):
    """A weight sync; its end is that of a cycle. `version` counts them from 1."""

    begin: int
    end: int
    version: int


class QueueLength(NamedTuple):
    """Groups in the queue from a time on, and samples that engines have taken up, over all replicas."""

    time: int
    groups: int
    running: int


@dataclass(frozen=True)
class LoopRecord:
    """A simulated loop.

    Attributes:
        end: when the last sync ended; the simulated time.
        samples: all samples that were begun, by group.
        engines, trainer: spans; those of a replica, and of the trainer, cover 0 to `end` without gaps.
        syncs: all weight syncs, of which there are `steps`.
        queue: changes of the queue.
        gpus_of_replicas: GPUs of each replica, by its number; lent ones come last.
        lent: the number of replicas that lent GPUs make.
        trainer_gpus: GPUs of the trainer.
        notes: sentences on what was simplified or estimated, for the report.
        generated: tokens that engines generated, counted by their decode steps; those of `samples` and what they
            discarded are as many.
        prefilled: tokens that engines read, counted by their prefills.
        trainer_fits: whether all training steps that were simulated fit into memory.
    """

    end: int
    samples: tuple[Sample, ...]
    engines: tuple[EngineSpan, ...]
    trainer: tuple[TrainerSpan, ...]
    syncs: tuple[WeightSync, ...]
    queue: tuple[QueueLength, ...]
    gpus_of_replicas: tuple[int, ...]
    lent: int
    trainer_gpus: int
    notes: tuple[str, ...] = ()
    generated: int = 0
    prefilled: int = 0
    trainer_fits: bool = True
