"""What the tools answer, as numbers: the models that the schemas of their results are made from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hybrid_des.interface.mcp.arguments import TOOLS

Interval = tuple[float, float] | None


class Failure(BaseModel):
    """Why there is no result."""

    message: str = Field(description="What is wrong, and what would be right.")
    kind: str
    exit_code: int = Field(description="As of the command: 1 the simulation failed, 2 wrong input, 3 out of time.")
    problems: list[dict[str, str | int]] = Field(
        default=[], description="One per problem: message and, where known, file, line, path, expected, found."
    )


class Answer(BaseModel):
    """What every tool answers: what it found or, of a call that failed, an error."""

    model_config = ConfigDict(extra="allow")
    error: Failure | None = None


class LoopAnswer(BaseModel):
    """A loop of engines, queue and trainer (`rl`): means of a cycle, from weight sync to weight sync."""

    cycle_s: float = Field(description="Seconds from weight sync to weight sync.")
    trainer_wait_s: float = Field(description="Of these, seconds in which the trainer waits for samples.")
    trainer_busy_ratio: float
    rollout_busy_ratio: float = Field(description="Share of the engines' time in which they generate.")
    mean_age: float = Field(description="Weight syncs between the beginning of a sample and its training.")
    largest_age: int
    samples_per_s: float
    tokens_per_gpu_s: float
    recomputed_tokens: int
    dropped: int


class StepAnswer(Answer):
    """A training step, or, with rl, a loop; then there are no figures of a step."""

    name: str = ""
    gpus: int = 0
    step_time_s: float = Field(default=0.0, description="Seconds of a training step.")
    likely_step_time_s: Interval = Field(
        default=None, description="What a measured step lies in nine times out of ten; null without a model."
    )
    likely_text: str = Field(default="", description="What that rests on, and what of the run was never measured.")
    tokens_per_gpu_s: float | None = Field(default=None, description="Tokens per second and GPU.")
    mfu: float | None = Field(default=None, description="Model FLOP utilisation, a share.")
    step_shares: dict[str, float] = Field(default={}, description="What the mean GPU does; shares that sum to 1.")
    peak_memory_bytes: int = Field(default=0, description="Of the GPU that is closest to its memory.")
    memory_bytes: int = Field(default=0, description="What that GPU has.")
    fits: bool = True
    loop: LoopAnswer | None = None
    warnings: list[str] = []


class ChangeAnswer(BaseModel):
    """A change of settings that was simulated."""

    change: str
    set: list[str] = Field(description="As the argument `set` takes it.")
    step_time_s: float
    gain: float = Field(description="Share of today's step that it saves.")
    likely_gain: Interval = Field(default=None, description="What four of five measured gains of this kind lie in.")
    peak_memory_bytes: int
    remarks: list[str] = []
    flags: list[str] = Field(default=[], description="Of the framework's launch line, that change.")


class ExplainAnswer(StepAnswer):
    """Why the step takes as long, and what would help."""

    main_loss: str = Field(default="", description="What most of the step is lost to, and why.")
    changes: list[ChangeAnswer] = []
    what_if: dict[str, float] = Field(default={}, description="Seconds of a step with each change asked for.")


class CompareAnswer(Answer):
    """Two scenarios side by side."""

    a: str = ""
    b: str = ""
    a_step_time_s: float = 0.0
    b_step_time_s: float = 0.0
    change_ratio: float = Field(default=0.0, description="Change of the step from a to b, as a share of a's.")
    likely_change_ratio: Interval = Field(
        default=None, description="What four of five measured changes of this kind lie in."
    )
    tied: bool = Field(default=False, description="Whether the difference is too small to be told.")
    a_fits: bool = True
    b_fits: bool = True
    causes_s: dict[str, float] = Field(default={}, description="Seconds that the mean GPU spends more, by cause.")


class PlanAnswer(BaseModel):
    """A plan that was simulated."""

    cost: float = Field(description="The objective, in the unit of its key.")
    peak_memory_bytes: int
    set: list[str] = Field(description="As the argument `set` takes it.")


class SearchAnswer(Answer):
    """The best plans."""

    outcome: str = ""
    objective: str = Field(default="", description="The key that is made least, with its unit.")
    plans: int = Field(default=0, description="Plans of the space.")
    gap_ratio: float | None = Field(
        default=0.0, description="By which a plan not yet simulated may still be better; 0: none; null: not known."
    )
    stopped: str = Field(default="", description="Why the search ended before that was proved; empty if it was.")
    best: list[PlanAnswer] = []


class InitAnswer(Answer):
    """The files written, or the shipped scenarios."""

    files: list[str] = []
    shipped: dict[str, str] = Field(default={}, description="Name → what it shows.")


class DocsAnswer(Answer):
    """A text of the documentation."""

    text: str = ""
    left: int = Field(default=0, description="Characters that follow; `offset` skips to them.")


ANSWERS: dict[str, type[Answer]] = {
    "simulate": StepAnswer,
    "explain": ExplainAnswer,
    "compare": CompareAnswer,
    "search": SearchAnswer,
    "init": InitAnswer,
    "docs": DocsAnswer,
}


def described() -> list[dict[str, Any]]:
    """Name, description and schemas of every tool, as a client lists them."""
    return [
        {
            "name": name,
            "description": model.__doc__,
            "input_schema": model.model_json_schema(),
            "output_schema": ANSWERS[name].model_json_schema(mode="serialization"),
        }
        for name, model in TOOLS.items()
    ]
