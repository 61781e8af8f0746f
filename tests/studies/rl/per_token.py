"""A loop counted token by token: a second simulator, without SimPy, that shares no code with the package.

Each replica takes one decode step after another. At each time, what ends then is processed; then rewards, trainer, new
prompts and engines have their turns, in this order.
"""

from dataclasses import dataclass, field


@dataclass
class Sample:
    """A sample: tokens so far, those of tools, when it started and ended, and what was computed once more.

    `kv` are its tokens, beside the prompt, of which its engine has keys and values; -1: it has none.
    """

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
    parts: tuple = ()
    waits: tuple = ()
    part: int = 0
    tools: int = 0
    unread: int = 0
    kv: int = -1
    tries: int = 0


@dataclass(eq=False)
class Group:
    """A prompt."""

    number: int
    prompt: int
    filtered: bool
    rewards: tuple = ()
    samples: list = field(default_factory=list)
    ready: int = -1
    fate: str = "running"
    batch: int = -1
    taken: int = -1
    rewarded: int = 0

    def done(self):
        """Whether all samples have ended."""
        return all(sample.ended >= 0 for sample in self.samples)


@dataclass
class Replica:
    """An engine: who runs and waits, the prompts that it has read, and until when it is busy."""

    number: int
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    kept: list = field(default_factory=list)
    away: list = field(default_factory=list)
    lent: bool = False
    active: bool = True
    read: set = field(default_factory=set)
    until: int | None = None
    decodes: bool = False

    def used(self):
        """Tokens that take room."""
        prompts = {sample.group.number: sample.group.prompt for sample in self.running + self.kept}
        return sum(prompts.values()) + sum(sample.kv for sample in self.running + self.kept)

    def drop(self, sample):
        """Keys and values of a sample that does not run are gone."""
        self.kept.remove(sample)
        sample.kv = -1

    def forget(self):
        """All are gone; who ran waits first in line."""
        self.read.clear()
        self.kept += self.running
        self.waiting[:0] = self.running
        self.running = []
        for sample in [*self.kept]:
            self.drop(sample)


