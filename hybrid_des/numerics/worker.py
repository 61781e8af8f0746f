"""The arithmetic of one GPU: its ops, their activations, and the optimizer step."""

import numpy as np

from hybrid_des.errors import NumericsError
from hybrid_des.numerics.layers import Array, Kept, loss_and_gradient
from hybrid_des.numerics.progress import TrainingProgress
from hybrid_des.numerics.setup import TrainingSetup
from hybrid_des.pipeline.op import TARGET, Op


class Worker:
    """The chunks of the model that one GPU holds.

    Attributes:
        stages: stage → its layers with their weights and the gradient accumulated so far.
        held: numbers of (micro-batch, chunk) pairs kept before and after their input gradient, after each forward.
    """

    def __init__(
        self, setup: TrainingSetup, progress: TrainingProgress, rank: int, replica: int, pipeline_rank: int
    ) -> None:
        plan = setup.plan
        self.rank = rank
        self.replica = replica
        self._setup = setup
        self._progress = progress
        self._plan = plan
        self.pipeline_rank = pipeline_rank
        self._stage_of = {chunk: plan.stage_of[pipeline_rank, chunk] for chunk in plan.chunks_of(pipeline_rank)}
        self.stages = {stage: setup.new_stage(stage) for stage in self._stage_of.values()}
        self._optimizers = {stage: setup.new_optimizer() for stage in self.stages}
        self._residuals: dict[int, Array] = {}
        self._kept: dict[tuple[int, int], tuple[Kept, Array | None]] = {}  # between F and the input gradient
        self._deferred: dict[tuple[int, int], Kept] = {}  # between the input and the weight gradient
        self._handed: dict[tuple[bool, int, int], Array] = {}  # between stages on this GPU, without a message
        self.held: set[tuple[int, int]] = set()

    def run(self, step: int, op: Op, payload: Array | None) -> Array | None:
        """Run one op on the payload of its message.

        Args:
            step: the training step.
            op: F, B, I or W.
            payload: F: the stage's input, (batch, features), None on the model's first stage; B and I: the gradient
                of its output, None on the last; W, and inputs from a stage on the same GPU: None.

        Returns:
            Payload of the next message. F: the stage's output; B and I: the gradient of its input, None on the
            first stage; W: None.

        Raises:
            NumericsError: an input of the op is missing, or its result contains NaN or infinity.
        """
        forward = op.kind == "F"
        if op.kind != "W" and payload is None:
            payload = self._handed.pop((forward, op.microbatch, op.chunk), None)
        with np.errstate(all="ignore"):
            if op.kind == "W":
                self._weight(step, op)
                return None
            result = self._forward(step, op, payload) if forward else self._backward(step, op, payload)
        if result is None:
            return None
        if not np.isfinite(result).all():
            raise self.error(step, op, f"its result contains {_non_finite(result)}")
        receiver = self._plan.neighbour(self.pipeline_rank, op, TARGET[op.kind])
        if receiver is not None and receiver[0] == self.pipeline_rank:
            self._handed[forward, op.microbatch, receiver[1]] = result
        return result

    @property
    def weights(self) -> dict[int, list[Array]]:
        """W and b of each layer in turn, by stage."""
        return {stage: state.arrays for stage, state in sorted(self.stages.items())}

    def gradient(self, stage: int) -> Array:
        """The stage's gradient, flat: this GPU's share of the mean over the replica's samples; reduced in place."""
        return self.stages[stage].gradient

    def residual(self, stage: int) -> Array:
        """The error of a lossy codec, to be sent with the next gradient (error feedback); updated in place."""
        if stage not in self._residuals:
            self._residuals[stage] = self.stages[stage].gradient * 0
        return self._residuals[stage]

    def learn(self, step: int) -> None:
        """Take the optimizer step, on gradients that are reduced over their replica groups.

        Raises:
            NumericsError: a gradient or an updated weight is NaN or infinite, or a micro-batch's backward is not
                complete.
        """
        for stage, state in self.stages.items():
            self._check_complete(step, stage)
            state.gradient /= self._setup.replicas
            self._progress.before(step, stage, state)
            with np.errstate(all="ignore"):
                self._optimizers[stage].update(state.weights, state.gradient)
            self._check_finite(step, stage, "a weight", state.weights)
            self._progress.after(step, stage, state)
            state.gradient[:] = 0

    def _check_complete(self, step: int, stage: int) -> None:
        self._check_finite(step, stage, "the gradient", self.stages[stage].gradient)
        left = sorted(i for i, chunk in [*self._kept, *self._deferred] if self._stage_of[chunk] == stage)
        if left:
            where = self._optimizer_of(step, stage)
            raise NumericsError(f"{where}: micro-batch {left[0]} has not completed its backward")

    def _check_finite(self, step: int, stage: int, what: str, values: Array) -> None:
        if not np.isfinite(values).all():
            raise NumericsError(f"{self._optimizer_of(step, stage)}: {what} is {_non_finite(values)}")

    def _optimizer_of(self, step: int, stage: int) -> str:
        return f"rank {self.rank}, step {step}, optimizer of stage {stage}"

    def error(self, step: int, op: Op, problem: str) -> NumericsError:
        """An error at an op: its place and the problem."""
        return NumericsError(f"rank {self.rank}, step {step}, {self._plan.name(self.pipeline_rank, op)}: {problem}")

    def _forward(self, step: int, op: Op, payload: Array | None) -> Array:
        stage = self._stage_of[op.chunk]
        if stage == 0:
            payload = self._setup.samples(step, self.replica, op.microbatch).inputs
        if payload is None:
            raise self.error(step, op, "its input is missing")
        output, kept = self.stages[stage].forward(payload)
        above: Array | None = None
        if stage == self._plan.stages - 1:
            labels = self._setup.samples(step, self.replica, op.microbatch).labels
            loss, above = loss_and_gradient(output, labels, self._setup.replica_samples)
            self._progress.loss(step, loss)
        self._kept[op.microbatch, op.chunk] = kept, above
        self.held.add((len(self._kept), len(self._deferred)))
        return output

    def _backward(self, step: int, op: Op, payload: Array | None) -> Array | None:
        key = op.microbatch, op.chunk
        if key not in self._kept:
            raise self.error(step, op, "its forward has not run")
        kept, above = self._kept.pop(key)
        if above is None:
            above = payload
        if above is None:
            raise self.error(step, op, "the gradient of its output is missing")
        below, self._deferred[key] = self.stages[self._stage_of[op.chunk]].input_gradient(above, kept)
        if op.kind == "B":
            self._weight(step, op)
        return below

    def _weight(self, step: int, op: Op) -> None:
        key = op.microbatch, op.chunk
        if key not in self._deferred:
            raise self.error(step, op, "its input gradient has not been computed")
        self.stages[self._stage_of[op.chunk]].add_weight_gradient(self._deferred.pop(key))


def _non_finite(values: Array) -> str:
    """The first non-finite element, as text: nan, inf or -inf."""
    return f"{values[~np.isfinite(values)][0]}"
