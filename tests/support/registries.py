"""Registries that forget what a test registers."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hybrid_des.cluster.sharing import registration as sharing
from hybrid_des.cluster.topologies import registration as topologies
from hybrid_des.collectives import registration as collectives
from hybrid_des.collectives.codecs import registration as codecs
from hybrid_des.pipeline.schedules import registration as schedules
from hybrid_des.report.files import registration as files
from hybrid_des.workload import distributions, lengths
from hybrid_des.workload.models.kinds import registration as kinds
from hybrid_des.workload.models.mixers import registration as mixers
from hybrid_des.workload.numerics import datasets
from hybrid_des.workload.packing import registration as packing
from hybrid_des.workload.placements import registration as placements

ROOMS = (
    schedules, topologies, sharing, collectives, codecs, datasets, kinds, files, distributions, lengths, packing,
    placements, mixers,
)  # fmt: skip
REGISTRIES = [module._REGISTRY for module in ROOMS]


@contextmanager
def scratch() -> Iterator[None]:
    """Restore every registry on leaving, and forget the user files imported inside."""
    imported = set(sys.modules)
    with ExitStack() as stack:
        for registry in REGISTRIES:
            registry.names()  # imports all that are built in
            stack.callback(setattr, registry, "_entries", dict(registry._entries))
        try:
            yield
        finally:
            for name in set(sys.modules) - imported:
                if name.startswith("hybrid_des_user_"):
                    del sys.modules[name]
