"""A loop counted token by token: a second simulator, without SimPy, that shares no code with the package.

Each replica takes one decode step after another. At each time, what ends then is processed; then rewards, trainer, new
prompts and engines have their turns, in this order.
"""

from dataclasses import dataclass, field


@dataclass
class Sample:
    """A sample: tokens so far, when it started and ended, and what was computed once more."""

    group: "Group"
    index: int
    response: int
    version: int
    tokens: int = 0
    started: int = -1
    ended: int = -1
    replica: int = -1
    last: int = -1
    recomputed: int = 0
    discarded: int = 0
    read: bool = False


@dataclass(eq=False)
class Group:
    """A prompt."""

    number: int
    prompt: int
    filtered: bool
    samples: list = field(default_factory=list)
    ready: int = -1
    fate: str = "running"
    batch: int = -1
    taken: int = -1

    def done(self):
        """Whether all samples have ended."""
        return all(sample.ended >= 0 for sample in self.samples)


@dataclass
class Replica:
    """An engine: who runs and waits, the prompts that it has read, and until when it is busy."""

    number: int
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    read: set = field(default_factory=set)
    until: int | None = None
    decodes: bool = False

    def used(self):
        """Tokens that take room."""
        prompts = {sample.group.number: sample.group.prompt for sample in self.running}
        return sum(prompts.values()) + sum(sample.tokens for sample in self.running)


