"""A flow that counts as several has the rate that each of several equal flows has."""

from random import Random

import pytest

from hybrid_des.cluster.sharing.max_min import Port, max_min
from hybrid_des.cluster.sharing.priority_fair import by_priority
from hybrid_des.cluster.sharing.weighted_fair import MOST_FLOWS, KnownRates


class Path:
    """A flow over some ports, which carry several of its images."""

    def __init__(self, weights, priority=0):
        self.ports, self.carried, self.priority = tuple(weights), weights.items(), priority
        for port in weights:
            port.flows[self] = None


@pytest.mark.parametrize("levels", [1, 3])
def test_rates_are_those_of_all_images(levels):
    rng = Random(levels)
    for _ in range(200):
        copies, capacities = rng.choice((2, 3, 4)), [rng.randint(1, 40) for _ in range(6)]
        shared = [rng.random() < 0.5 for _ in capacities]  # one link for all copies, or each has its own
        paths = [(rng.sample(range(6), rng.randint(1, 3)), rng.randrange(levels)) for _ in range(rng.randint(1, 6))]
        ports = [Port(capacity) for capacity in capacities]
        few = [Path({ports[link]: copies if shared[link] else 1 for link in links}, level) for links, level in paths]
        every = [[Port(capacity)] * copies if one else [Port(capacity) for _ in range(copies)]
                 for capacity, one in zip(capacities, shared, strict=True)]  # fmt: skip
        many = [
            [Path(dict.fromkeys([every[link][copy] for link in links], 1), level) for copy in range(copies)]
            for links, level in paths
        ]
        all_ports = [*{id(port): port for of_link in every for port in of_link}.values()]
        folded, whole = by_priority(ports), (max_min if levels == 1 else by_priority)(all_ports)
        for path, images in zip(few, many, strict=True):
            assert [whole[image] for image in images] == [folded[path]] * copies


@pytest.mark.parametrize(("flows", "kept"), [(MOST_FLOWS, 1), (MOST_FLOWS + 1, 0)])
def test_rates_are_kept_where_few_flows_meet(flows, kept):
    port, known = Port(10 * flows), KnownRates()
    paths = [Path({port: 2}) for _ in range(flows)]
    assert known.of([port]) == known.of([port]) == dict.fromkeys(paths, 5)
    assert len(known) == kept
    del port.flows[paths[0]]
    assert known.of([port]) == dict.fromkeys(paths[1:], 10 * flows // (2 * flows - 2))
