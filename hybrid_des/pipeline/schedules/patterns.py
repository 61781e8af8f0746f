"""Writes a rank's program from patterns such as `F0 F1+B0 I1 W`.

Papers and implementations describe two-chunk schedules as phases, each a repeated pattern. A word is a kind and a way
(0 or 1), for the next micro-batch of that way; `W` alone is the oldest deferred weight gradient; `+` fuses two ops.
"""

from hybrid_des.pipeline.plan import KINDS, Action, Kind, Op


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
        for _ in range(times):
            for word in pattern.split():
                ops = tuple(self._op(name) for name in word.split("+"))
                self.program.extend([ops] if self._fused else [(op,) for op in ops])

    def forwards(self, way: int) -> int:
        """The micro-batch of this way's next forward."""
        return self._forward[way]

    def deferred(self, way: int) -> int:
        """Number of deferred weight gradients of this way."""
        return sum(op.chunk == self._chunks[way] for op in self._deferred)

    def _op(self, name: str) -> Op:
        kind: Kind = next(k for k in KINDS if k == name[0])
        if kind == "W":
            at = 0
            if len(name) > 1:
                chunk = self._chunks[int(name[1])]
                at = next(i for i, op in enumerate(self._deferred) if op.chunk == chunk)
            return self._deferred.pop(at)
        way = int(name[1])
        counter = self._forward if kind == "F" else self._backward
        op = Op(kind, counter[way], self._chunks[way])
        counter[way] += 1
        if kind == "I":
            self._deferred.append(op._replace(kind="W"))
        return op
