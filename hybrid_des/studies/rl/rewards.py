"""Rewards: servers with one queue, first come first served; of what comes at the same time, the prompt begun first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from hybrid_des.engine.clock import Environment
from hybrid_des.scenario.sections.rl import Reward
from hybrid_des.studies.rl.sample import Group, Work


class Rewards:
    """Servers of rewards.

    Args:
        env: the environment.
        reward: the section; None: rewards are there at once.
        ready: what to call with a prompt whose samples all have their rewards.
        changed: what to call when a server is free.
    """

    def __init__(
        self, env: Environment, reward: Reward | None, ready: Callable[[Group], None], changed: Callable[[], None]
    ) -> None:
        self._env, self._ready, self._changed = env, ready, changed
        self._free: float = inf if reward is None or reward.workers is None else reward.workers
        self._waiting = list[tuple[int, int, int, Group]]()  # since when, of which prompt and sample

    def ended(self, work: Work) -> None:
        """A sample has been generated."""
        group, rewards = work.group, work.group.drawn.rewards
        group.unfinished -= 1
        if not rewards:
            if not group.unfinished:
                self._ready(group)
        elif len(rewards) == len(group.works):
            heappush(self._waiting, (self._env.now, group.number, work.index, group))
        elif not group.unfinished:  # one reward for all of them
            heappush(self._waiting, (self._env.now, group.number, 0, group))

    def serve(self) -> bool:
        """Let free servers begin what waits; whether some of it takes no time."""
        at_once = False
        while self._waiting and self._free:
            _, _, index, group = heappop(self._waiting)
            self._free -= 1
            at_once |= not group.drawn.rewards[index]
            self._env.at(self._env.now + group.drawn.rewards[index], (self._done, group))
        return at_once

    def _done(self, booking: tuple[object, Group]) -> None:
        """A reward is there."""
        group = booking[1]
        self._free += 1
        group.unrewarded -= 1
        self._changed()
        if not group.unrewarded:
            self._ready(group)
