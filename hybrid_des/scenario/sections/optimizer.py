"""The section that says what the optimizer keeps and how it steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated

from hybrid_des.options import Bytes, Flag, ReadsAs, Section, choice, given, plain, read_bytes, whole
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.workload.optimizers import ADAM, FORMATS, OPTIMIZERS, StateFormats

Format = Annotated[str | None, choice(*(name for name in FORMATS if name != "remainder"))]
LAYOUTS = ("blockwise", "duplicated", "distributed", "layer-sharded", "layer-wise")


class State(Section):
    """In which precision the optimizer keeps each part of its state."""

    master: Annotated[str | None, choice("fp32", "fp16", "remainder", "none")] = None
    """Of the copy of the weights; `remainder`: the 16 bits that bf16 weights lack of one in fp32."""
    first: Format = None
    """Of the first moment, or the momentum."""
    second: Format = None
    """Of the second moment."""


def _state(value: object) -> int | State:
    """Bytes per parameter, or the precision of each part."""
    if isinstance(value, Mapping | State):
        return State.model_validate(plain(value))
    return read_bytes(value)


class Muon(Section):
    """How matrices are orthogonalised: Newton–Schulz iterations."""

    iterations: Annotated[int, whole(1, 100)] = 5
    """Megatron-LM: `--muon-num-ns-steps`."""
    layout: Annotated[str | None, choice(*LAYOUTS)] = None
    """Where a matrix that ranks divide is whole. Default: duplicated; with zero-1 and zero-2 layer-wise."""
    symmetric: Flag = False
    """Whether only half of each symmetric product is computed (`--muon-use-syrk`)."""
    joined: Flag = False
    """Whether queries, keys and values are one matrix (`--muon-no-split-qkv`)."""


class Optimizer(Section):
    """What the optimizer keeps, and how it steps."""

    kind: Annotated[str, choice(*OPTIMIZERS)] = "adam"
    """adam (also AdamW), adam-8bit, sgd, lion, signum or muon."""
    state: Annotated[int | State | None, ReadsAs(_state, Bytes | State)] = None
    """Bytes of state per parameter, or {master, first, second}. Default: those of its kind, 12 for adam.

    8: two moments of 32 bits; 4: two of 16 bits, as PyTorch's Adam has them for parameters of 16 bits."""
    muon: Annotated[Muon | None, given(Muon)] = None
    """With muon: {iterations, layout, symmetric, joined}."""

    @property
    def state_bytes(self) -> Fraction:
        """Bytes of state per parameter; with muon, of those in matrices."""
        return self._bytes(OPTIMIZERS[self.kind])

    @property
    def beside_matrices(self) -> Fraction:
        """Bytes of state per parameter outside of matrices, which muon leaves to Adam."""
        return self._bytes(ADAM) if self.kind == "muon" else self.state_bytes

    def iterations(self, sharding: str) -> Muon | None:
        """How matrices are orthogonalised, with a layout that suits the sharding; None: they are not."""
        if self.kind != "muon":
            return None
        muon = self.muon or Muon()
        usual = "layer-wise" if sharding in ("zero-1", "zero-2") else "duplicated"
        return muon.model_copy(update={"layout": muon.layout or usual})

    def _bytes(self, usual: StateFormats) -> Fraction:
        if not isinstance(self.state, State):
            return usual.bytes if self.state is None else Fraction(self.state)
        given = self.state.model_dump(exclude_none=True)
        kept = {name: form for name, form in given.items() if getattr(usual, name) != "none"}
        return usual._replace(**kept).bytes


def misfits_of_optimizer(optimizer: Optimizer, sharding: str) -> Iterator[Problem]:
    """Parts of the state that an optimizer does not keep, and layouts of matrices that a sharding does not allow."""
    kind, usual = optimizer.kind, OPTIMIZERS[optimizer.kind]
    if isinstance(optimizer.state, State) and kind != "muon":
        for name, form in optimizer.state.model_dump(exclude_none=True).items():
            if getattr(usual, name) == "none" and form != "none":
                yield misfit(f"{kind} keeps no {name} moment", f"optimizer.state.{name}", "optimizer.kind")
    if kind != "muon":
        if optimizer.muon is not None:
            yield misfit(f"is read with kind muon only, not {kind}", "optimizer.muon", "optimizer.kind")
        return
    layout, keys = optimizer.muon and optimizer.muon.layout, ("optimizer.muon.layout", "sharding")
    if sharding == "zero-3" and layout in (None, "layer-wise"):
        divided = ", ".join(LAYOUTS[:-1])
        yield misfit(f"zero-3 divides matrices; muon needs one of {divided} to say where each is whole", *keys)
    if sharding in ("zero-1", "zero-2") and layout not in (None, "layer-wise"):
        yield misfit(f"with sharding {sharding}, whole matrices are divided among ranks; expected layer-wise", *keys)
    if sharding == "none" and layout == "layer-wise":
        yield misfit("divides matrices among replicas; it needs sharding zero-1 or zero-2, not none", *keys)
