"""Registries that forget what a test registers."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.models import kinds
from hybrid_des.network import sharing, topologies
from hybrid_des.numerics import datasets
from hybrid_des.pipeline import schedules
from hybrid_des.report import files

ROOMS = (schedules, topologies, sharing, collectives, codecs, datasets, kinds, files)
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
