"""A scenario's values as other programs have them, by path, and the text of a scenario made of them.

What is unknown is marked in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.collectives import codecs
from hybrid_des.interchange.frameworks.launch_line import Values
from hybrid_des.interchange.frameworks.variants import MODULES
from hybrid_des.options import Section
from hybrid_des.scenario.composition import nested, override, value_at
from hybrid_des.scenario.defaults import megatron_bucket
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import readable
from hybrid_des.scenario.loading import fewest, scenario_of
from hybrid_des.scenario.overrides import overridden
from hybrid_des.scenario.sizes import too_large
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.workload.models.catalogue import expanded, names
from hybrid_des.workload.models.kinds.pattern import names_in, order_of
from hybrid_des.workload.models.kinds.registration import DEFAULT
from hybrid_des.workload.models.kinds.transformer import Transformer, block_options

UNKNOWN = "UNKNOWN"
LONGEST = 100  # characters of a section in one line
_ORDER = (
    "name", "cluster", "model", "parallel", "batch", "schedule", "precision", "recompute", "recompute_layers",
    "sharding", "overlap",
)  # fmt: skip
_AS_STATED = (
    "schedule.kind", "schedule.chunks", "schedule.p2p", "schedule.microbatch_size", "schedule.microbatches",
    "precision", "recompute", "recompute_layers", "sharding", "overlap.tensor", "overlap.parameters",
    "gradients.codec", "gradients.overlap", "gradients.fused", "offload.optimizer", "cuda_graphs",
)  # fmt: skip
_NEEDED = ("layers", "hidden", "heads", "ffn", "vocab", "sequence")  # sizes without which there is no transformer


class Imported(NamedTuple):
    """A scenario's values from elsewhere.

    Attributes:
        values: by path; those that nothing states are missing.
        assumed: one line for each value that was chosen without being stated.
        unread: settings that were not understood.
        idle: settings that have no effect on the time of a step.
        refused: flags that the framework does not accept together, each with what it expects.
        unmodelled: settings that have no equal here, each with what is wrong in the figures.
        minor: how many of `unread`, at its end, have names that speak of no model, plan, memory or time.
        read: settings that are called otherwise here, each with its name.
        sources: values that come from lines of a log, each with these.
    """

    values: Values
    assumed: tuple[str, ...]
    unread: tuple[str, ...]
    idle: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    minor: int = 0
    read: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


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
        "batch": schedule.microbatches * schedule.microbatch_size * parallel.data,
        "gradients.bucket": size,
    }
    values |= {path: attrgetter(path)(scenario) for path in _AS_STATED}
    values |= {f"experts.{name}": value for name, value in scenario.experts}
    values |= {f"shards.{name}": value for name, value in scenario.shards} | {"optimizer": scenario.optimizer}
    if scenario.model is not None and isinstance(scenario.model.options, Transformer):
        for name, value in scenario.model.options:
            values[f"model.{name}"] = dict(value) if isinstance(value, Section) else value
        values |= block_values(scenario.model.options)
    return values


def block_values(options: Transformer) -> dict[str, Any]:
    """The options of every block of a transformer, and its modules that predict further tokens, with theirs."""
    blocks, modules = block_options(options), options.predictions
    values: dict[str, Any] = {"model.blocks": blocks}
    if not isinstance(modules, int):
        values |= {"model.predictions": modules.count * modules.passes, MODULES: modules}
        if modules.kinds:
            kinds = names_in(modules.kinds, options.kinds or {})
            order = order_of(options.pattern, options.kinds or {}, options.layers)
            values["model.blocks_of_modules"] = [blocks[order.index(name)] for name in kinds]
    return values


def published_model(sizes: Mapping[str, Any]) -> str | dict[str, Any]:
    """The published model that has these sizes, by name if the sequence is its own too; else the sizes themselves."""
    stated = {key: value for key, value in sizes.items() if value is not None}
    if not {*_NEEDED} <= stated.keys():
        return stated
    try:
        asked = Transformer.model_validate(stated)
    except ValidationError:
        return stated  # wrong sizes, or unknown ones: whoever reads the scenario says which
    for name in names():
        entry = expanded({"base": name})
        if entry.pop("kind", DEFAULT) != DEFAULT:
            continue
        published = Transformer.model_validate(entry)
        own = {
            key: getattr(asked, key)
            for key in ("sequence", "predictions", "window")
            if getattr(asked, key) != getattr(published, key)
        }
        if published.model_copy(update=own) == _with_defaults(asked, published):
            return {"base": name, **own} if own else name
    return stated


def by_path(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model, given by name or sizes."""
    return {"model": model} if isinstance(model, str) else {f"model.{key}": value for key, value in model.items()}


