"""A sample on its way, and the samples of a prompt: what has been generated, and what its engine keeps of it."""

from __future__ import annotations

from typing import Protocol

from hybrid_des.studies.rl.draws import DrawnGroup
from hybrid_des.studies.rl.record import Sample


class Engine(Protocol):
    """A replica of an engine, with its number."""

    number: int


class Group:
    """The samples of a prompt.

    Attributes:
        number: in the order in which prompts are begun.
        drawn: what was drawn for it.
        begun: when it was begun, in picoseconds; -1: not yet.
        version: weight syncs before any of its samples was begun.
        works: its samples.
        unfinished, unrewarded: how many are not generated, or have no reward yet.
        cached: replicas that have computed its prompt.
        ready: when it reached the queue; -1: not yet.
        fate: as in `record.Sample`.
        batch, age_at: the batch that it was trained in, and the weight syncs before it was taken; -1: not trained.
    """

    __slots__ = (
        "age_at", "batch", "begun", "cached", "drawn", "fate", "number", "ready", "unfinished", "unrewarded",
        "version", "works",
    )  # fmt: skip

    def __init__(self, number: int, drawn: DrawnGroup, begun: int, version: int) -> None:
        self.number, self.drawn, self.begun, self.version = number, drawn, begun, version
        self.works = [Work(self, index, version) for index in range(len(drawn.responses))]
        self.unfinished = len(self.works)
        self.unrewarded = max(1, len(drawn.rewards))
        self.cached = list[Engine]()
        self.ready = self.batch = self.age_at = -1
        self.fate = "running"

    def tokens(self) -> list[int]:
        """Tokens of its samples, as they are trained: prompt, response and what tools answered."""
        return [self.drawn.prompt + work.own for work in self.works]

    def samples(self) -> list[Sample]:
        """Its samples, for the record; it has none any more, so that it is no part of a reference cycle."""
        works, self.works = self.works, []
        return [work.sample() for work in works]


class Work:
    """A sample on its way.

    Attributes:
        group, index: its prompt, and its number among the samples of that.
        replica: the engine that it is on, or was on; None: it has never had a place.
        version, last: weight syncs before it was begun, and before its last token; -1: not ended.
        part, part_end: the part of its response under way, and tokens generated at its end.
        generated, tools: tokens of its own, and of tools, before this stretch.
        kept: tokens beside the prompt whose keys and values its engine has.
        unread: tokens of a tool's answer that no engine has read yet.
        resident: whether its engine has keys and values of it; read: whether one ever had.
        ends_at: the decode step of its engine with which its part ends, while it runs; -1: it does not.
        started, ended: picoseconds: when an engine took it up, when its last token was there; -1: not yet.
        recomputed, discarded: as in `record.Sample`.
        tries: how often it was begun anew.
    """

    __slots__ = (
        "discarded", "ended", "ends_at", "generated", "group", "index", "kept", "last", "part", "part_end", "read",
        "recomputed", "replica", "resident", "started", "tools", "tries", "unread", "version",
    )  # fmt: skip

    def __init__(self, group: Group, index: int, version: int) -> None:
        self.group, self.index, self.version = group, index, version
        self.replica: Engine | None = None
        self.part = self.generated = self.tools = self.kept = self.unread = 0
        self.part_end = group.drawn.parts[index][0]
        self.resident = self.read = False
        self.ends_at = self.started = self.ended = self.last = -1
        self.recomputed = self.discarded = self.tries = 0

    @property
    def own(self) -> int:
        """Tokens beside the prompt: generated, and those of tools."""
        return self.generated + self.tools

    def restart(self, version: int) -> None:
        """Begin anew, with weights after so many syncs; its engine has nothing of it any more."""
        self.discarded += self.generated
        self.part = self.generated = self.tools = self.kept = self.unread = 0
        self.part_end = self.group.drawn.parts[self.index][0]
        self.tries += 1
        self.version = version

    def sample(self) -> Sample:
        """What happened to it."""
        group = self.group
        trained = group.fate == "trained"
        return Sample(
            group.number,
            -1 if self.replica is None else self.replica.number,
            group.drawn.prompt,
            group.drawn.responses[self.index],
            group.begun,
            self.started,
            self.ended,
            group.ready,
            self.version,
            self.last,
            group.batch,
            group.age_at - self.version if trained else -1,
            group.fate,
            self.recomputed,
            self.discarded,
            self.generated,
        )
