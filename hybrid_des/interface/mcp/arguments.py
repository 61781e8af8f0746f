"""What the tools take: the models that their schemas are made from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line, unknown

USUAL_S, SEARCH_S, MOST_S = 60.0, 120.0, 600.0  # budgets: of most tools, of a search, the longest


def _budget(usual: float, what: str) -> Any:
    return Field(default=usual, gt=0, le=MOST_S, allow_inf_nan=False, description=f"Seconds after which the {what}.")


class Arguments(BaseModel):
    """What every tool takes."""

    model_config = ConfigDict(extra="forbid")
    budget_s: float = _budget(USUAL_S, "call is stopped, whatever it has found")


class OfScenario(Arguments):
    """What a tool that works on a scenario takes."""

    scenario: str = Field(
        min_length=1,
        description="a file of the folder (plans/a.yaml), the name of a shipped one (llama3.1-70b_128; "
        "the tool init lists them), or YAML text such as 'base: scenarios/llama3.1-70b_128.yaml\\nbatch: 512'.",
    )
    set: list[str] = Field(
        default=[],
        description="Changes of it, as PATH=VALUE: parallel.tensor=8, cluster.nodes=16, schedule.kind=zb-h1.",
    )


class SimulateArguments(OfScenario):
    """Simulate one training step: its time with an interval, throughput, memory and what the step is spent on.

    Of a scenario with `rl`, the loop of engines, queue and trainer: its cycle, idle time of both sides, and ages.
    """


class ExplainArguments(OfScenario):
    """Say why the step takes as long as it does, and which one or two settings would make it shorter or make it fit."""

    what_if: list[str] = Field(
        default=[], description="Changes to simulate too, such as cluster.infiniband.bandwidth=2x or links.latency=0x."
    )


class CompareArguments(OfScenario):
    """Compare two scenarios, or one with changes: by how much the step differs, for what reasons, and how sure that is.

    Either `other`, or `with`, or both.
    """

    other: str = Field(default="", description="The second scenario, as `scenario`; by default the same.")
    changes: list[str] = Field(
        default=[], alias="with", description="Changes of the second one only, as PATH=VALUE; `set` changes both."
    )


class SearchArguments(OfScenario):
    """Find the best plan for the scenario's model and cluster: layout, schedule, micro-batch, recomputation, sharding.

    A `search:` block of the scenario says what varies; without one, all of these. What the budget leaves open is said.
    """

    budget_s: float = _budget(SEARCH_S, "search stops with the best plans so far")
    top: int = Field(default=5, ge=1, le=20, description="How many plans to return.")


class InitArguments(Arguments):
    """Write a scenario file into the folder, or list the shipped scenarios.

    A copy of a shipped one, or one made from a model, from flags of Megatron-LM, from files of another program's job,
    or from the log of a run of reinforcement learning.
    """

    name: str = Field(
        default="", description="A shipped scenario to copy, or the name of the new file; without any argument: list."
    )
    model: str = Field(
        default="", description="The name of a published model, such as llama3.1-8b, or a config.json of the folder."
    )
    megatron: str = Field(default="", description="Flags of Megatron-LM, or a launch script of the folder.")
    job: list[str] = Field(
        default=[], description="Configuration or launch files of another program's job, such as torchtitan's."
    )
    log: str = Field(default="", description="A log of a run of reinforcement learning; then `tool` is its framework.")
    tool: str = Field(default="", description="That program, where its files do not tell.")
    set: list[str] = Field(default=[], description="Values of the new scenario, as PATH=VALUE.")


class DocsArguments(Arguments):
    """Read the documentation: the list of pages, a page, a section of it, or what it says of a key of a scenario."""

    page: str = Field(
        default="", description="A page, such as skill, reference or glossary, or a key, such as gradients.bucket."
    )
    section: str = Field(default="", description="Words of a heading of the page.")
    offset: int = Field(default=0, ge=0, description="Characters of a long text to skip.")


TOOLS: dict[str, type[Arguments]] = {
    "simulate": SimulateArguments,
    "explain": ExplainArguments,
    "compare": CompareArguments,
    "search": SearchArguments,
    "init": InitArguments,
    "docs": DocsArguments,
}


def arguments_of(tool: str, given: object) -> Arguments:
    """Validate the arguments of a tool.

    Raises:
        UsageError: one line: there is no such tool, or what is wrong with the first wrong argument.
    """
    if tool not in TOOLS:
        raise UsageError(unknown(tool, TOOLS, "tool"))
    model = TOOLS[tool]
    try:
        return model.model_validate({} if given is None else given)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")  # what is missing is misspelled
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known = [field.alias or key for key, field in model.model_fields.items()]
        raise UsageError(f"{tool}: {unknown(name, known, 'argument')}")
    if first["type"] == "missing":
        raise UsageError(f"{tool}: {name} is required: {one_line(str(model.model_fields[name].description))}")
    what = first["msg"][0].lower() + first["msg"][1:]
    raise UsageError(f"{tool}: {name}: {what}, not {one_line(repr(first['input']), LONGEST_SHOWN)}")