def _with_defaults(asked: Transformer, published: Transformer) -> Transformer:
    """Sizes in the form of another model's: what equals the default may be stated in one and left out in the other."""
    same = {}
    for key, default in (("kv_heads", asked.heads), ("head_size", asked.hidden // asked.heads)):
        if (getattr(asked, key) or default) == (getattr(published, key) or default):
            same[key] = getattr(published, key)
    return asked.model_copy(update=same)


def without_stated(imported: Imported, overrides: Sequence[str]) -> Imported:
    """The same without assumptions about what overrides state."""
    stated = [f"{path}." for path in overridden(overrides)]

    def left(line: str) -> str:
        paths, colon, said = line.partition(":")
        kept = [
            path for path in paths.split(", ")
            if not any(one.startswith(f"{path}.") or f"{path}.".startswith(one) for one in stated)
        ]  # fmt: skip
        return f"{', '.join(kept)}{colon}{said}" if kept else ""

    return imported._replace(assumed=tuple(filter(None, map(left, imported.assumed))))


def scenario_file(name: str, imported: Imported, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The text, and the paths of values that are unknown.

    Raises:
        ScenarioError: values do not fit each other, or an override is wrong.
    """
    document, unknown = _document(name, imported, overrides)
    stated = document.value
    if not unknown:
        scenario_of(document)  # with the place of an override in an error
        written = value_at(stated, "model.written")
        stated = fewest(stated)
        if written is not None:  # a default too, which would leave open what the line says
            model = stated["model"]
            stated["model"] = {**(model if isinstance(model, dict) else {"base": model}), "written": written}
    stated.setdefault("cluster", {})
    if isinstance(machine := stated["cluster"], dict):
        stated["cluster"] = {"gpu": catalogue.DEFAULT, **machine}
    notes = {
        "from the log": imported.sources,
        "not modelled": imported.unmodelled,
        "assumed": imported.assumed,
        "not understood": imported.unread,
        "unknown": unknown,
        "refused by the framework": imported.refused,
    }
    lines = [f"# {what}: {line}" for what, listed in notes.items() for line in listed]
    blocks = [_block({key: stated[key]}) for key in sorted(stated, key=_place)]
    return "".join([*(f"{line}\n" for line in lines), "\n" if lines else "", *blocks]), unknown


def within_limits(name: str, imported: Imported, overrides: Sequence[str]) -> tuple[Imported, Scenario | None]:
    """The same without rows of messages, if all replicas would have too many; and the scenario, if nothing is unknown.

    Replicas that one stands for have none, but only a run shows whether it may.

    Raises:
        ScenarioError: as `scenario_file`.
    """
    document, unknown = _document(name, imported, overrides)
    if unknown:
        return imported, None
    scenario = scenario_of(document)
    every, quiet = scenario.parallel.data, scenario.model_copy(update={"record": "compute"})
    why = too_large(scenario, every)
    if why == too_large(quiet, every):
        return imported, scenario
    assumed = f"record: compute, as {why.partition(' are more')[0]} would be too many if no replica stands for others"
    values = {**imported.values, "record": "compute"}
    return imported._replace(values=values, assumed=(*imported.assumed, assumed)), quiet


def _document(name: str, imported: Imported, overrides: Sequence[str]) -> tuple[Document, list[str]]:
    """The values with overrides, and the paths of those that are unknown."""
    values = nested(imported.values)
    model = values.get("model")
    if isinstance(model, dict) and not model.keys() & {"base", "kind"}:
        values["model"] = {**dict.fromkeys(_NEEDED, UNKNOWN), **model}
    document = Document({"name": name, **values}, name)
    override(document, overrides)
    return document, [*_unknown(document.value, "")]


def _place(key: str) -> int:
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def _block(values: Mapping[str, Any]) -> str:
    """One key with its values; a section in a single line, if it is short."""
    ((key, value),) = ((key, readable(value)) for key, value in values.items())
    if isinstance(value, dict):
        line = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, allow_unicode=True, width=10**6)
        if len(line) < LONGEST:
            return f"{key}: {line}"
    return yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True)


def _unknown(values: Mapping[str, Any], at: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _unknown(value, f"{at}{key}.")
        elif value == UNKNOWN:
            yield f"{at}{key}"
