"""Computation beside collectives: the share of its speed that it loses, by kind of work and of transport.

| beside a collective                | products | operations bound by memory |
|------------------------------------|----------|----------------------------|
| within a node                      | 25 %     | 19 %                       |
| over adapters                      | 15 %     | 19 %                       |
| that copy engines carry            | none     | none                       |

Kernels of collectives occupy multiprocessors and move bytes through memory. Public figures: 18.9 % on average, 40 %
at worst (arXiv 2507.03114); products at 56 % of their speed beside an all-gather on NVLinks, element-wise
operations at 40 % (NVIDIA/nccl issue 1428, 24 blocks of threads); 20 of 132 multiprocessors, 15 %, for traffic over
adapters (DeepSeek-V3, arXiv 2412.19437, section 3.2). Copy engines carry messages between stages, transfers to and
from the host, and the share of tensor ranks' collectives that overlaps products (NVIDIA/TransformerEngine, `use_ce`
of `initialize_ub`); not reductions that overlap weight gradients, which NCCL carries.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

NETWORK, MEMORY = Fraction(15, 25), Fraction(19, 25)  # of `slowed`


NONE_LOST = Fraction(0)


class Slowdown(NamedTuple):
    """The shares of its speed that computation loses beside collectives.

    Attributes:
        inside, beyond: of products, beside collectives within a node, and over adapters.
        memory: of operations bound by memory.
    """

    inside: Fraction
    beyond: Fraction
    memory: Fraction

    @classmethod
    def of(cls, slowed: Fraction, network: Fraction | None, memory: Fraction | None) -> Slowdown:
        """From the shares of a scenario, whose defaults keep their ratios."""
        return cls(
            slowed, slowed * NETWORK if network is None else network, slowed * MEMORY if memory is None else memory
        )

    def lost(self, *, beyond: bool, moving: Fraction) -> Fraction:
        """What work of which memory bounds the share `moving` loses beside a collective, over adapters or not."""
        return (1 - moving) * (self.beyond if beyond else self.inside) + moving * self.memory
