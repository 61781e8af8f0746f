"""What a step would take with sizes that tensor cores take whole."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from hybrid_des.cost_model.layer_costs import ALIGNED
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.run import run
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

MOST_EVENTS = 200_000  # of the run beyond which nothing else is simulated

VOCABULARY = "model.vocab"
PADDED = ("megatron", "deepspeed")  # stacks that pad vocabularies (Megatron-LM's --make-vocab-size-divisible-by)

Build = Callable[[tuple[str, ...]], Scenario]  # the same file with further keys set


class Misaligned(NamedTuple):
    """A size that is no multiple of what tensor cores take.

    Attributes:
        text: which, in words.
        key, size: a key of the scenario, and its next value that is one.
    """

    text: str
    key: str
    size: int


def alignment(scenario: Scenario, step: float, events: int, build: Build) -> Iterator[str]:
    """Sizes that cost tensor cores, each with the step of the next size that does not."""
    for text, key, size in misaligned(scenario):
        aligned = f"{size} is the next that is one"
        if events <= MOST_EVENTS and key != VOCABULARY:
            with suppress(HybridDesError):
                took = format_seconds(_step(build((f"{key}={size}",))))
                aligned = f"with {size} the step takes {took} instead of {format_seconds(step)}"
        yield f"{text}; {aligned}"


def misaligned(scenario: Scenario) -> Iterator[Misaligned]:
    """Sizes of a transformer whose share on a tensor rank is no multiple of 16 bytes in 16 bits."""
    if scenario.model is None:
        return
    from hybrid_des.workload.models.kinds.transformer import Transformer  # half a tenth of the shortest run

    options = scenario.model.options
    if not isinstance(options, Transformer):
        return
    ranks = scenario.parallel.tensor
    if options.latent is None and options.head % ALIGNED:
        how = "plain attention runs without tensor cores" if options.attention == "plain" else "kernels pad them"
        text = f"model.heads: heads of {options.head} elements are no multiple of {ALIGNED}: {how}"
        yield Misaligned(text, "model.head_size", _next(options.head, ALIGNED))
    names = ("hidden", "ffn") if options.written in PADDED else ("hidden", "ffn", "vocab")
    for name in names:
        size, key = getattr(options, name), f"model.{name}"
        if size and size % (ALIGNED * ranks):
            each = f" on each of {ranks} tensor ranks" if ranks > 1 else ""
            costs = (
                "takes about twice as long" if key == VOCABULARY else "runs without tensor cores, or on padded copies"
            )
            text = f"{key}: {size} is no multiple of {ALIGNED}{each}: on GPUs its GEMM {costs}, which is not modelled"
            yield Misaligned(text, key, _next(size, ALIGNED * ranks))


def _next(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _step(scenario: Scenario) -> float:
    done = run(scenario.model_copy(update={"record": "none"}))
    return done.timeline.duration / scenario.steps / PICOSECONDS_PER_SECOND
