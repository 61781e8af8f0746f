"""Writes a rank's program from patterns such as `F0 F1+B0 I1 W`.

Papers and implementations describe two-chunk schedules as phases, each a repeated pattern. A word is a kind and a way
(0 or 1), for the next micro-batch of that way; `W` alone is the oldest deferred weight gradient; `+` fuses two ops.
"""

from functools import lru_cache
from typing import NamedTuple

from hybrid_des.pipeline.plan import KINDS, Action, Kind, Op


class _Word(NamedTuple):
    """An op of a pattern; without a way, any."""

    kind: Kind
    way: int | None


@lru_cache(maxsize=256)
def _words(pattern: str) -> tuple[tuple[_Word, ...], ...]:
    """The ops of each word of a pattern."""
    return tuple(tuple(_word(name) for name in word.split("+")) for word in pattern.split())


def _word(name: str) -> _Word:
    kind: Kind = next(k for k in KINDS if k == name[0])
    return _Word(kind, int(name[1]) if len(name) > 1 else None)


class Writer:
    """Writes a program, counting micro-batches; `program` holds the actions so far."""

    def __init__(self, chunks: tuple[int, int] = (0, 1), first: tuple[int, int] = (0, 0), fused: bool = True) -> None:
        """`chunks` and `first` give the chunk and first micro-batch per way; without `fused`, one op per action."""
        self.program: list[Action] = []
        self._chunks = chunks
        self._forward, self._backward = list(first), list(first)
        self._fused = fused
        self._deferred: list[Op] = []  # weight gradients, oldest first

    def write(self, pattern: str, times: int = 1) -> None:
        """Append a pattern of words, repeated `times` times."""
        for word in _words(pattern) * times:
            ops = tuple([self._op(*one) for one in word])
            self.program.extend([ops] if self._fused else [(op,) for op in ops])

    def forwards(self, way: int) -> int:
        """The micro-batch of this way's next forward."""
        return self._forward[way]

    def deferred(self, way: int) -> int:
        """Number of deferred weight gradients of this way."""
        return sum(op.chunk == self._chunks[way] for op in self._deferred)

    def _op(self, kind: Kind, way: int | None) -> Op:
        if kind == "W":
            if way is None:
                return self._deferred.pop(0)
            chunk = self._chunks[way]
            return self._deferred.pop(next(i for i, op in enumerate(self._deferred) if op.chunk == chunk))
        assert way is not None, "only weight gradients are of any way"
        counter = self._forward if kind == "F" else self._backward
        number, chunk = counter[way], self._chunks[way]
        counter[way] += 1
        if kind == "I":
            self._deferred.append(Op("W", number, chunk))
        return Op(kind, number, chunk)
