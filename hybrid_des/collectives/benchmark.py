"""Benchmark of collectives on idle links, for the `collective` command and for `auto`."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid_des import collectives
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError, Refusal, UsageError
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.transport import Transport


@dataclass(frozen=True)
class Outcome:
    """Picoseconds until the last member completed, and what was sent: messages, their payload, and bytes of scales.

    Attributes:
        even: whether all members completed at the same time.
    """

    duration: int
    messages: int
    bytes: int
    scales: int
    even: bool = True


NOTHING = Outcome(0, 0, 0, 0)


def measure(
    fabric: Fabric,
    name: str,
    groups: Sequence[Sequence[int]],
    buffer: Callable[[int, int], Buffer],
    *,
    options: collectives.Given = None,
    spare: Sequence[int] = (),
    sharing: str = "fifo",
    trace: Recorder | None = None,
    acting: int | None = None,
) -> Outcome:
    """Run one collective once in every group, all starting at the same time.

    Members of `groups` and `spare`, the places for servers, are places in the fabric. `buffer` maps (group, place in
    it) to a member's buffer; servers follow the members. Options that the collective does not declare are ignored. Of
    `acting` members only the first so many act; the places of the others are theirs (see `channels`).

    Raises:
        Refusal: the collective does not support the group or wiring.
        DeadlockError: its members deadlock.
    """
    env = Environment()
    network = Transport(env, fabric, sharing, trace or Recorder(messages=False))
    algorithm = collectives.configured(name, options)
    processes = []
    ends: dict[int, int] = {}

    def completed(rank: int, _: Any) -> None:
        ends[rank] = env.now

    for number, ranks in enumerate(groups):
        whole = collectives.process_group(name, collectives.Site(fabric, ranks, spare), options, stage=number)
        views = [Group(network, whole, place) for place in range(acting or len(whole.ranks))]
        begun = [env.process(algorithm(view, buffer(number, view.me))) for view in views]
        for process, rank in zip(begun, whole.ranks, strict=False):
            process.callbacks.append(partial(completed, rank))
        processes += begun
    env.run()
    if stuck := sum(process.is_alive for process in processes):
        raise DeadlockError(f"deadlock: {stuck} of {len(processes)} members of {name} wait for each other")
    network.check_empty()
    sent = network.sent()
    even = len({ends[rank] for ranks in groups for rank in ranks}) == 1
    return Outcome(env.now, sent["messages"], sent["bytes_gradients"], sent["bytes_scales"], even)


def quickest(
    fabric: Fabric, groups: Sequence[Sequence[int]], buffer: Callable[[int, int], Buffer], **more: Any
) -> tuple[str, Outcome]:
    """Run every all-reduce once; returns the name and outcome of the fastest (ties: first by name).

    Arguments are those of `measure`. Algorithms that do not support these groups or this wiring are left out.

    Raises:
        Refusal: none supports them.
    """
    took: dict[str, Outcome] = {}
    given = [name for name, value in dict(more.get("options") or {}).items() if value is not None]
    for name in collectives.all_reduces(given):
        with contextlib.suppress(Refusal, UsageError):
            took[name] = measure(fabric, name, groups, buffer, **more)
    if not took:
        raise Refusal("no all-reduce supports these groups on this wiring")
    best = min(took, key=lambda name: (took[name].duration, name))
    return best, took[best]
