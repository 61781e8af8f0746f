"""A model that is measured over so many tensor ranks: its operators, a real step of it, and the step's scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_des.analysis.metrics import summary
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.cost_model.expert_loads import expert_layers
from hybrid_des.errors import Refusal
from hybrid_des.measured.measure import operators, overlap, training_step
from hybrid_des.measured.measure.chosen import Options
from hybrid_des.measured.measure.folder import Folder
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.machine import MACHINE, Facts
from hybrid_des.measured.measure.needed import Needed, needed_by
from hybrid_des.measured.measure.proof import Proof
from hybrid_des.measured.measure.shapes import Shape, model_of, scenario_of_model, shape_of
from hybrid_des.measured.measure.training_step import Layout, layers_that_fit
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run


@dataclass
class Trained:
    """A model over tensor ranks.

    Attributes:
        name: as given.
        model: the section of a scenario.
        needed: its operators on each rank.
        shape: its sizes there; None if no step of it is measured.
        layout: that of the step; None if there is none.
        lacking: what is not measured, and why.
    """

    name: str
    model: Mapping[str, Any]
    needed: Needed
    shape: Shape | None = None
    layout: Layout | None = None
    lacking: list[str] = field(default_factory=list)

    def tasks(self, job: Job, folder: Folder, options: Options) -> Iterator[tuple[str, Callable[[], str | None]]]:
        """Operators, computation beside collectives, and the step."""
        yield from operators.tasks(job, folder, self.needed, self.shape, options.repeats)
        yield from overlap.tasks(job, folder, options.repeats)
        if self.shape is not None and self.layout is not None:
            yield from training_step.tasks(job, folder, self.shape, self.layout, options.rounds)

    @property
    def file(self) -> str:
        """The scenario of the step."""
        assert self.layout is not None
        return f"step_{self.layout.tensor}.yaml"

    def sections(self, folder: Path) -> dict[str, Any]:
        """The scenario of the step, on the machine of the folder."""
        assert self.layout is not None
        return {
            "base": MACHINE,
            "name": f"{folder.resolve().name}_step",
            "model": {**self.model, "layers": self.layout.layers},
            "parallel": {"tensor": self.layout.tensor, "data": self.layout.data},
            "schedule": {"microbatch_size": self.layout.samples, "microbatches": 1},
        }

    def residual(self, folder: Path, rows: Folder) -> float | None:
        """The time of a whole block over that of its operators one by one, forward and backward."""
        assert self.shape is not None
        key = {"operator": operators.BLOCK, "heads": self.shape.heads, "length": self.shape.sequence}
        row = next((row for row in rows.rows(operators.TABLE) if all(row.get(name) == key[name] for name in key)), None)
        if row is None:
            return None
        basis = CostBasis.of(load(folder / self.file))
        layers = zip(layer_parts(basis), expert_layers(basis), strict=True)
        block = next(part for part, layer in layers if layer.is_block)
        return (float(row["seconds"]) + float(row["backward_s"])) / sum(block.times)

    def proof(self, folder: Path, rows: Folder) -> Proof:
        """The step as measured, and as predicted."""
        assert self.layout is not None and self.shape is not None
        predicted = float(summary(run(load(folder / self.file)))["step_time_s"])
        times = [
            float(row["seconds"]) for row in rows.rows(training_step.TABLE) if int(row["tensor"]) == self.layout.tensor
        ]
        part = (
            "" if self.layout.layers == self.shape.layers else f", {self.layout.layers} of {self.shape.layers} layers"
        )
        what = f"a step of {self.name}{part}, tensor: {self.layout.tensor}, data: {self.layout.data}"
        return Proof.of(what, times, predicted)


def trained_on(facts: Facts, options: Options) -> list[Trained]:
    """The model of the options over each of their numbers of tensor ranks.

    Raises:
        UsageError: there is no such model.
        ScenarioError: tensor ranks cannot divide it.
    """
    if options.model is None:
        return []
    model, samples = model_of(options.model)
    return [_trained(options.model, model, samples, tensor, facts) for tensor in options.tensor]


def _trained(name: str, model: dict[str, Any], samples: int, tensor: int, facts: Facts) -> Trained:
    scenario = scenario_of_model(model, samples, tensor)
    trained = Trained(Path(name).stem, model, needed_by(scenario))
    if facts.ranks % tensor:
        expected = f"expected a multiple of {tensor} processes, not {facts.ranks}"
        trained.lacking.append(f"a step with tensor {tensor}: {expected}")
        return trained
    try:
        trained.shape = shape_of(scenario)
    except Refusal as refusal:
        trained.lacking.append(f"operators bound by memory, and a step: {refusal}")
        return trained
    layers = layers_that_fit(trained.shape, trained.needed.parameters, facts.memory, on_gpu=facts.on_gpu)
    trained.layout = Layout(tensor, facts.ranks // tensor, samples, layers)
    return trained
