"""The check of a user's all-reduce when it is loaded or first used: real numbers on a few small groups."""

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import SlowerThanBestError, run_collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.registration import Collective, Given
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import HybridDesError, Refusal, UsageError
from hybrid_des.options import Options, required_keys
from hybrid_des.units import PICOSECONDS_PER_SECOND

PACKAGE = __name__.partition(".")[0]
GROUPS = (2, 3, 4)  # members
SPARE = 3  # GPUs for servers
ELEMENTS = 61  # divisible by none of them
LONGEST = 60 * PICOSECONDS_PER_SECOND  # for a few hundred bytes


def unchecked(name: str, options: Given = None) -> str:
    """Reduce small arrays with a user's all-reduce; why that cannot be, empty if it was done or need not be.

    Args:
        name: a collective; those of this package are not checked.
        options: its options; by default their defaults.

    Raises:
        UsageError: a member does not end with the sum, or the members deadlock; the message names the collective.
    """
    entry = collectives.find(name)
    if entry.build.__module__.partition(".")[0] == PACKAGE:
        return ""
    if entry.facts["does"] != "all-reduce":
        return f"it is an {entry.facts['does']}"
    given = {key for key, value in dict(options or {}).items() if value is not None}
    if lacking := {*required_keys(entry.options)} - given:
        return f"it needs {', '.join(sorted(lacking))}"
    return _unchecked(name, entry.build, *entry.arguments(options))


@lru_cache(maxsize=64)
def _unchecked(name: str, build: Collective, *options: Options) -> str:
    """The same of the function that a name has now."""
    refused = [reason for size in GROUPS if (reason := _refused(name, size, *options))]
    return refused[0] if len(refused) == len(GROUPS) else ""


def _refused(name: str, size: int, *options: Options) -> str:
    """Why a group of this size is not supported; empty if it is, and every member ends with the sum."""
    what = f'collective "{name}", checked on {size} members'
    before = np.random.default_rng(size).integers(-1000, 1000, (size, ELEMENTS)).astype(np.float64)
    try:
        after = _reduced(name, before, *options)
    except Refusal as refusal:
        return str(refusal)
    except SlowerThanBestError:
        raise UsageError(f"{what}: still sends messages after a simulated minute") from None
    except HybridDesError as error:
        raise UsageError(f"{what}: {error}") from None
    wrong = np.argwhere(after != before.sum(axis=0))
    if len(wrong):
        member, element = map(int, wrong[0])
        value, expected = after[member, element], before[:, element].sum()
        same = "which it began with" if value == before[member, element] else "not the sum"
        where = f"element {element} of member {member}"
        raise UsageError(f"{what}: {where} ends as {value:g}, {same}; expected {expected:g}, the sum over all members")
    return ""


def _reduced(name: str, before: NDArray[np.float64], *options: Options) -> NDArray[np.float64]:
    """What every member ends with."""
    size = len(before)
    node = NodeSpec(
        size + SPARE, PortSpec(Fraction(10**9), 1000), PortSpec(Fraction(10**9), 5000), size + SPARE, in_switch=True
    )
    fabric = nodes(ClusterSpec((node,)))
    network = Transport(Links(Environment(), fabric, "fifo"), Recorder())
    site = collectives.Site(fabric, range(size), range(size, size + SPARE))
    group = collectives.process_group(name, site, *options)
    arrays = [*before.copy(), *np.zeros((len(group.ranks) - size, ELEMENTS))]
    codec = codecs.find("fp64").build()
    members = [(group, place) for place in range(len(group.ranks))]
    algorithm = collectives.configured(name, *options)
    run_collective(
        network, algorithm, members, lambda _, member: Buffer(ELEMENTS, codec, arrays[member]), limit=LONGEST
    )
    return np.array(arrays[:size])