class PerToken:
    """A loop. `case` has the settings of `loop_scenario` as attributes; `draw` gives (prompt, responses, filtered)."""

    def __init__(self, case, draw):
        self.case, self.draw, self.now, self.version = case, draw, 0, 0
        self.replicas = [Replica(number) for number in range(case.replicas)]
        self.replicas += [Replica(case.replicas + number, lent=True, active=False) for number in range(case.lent)]
        self.later, self.rewards, self.servers = [], [], case.workers
        self.groups, self.pending, self.syncs = [], [], []
        self.trained = self.counted = 0
        self.stopped = self.draining = False

    def run(self):
        """Until the last sync has ended."""
        trainer, wakes, goal = self.trainer(), 0, None
        while True:
            due = [r for r in self.replicas if r.until == self.now]
            late = [event for event in self.later if event[0] == self.now]
            if due or late or wakes == self.now:
                for replica in due:
                    self.ended(replica)
                for event in late:
                    self.later.remove(event)
                    event[1](*event[2:])
                if wakes == self.now:
                    wakes, goal = self.step(trainer)
                    if wakes is goal is None:
                        return self
                continue
            if self.reward():
                continue
            if goal is not None and goal():
                wakes, goal = self.step(trainer)
                if wakes is goal is None:
                    return self
                continue
            self.dispatch()
            for replica in self.replicas:
                self.proceed(replica)
            self.now = min(
                time
                for time in (wakes, *(r.until for r in self.replicas), *(event[0] for event in self.later))
                if time is not None
            )

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
            if case.colocated:
                prompts = case.size * case.updates * case.every
                yield lambda need=prompts: self.next(need) and all(r.until is None for r in self.replicas)
                self.stopped = True
                yield case.switch
            for _ in range(case.every):
                batch += 1
                for _ in range(case.updates // case.take):
                    need = case.take * case.size
                    if case.lent and self.queued() < case.below * need:
                        yield from self.lend(case.below * need)
                    yield lambda need=need: self.next(need) is not None
                    taken = self.next(need)
                    for group in taken:
                        group.fate, group.batch, group.taken = "trained", batch, self.version
                    yield case.passes * case.take
                    for first in range(0, need, case.size):
                        update = [sample for group in taken[first : first + case.size] for sample in group.samples]
                        yield case.step + case.token * sum(s.group.prompt + s.response + s.tools for s in update)
                        self.trained += case.size
            if case.colocated:
                yield case.switch
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
                replica.forget()
        if self.case.running == "restart":
            for replica in self.replicas:
                replica.waiting += replica.away
                replica.away = []
                if replica.lent:
                    self.pending += replica.waiting
                    replica.waiting = []
            for sample in (s for g in self.groups for s in g.samples if s.ended < 0):
                sample.discarded += sample.tokens
                sample.tokens, sample.version, sample.part, sample.tools, sample.unread = 0, self.version, 0, 0, 0
                sample.tries += 1

    def queued(self):
        """Prompts in the queue."""
        return sum(group.fate == "queued" for group in self.groups)

    def lend(self, share):
        """The trainer's GPUs generate until so many prompts are in the queue."""
        lent = [replica for replica in self.replicas if replica.lent]
        yield self.case.switch
        for replica in lent:
            replica.active = True
        yield lambda: self.queued() >= share
        for replica in lent:
            replica.active = False
        yield lambda: all(replica.until is None for replica in lent)
        for replica in lent:
            replica.forget()
            self.pending[:0] = replica.waiting
            replica.waiting = []
        yield self.case.switch

    def reward(self):
        """Let free servers begin; whether a reward takes no time."""
        at_once = False
        self.rewards.sort(key=lambda waits: waits[:3])
        while self.rewards and self.servers:
            *_, time, group = self.rewards.pop(0)
            self.servers -= 1
            self.later.append((self.now + time, self.rewarded, group))
            at_once |= time == 0
        return at_once

    def rewarded(self, group):
        """A reward is there."""
        self.servers += 1
        group.rewarded += 1
        if group.rewarded == len(group.rewards):
            self.ready(group)

    def ready(self, group):
        """A prompt reaches the queue."""
        group.ready = self.now
        group.fate = "filtered" if group.filtered else "dropped" if self.stale(group) else "queued"

    def answered(self, sample, tries):
        """A tool has answered."""
        if tries != sample.tries:
            return
        replica = self.replicas[sample.replica]
        replica.away.remove(sample)
        sample.tools += self.case.answer
        sample.unread += self.case.answer
        if not replica.active and sample in replica.kept:
            replica.drop(sample)
        (replica.waiting if replica.active else self.pending).append(sample)

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
        prompt, responses, parts, waits, rewards, filtered = self.draw(len(self.groups))
        group = Group(len(self.groups), prompt, filtered, rewards)
        group.samples = [
            Sample(group, index, length, self.version, parts=parts[index], waits=waits[index])
            for index, length in enumerate(responses)
        ]
        self.groups.append(group)
        self.pending += group.samples

    def dispatch(self):
        """Give samples to engines with free places."""
        while self.case.barrier and self.may_begin():
            self.begin()
        while not self.stopped:
            loads = [(len(r.running) + len(r.waiting), r.number) for r in self.replicas if r.active]
            load, number = min(loads)
            if load >= self.case.concurrency or not (self.pending or self.may_begin()):
                return
            if not self.pending:
                self.begin()
            sample = self.pending.pop(0)
            sample.replica = number
            sample.started = self.now if sample.started < 0 else sample.started
            self.replicas[number].waiting.append(sample)

    def proceed(self, replica):
        """Begin a prefill or a decode step."""
        if replica.until is not None or self.stopped or not replica.active:
            return
        tokens, case, running, kept = 0, self.case, replica.running, replica.kept
        while replica.used() + len(running) > case.room:
            if kept:
                replica.drop(kept[-1])
            else:
                running[-1].kv = -1
                replica.waiting.insert(0, running.pop())
        while replica.waiting and len(running) < case.concurrency:
            sample = replica.waiting[0]
            takes = sample.tokens + sample.tools - max(sample.kv, 0)
            new = takes + (sample.group.prompt if sample.group.number not in replica.read else 0)
            if all(other.group is not sample.group for other in running + kept):
                takes += sample.group.prompt
            if replica.used() + takes + len(running) + 1 > case.room:
                others = [other for other in kept if other is not sample]
                if running or not others:
                    break
                replica.drop(others[-1])
                continue
            running.append(replica.waiting.pop(0))
            if sample in kept:
                kept.remove(sample)
            replica.read.add(sample.group.number)
            sample.kv = sample.tokens + sample.tools
            sample.recomputed += new - sample.unread if sample.read else 0
            sample.read, sample.unread = True, 0
            tokens += new
        if tokens or running:
            held = sum(sample.group.prompt + sample.kv for sample in running)
            decode = case.engine.step + len(running) * case.engine.sequence + held * case.engine.token
            replica.decodes = not tokens
            replica.until = self.now + (case.engine.prefill * tokens if tokens else decode)

    def ended(self, replica):
        """A prefill or a decode step has ended."""
        replica.until = None
        for sample in [*replica.running] if replica.decodes else ():
            sample.tokens += 1
            sample.kv += 1
            if sample.tokens < sample.parts[sample.part]:
                continue
            replica.running.remove(sample)
            if sample.tokens < sample.response:
                replica.away.append(sample)
                replica.kept.append(sample)
                if not self.case.keep:
                    replica.drop(sample)
                self.later.append((self.now + sample.waits[sample.part], self.answered, sample, sample.tries))
                sample.part += 1
                continue
            sample.ended, sample.last, sample.kv, group = self.now, self.version, -1, sample.group
            if group.done():
                for other in self.replicas:
                    other.read.discard(group.number)
            if len(group.rewards) == len(group.samples):
                self.rewards.append((self.now, group.number, sample.index, group.rewards[sample.index], group))
            elif group.done() and group.rewards:
                self.rewards.append((self.now, group.number, 0, group.rewards[0], group))
            elif group.done():
                self.ready(group)
