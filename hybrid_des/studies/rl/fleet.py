"""All engines: which sample goes to which, and what happens to them at a weight sync.

A prompt is begun as soon as admission allows it and an engine has a free place (with `rl.barrier`: as soon as admission
allows it). Its samples go one by one to the engine with the fewest samples, running and waiting, of those with a free
place; if none has one, they wait for it in the order in which they were begun. A sample stays on its engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from hybrid_des.engine.clock import Environment
from hybrid_des.scenario.sections.rl import Rl
from hybrid_des.studies.rl.admission import Admission
from hybrid_des.studies.rl.engine import Replica
from hybrid_des.studies.rl.parts import LoopParts
from hybrid_des.studies.rl.record import EngineState
from hybrid_des.studies.rl.sample import Group, Work


class Fleet:
    """All engines.

    Args:
        env: the environment.
        rl: the section.
        parts: the engines.
        admission: which prompts may be begun.
        begin: what begins the next prompt.
        ended: what to call with a sample that has been generated.
        changed: what to call when engines can go on.

    Attributes:
        own, lent: engines; the GPUs of lent ones are the trainer's.
        pending: samples that no engine has a place for.
        live: prompts with samples that have not ended.
        running: samples that engines have taken up and that have not ended.
        draining: whether no prompts are begun, for a sync that waits for those begun.
    """

    def __init__(
        self,
        env: Environment,
        rl: Rl,
        parts: LoopParts,
        admission: Admission,
        *,
        begin: Callable[[], Group],
        ended: Callable[[Work], None],
        changed: Callable[[], None],
    ) -> None:
        self._env, self._rl, self._admission = env, rl, admission
        self._begin, self._tell_ended, self._changed = begin, ended, changed
        keep = rl.turns is None or rl.turns.keep
        kinds = [kind for kind in parts.engines for _ in range(kind.replicas)]
        count = len(kinds)
        kinds += [] if parts.lent is None else [parts.lent] * parts.lent.replicas
        self.replicas = [Replica(env, number, kind, self, keep=keep) for number, kind in enumerate(kinds)]
        self.own, self.lent = self.replicas[:count], self.replicas[count:]
        self.pending = deque[Work]()
        self.live = dict[Group, None]()
        self.running = 0
        self.draining = False
        self._due = dict[Replica, None]()
        self._stirring = self.own[0]  # the last that was seen busy, so that not all are looked at each time
        self._listed = [-1] * len(kinds)  # the load of each engine with a free place; -1: it has none
        self._by_load = list[tuple[int, int]]()  # load, number; only those listed count
        self.stop(self.lent, "away")
        self.go_on(self.own)

    def at_boundary(self, replica: Replica) -> None:
        """No decode step runs on a replica now."""
        self._due[replica] = None
        self._list(replica)
        self._changed()

    def ended(self, work: Work) -> None:
        """The last token of a sample is there."""
        self.running -= 1
        self._tell_ended(work)
        if not work.group.unfinished:
            del self.live[work.group]
            work.group.cached.clear()

    def returned(self, replica: Replica, work: Work) -> None:
        """A tool has answered."""
        assert self._rl.turns is not None
        work.tools += self._rl.turns.tokens
        work.unread += self._rl.turns.tokens
        if replica in self.lent and replica.stopped is not None:
            replica.release(work)
            self.pending.append(work)
            self._changed()
        else:
            replica.add(work)
            self._list(replica)

    def _list(self, replica: Replica) -> None:
        """Note the load of an engine that has a free place."""
        load = replica.load
        listed = -1 if replica.stopped is not None or load >= replica.concurrency else load
        if listed != self._listed[replica.number]:
            self._listed[replica.number] = listed
            if listed >= 0:
                heappush(self._by_load, (listed, replica.number))
                if len(self._by_load) > 64 + 4 * len(self.replicas):
                    self._by_load = [(load, number) for number, load in enumerate(self._listed) if load >= 0]
                    heapify(self._by_load)

    def _free(self) -> Replica | None:
        """The engine with the fewest samples of those with a free place; None: there is none."""
        heap, listed = self._by_load, self._listed
        while heap:
            load, number = heap[0]
            if listed[number] == load:
                return self.replicas[number]
            heappop(heap)
        return None

    def dispatch(self) -> None:
        """Begin prompts, and give their samples to engines with free places."""
        if self._rl.barrier:
            while self._may_begin():
                self._begin_group()
        while (self.pending or self._may_begin()) and (replica := self._free()) is not None:
            if not self.pending:
                self._begin_group()
            work = self.pending.popleft()
            if work.started < 0:
                work.started = self._env.now
                self.running += 1
            replica.add(work)
            self._list(replica)

    def _may_begin(self) -> bool:
        return not self.draining and self._admission.open

    def _begin_group(self) -> None:
        group = self._begin()
        self.live[group] = None
        self.pending.extend(group.works)

    def proceed(self) -> None:
        """Let engines at a boundary go on, and say of the others why they do not."""
        while self._due:
            due, self._due = self._due, {}
            for replica in due:
                replica.proceed()
                if not replica.busy:
                    replica.mark(self._idle(replica), 0, self._env.now)

    def _idle(self, replica: Replica) -> EngineState:
        """Why an engine does nothing."""
        if replica.stopped is not None:
            return replica.stopped
        if self.draining or self._rl.colocated:
            return "drained"
        return "waiting" if replica.away or self._admission.open else "allowance"

    def stop(self, replicas: list[Replica], state: EngineState) -> None:
        """Let engines begin nothing more; what they are said to do then."""
        for replica in replicas:
            replica.stopped = state
            replica.interrupt()
            self._list(replica)

    def go_on(self, replicas: list[Replica]) -> None:
        """Let engines go on."""
        for replica in replicas:
            replica.stopped = None
            self.at_boundary(replica)

    def drain(self) -> None:
        """Begin no more prompts, for a sync that waits for those begun."""
        self.draining = True
        for replica in self.own:
            if not replica.busy:
                self.at_boundary(replica)

    @property
    def quiet(self) -> bool:
        """Whether engines have come to rest, for a sync: nothing is under way, or with `draining` nothing is left."""
        if self.draining and self.live:
            return False
        if not self._stirring.busy:
            self._stirring = next((replica for replica in self.replicas if replica.busy), self._stirring)
        return not self._stirring.busy

    def synced(self, version: int) -> None:
        """Go on with weights after so many syncs."""
        self.draining = False
        if self._rl.sync.running in ("resume", "restart"):
            for replica in self.replicas:
                replica.forget()
            for group in self.live:
                group.cached.clear()
        if self._rl.sync.running == "restart":
            self._restart(version)
        self.go_on(self.own)

    def _restart(self, version: int) -> None:
        """Begin all unfinished samples anew; those that wait for tools on GPUs of the trainer wait for a place."""
        for replica in self.replicas:
            replica.recall()
        for replica in self.lent:
            self.pending.extend(replica.hand_back())
        for group in self.live:
            for work in group.works:
                if work.ended < 0:
                    work.restart(version)
            group.version = min(work.version for work in group.works)

    def withdraw(self) -> None:
        """Take back lent GPUs: what runs on them waits first in line for other engines."""
        for replica in self.lent:
            replica.forget()
            self.pending.extendleft(reversed(replica.hand_back()))
        lent = set(self.lent)
        for group in self.live:
            group.cached = [replica for replica in group.cached if replica not in lent]
        self._changed()
