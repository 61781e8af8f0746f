"""One setting as flags of a framework, in both directions.

A rule writes the flags of a scenario's values, which are a mapping from paths such as "parallel.tensor" to plain
values, and reads values from the flags of a launch line. Flags that state the framework's own default are not written;
where they are missing, that default is read.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hybrid_des.collectives import codecs
from hybrid_des.errors import unknown
from hybrid_des.interchange.frameworks.launch_line import Given
from hybrid_des.models.catalogue import expanded, names
from hybrid_des.models.kinds import DEFAULT
from hybrid_des.models.kinds.transformer import Transformer
from hybrid_des.options import Section
from hybrid_des.scenario import Scenario
from hybrid_des.scenario.sizes import megatron_bucket

Values = Mapping[str, Any]


class Rule(NamedTuple):
    """How a setting is written as flags, and how it is read from them."""

    write: Callable[[Values], Iterable[str]]
    read: Callable[[Given], Values]


class Imported(NamedTuple):
    """A scenario's values from elsewhere.

    Attributes:
        values: by path; those that nothing states are missing.
        assumed: one line for each value that was chosen without being stated.
        unread: settings that were not understood.
        idle: settings that have no effect on the time of a step.
    """

    values: Values
    assumed: tuple[str, ...]
    unread: tuple[str, ...]
    idle: tuple[str, ...] = ()


def number(flag: str, path: str, default: int | None = None) -> Rule:
    """A whole number after a flag."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        return () if value is None or value == default else (f"{flag} {value}",)

    def read(given: Given) -> Values:
        value = given.number(flag)
        return {path: default if value is None else value}

    return Rule(write, read)


def word(flag: str, path: str, words: Mapping[str, Any], default: Any) -> Rule:
    """A word after a flag; of several with one meaning, the first is written."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        found = next((text for text, meaning in words.items() if meaning == value), None)
        return () if found is None or value == default else (f"{flag} {found}",)

    def read(given: Given) -> Values:
        text = given.text(flag)
        if text is not None and text not in words:
            raise given.error(flag, unknown(text, words))
        return {path: default if text is None else words[text]}

    return Rule(write, read)


def switch(flag: str, path: str, on: Any, off: Any) -> Rule:
    """A flag without a value."""

    def write(values: Values) -> Iterable[str]:
        return (flag,) if values.get(path) == on else ()

    def read(given: Given) -> Values:
        return {path: on if flag in given else off}

    return Rule(write, read)


def values_of(scenario: Scenario) -> dict[str, Any]:
    """The values of a scenario that frameworks have flags for; those of a transformer where it is one."""
    parallel, schedule, gradients = scenario.parallel, scenario.schedule, scenario.gradients
    values = {f"parallel.{name}": value for name, value in parallel}
    bucket = gradients.bucket
    size = None if bucket is None else int(bucket / codecs.find(gradients.codec).build().bytes_per_element)
    if gradients.bucket_rule == "megatron" and size == megatron_bucket(parallel.data):
        size = None  # as by default
    values |= {
        "parallel.order": parallel.layout.order,
        "schedule.kind": schedule.kind,
        "schedule.chunks": schedule.chunks,
        "schedule.p2p": schedule.p2p,
        "schedule.microbatch_size": schedule.microbatch_size,
        "schedule.microbatches": schedule.microbatches,
        "batch": schedule.microbatches * schedule.microbatch_size * parallel.data,
        "precision": scenario.precision,
        "recompute": scenario.recompute,
        "recompute_layers": scenario.recompute_layers,
        "sharding": scenario.sharding,
        "overlap.tensor": scenario.overlap.tensor,
        "overlap.parameters": scenario.overlap.parameters,
        "gradients.codec": gradients.codec,
        "gradients.overlap": gradients.overlap,
        "gradients.bucket": size,
        "offload.optimizer": scenario.offload.optimizer,
        "cuda_graphs": scenario.cuda_graphs,
    }
    values |= {f"experts.{name}": value for name, value in scenario.experts}
    if scenario.model is not None and isinstance(scenario.model.options, Transformer):
        for name, value in scenario.model.options:
            values[f"model.{name}"] = dict(value) if isinstance(value, Section) else value
    return values


def nested(values: Values) -> dict[str, Any]:
    """Values by path as a scenario file has them, without those that are None."""
    mapping: dict[str, Any] = {}
    for path, value in values.items():
        if value is None:
            continue
        *sections, key = path.split(".")
        section = mapping
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return mapping


def published_model(sizes: Mapping[str, Any]) -> str | dict[str, Any]:
    """The published model that has these sizes, by name if the sequence is its own too; else the sizes themselves."""
    stated = {key: value for key, value in sizes.items() if value is not None}
    if not {"layers", "hidden", "heads", "ffn", "vocab", "sequence"} <= stated.keys():
        return stated
    asked = Transformer.model_validate(stated)
    for name in names():
        entry = expanded({"base": name})
        if entry.pop("kind", DEFAULT) != DEFAULT:
            continue
        one = Transformer.model_validate(entry)
        own = {
            key: getattr(asked, key) for key in ("sequence", "predictions") if getattr(asked, key) != getattr(one, key)
        }
        if one.model_copy(update=own) == _with_defaults(asked, one):
            return {"base": name, **own} if own else name
    return stated


def by_path(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model, given by name or sizes."""
    return {"model": model} if isinstance(model, str) else {f"model.{key}": value for key, value in model.items()}


def _with_defaults(asked: Transformer, one: Transformer) -> Transformer:
    """Sizes in the form of another model's: what equals the default may be stated in one and left out in the other."""
    same = {}
    for key, default in (("kv_heads", asked.heads), ("head_size", asked.hidden // asked.heads)):
        if (getattr(asked, key) or default) == (getattr(one, key) or default):
            same[key] = getattr(one, key)
    return asked.model_copy(update=same)