class PerToken:
    """A loop. `case` has the settings of `loop_scenario` as attributes; `draw` gives (prompt, responses, filtered)."""

    def __init__(self, case, draw):
        self.case, self.draw, self.now, self.version = case, draw, 0, 0
        self.replicas = [Replica(number) for number in range(case.replicas)]
        self.groups, self.pending, self.syncs = [], [], []
        self.trained = self.counted = 0
        self.stopped = self.draining = False

    def run(self):
        """Until the last sync has ended."""
        trainer, wakes, goal = self.trainer(), 0, None
        while True:
            due = [r for r in self.replicas if r.until == self.now]
            if due or wakes == self.now:
                for replica in due:
                    self.ended(replica)
                if wakes == self.now:
                    wakes, goal = self.step(trainer)
                    if wakes is goal is None:
                        return self
                continue
            if goal is not None and goal():
                wakes, goal = self.step(trainer)
                if wakes is goal is None:
                    return self
                continue
            self.dispatch()
            for replica in self.replicas:
                self.proceed(replica)
            self.now = min(time for time in (wakes, *(r.until for r in self.replicas)) if time is not None)

    def step(self, trainer):
        """What the trainer does next: when it goes on, or on what condition."""
        asked = next(trainer, None)
        if asked is None:
            return None, None
        return (None, asked) if callable(asked) else (self.now + asked, None)

    def trainer(self):
        """Batches, then a sync, again and again."""
        case, batch = self.case, -1
        for _ in range(case.steps):
            for _ in range(case.every):
                batch += 1
                for _ in range(case.updates // case.take):
                    need = case.take * case.size
                    yield lambda need=need: self.next(need) is not None
                    taken = self.next(need)
                    for group in taken:
                        group.fate, group.batch, group.taken = "trained", batch, self.version
                    yield case.passes * case.take
                    for first in range(0, need, case.size):
                        update = [sample for group in taken[first : first + case.size] for sample in group.samples]
                        yield case.step + case.token * sum(s.group.prompt + s.response for s in update)
                        self.trained += case.size
            if case.running == "wait":
                self.draining = True
                yield lambda: all(group.done() for group in self.groups)
            else:
                self.stopped = True
                yield lambda: all(replica.until is None for replica in self.replicas)
            self.stopped = True
            begin = self.now
            yield case.sync
            self.syncs.append((begin, self.now))
            self.sync()

    def sync(self):
        """New weights: what becomes of running samples, and of queued ones that are too old."""
        self.version += 1
        self.stopped = self.draining = False
        self.counted = self.trained
        for group in self.groups:
            if group.fate == "queued" and self.stale(group):
                group.fate = "dropped"
        if self.case.running in ("resume", "restart"):
            for replica in self.replicas:
                replica.read.clear()
                replica.waiting[:0] = replica.running
                replica.running = []
        if self.case.running == "restart":
            for sample in (s for g in self.groups for s in g.samples if s.ended < 0):
                sample.discarded += sample.tokens
                sample.tokens, sample.version = 0, self.version

    def stale(self, group):
        """Whether a prompt is too old."""
        age = self.version - min(sample.version for sample in group.samples)
        return self.case.drop is not None and age > self.case.drop

    def next(self, count):
        """The prompts that the trainer takes; None: they are not there."""
        live = [group for group in self.groups if group.fate in ("running", "queued")]
        if self.case.order == "completed":
            live = sorted((g for g in live if g.fate == "queued"), key=lambda group: (group.ready, group.number))
        first = live[:count]
        return first if len(first) == count and all(group.fate == "queued" for group in first) else None

    def may_begin(self):
        """The inequality."""
        case, prompts = self.case, self.case.size * self.case.updates
        begun = sum(group.fate not in ("filtered", "dropped") for group in self.groups)
        if case.barrier:
            taken = sum(group.fate == "trained" for group in self.groups)
            limit = (taken // prompts + 1) * prompts
        else:
            limit = (self.trained if case.now else self.counted) + int((1 + case.ahead) * prompts * case.every)
        return begun < limit and not self.draining

    def begin(self):
        """Begin a prompt."""
        prompt, responses, filtered = self.draw(len(self.groups))
        group = Group(len(self.groups), prompt, filtered)
        group.samples = [Sample(group, index, length, self.version) for index, length in enumerate(responses)]
        self.groups.append(group)
        self.pending += group.samples

    def dispatch(self):
        """Give samples to engines with free places."""
        while self.case.barrier and self.may_begin():
            self.begin()
        while not self.stopped:
            loads = [(len(r.running) + len(r.waiting), r.number) for r in self.replicas]
            load, number = min(loads)
            if load >= self.case.concurrency or not (self.pending or self.may_begin()):
                return
            if not self.pending:
                self.begin()
            sample = self.pending.pop(0)
            sample.started, sample.replica = self.now, number
            self.replicas[number].waiting.append(sample)

    def proceed(self, replica):
        """Begin a prefill or a decode step."""
        if replica.until is not None or self.stopped:
            return
        tokens, case, running = 0, self.case, replica.running
        while replica.waiting and len(running) < case.concurrency:
            sample = replica.waiting[0]
            running.append(sample)
            if replica.used() + len(running) > case.room:
                running.pop()
                break
            replica.waiting.pop(0)
            new = sample.tokens + (sample.group.prompt if sample.group.number not in replica.read else 0)
            replica.read.add(sample.group.number)
            sample.recomputed += new if sample.read else 0
            sample.read = True
            tokens += new
        while replica.used() + len(running) > case.room:
            replica.waiting.insert(0, running.pop())
        if tokens or running:
            held = sum(sample.group.prompt + sample.tokens for sample in running)
            decode = case.engine.step + len(running) * case.engine.sequence + held * case.engine.token
            replica.decodes = not tokens
            replica.until = self.now + (case.engine.prefill * tokens if tokens else decode)

    def ended(self, replica):
        """A prefill or a decode step has ended."""
        replica.until = None
        for sample in [*replica.running] if replica.decodes else ():
            sample.tokens += 1
            if sample.tokens == sample.response:
                replica.running.remove(sample)
                sample.ended, sample.last, group = self.now, self.version, sample.group
                if group.done():
                    for other in self.replicas:
                        other.read.discard(group.number)
                    group.ready = self.now
                    group.fate = "filtered" if group.filtered else "dropped" if self.stale(group) else "queued"
