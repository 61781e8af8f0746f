"""A launch whose model is stated beside it, by a configuration or by name, as slime, swift, verl and NeMo-RL state it.

The model is written as flags in front of those of the launch, so that a size which the launch states itself is the one
that counts, as in those programs; what no flag expresses stays as the model has it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hybrid_des.errors import UsageError, unknown
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.launch_line import Read, read_words
from hybrid_des.interchange.frameworks.megatron import read_launch
from hybrid_des.interchange.frameworks.megatron_model import model_flags
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, Imported, by_path
from hybrid_des.options import Section
from hybrid_des.workload.models.catalogue import expanded, names
from hybrid_des.workload.models.kinds.registration import DEFAULT
from hybrid_des.workload.models.kinds.transformer import Transformer

_BESIDE = ("kind", "base", "written")  # keys of a model that are no sizes


def read_model(given: str) -> tuple[str, Imported]:
    """What a model is called, and the values of a scenario that it gives.

    Args:
        given: a `config.json`, a folder that has one, or the name of a published model.

    Raises:
        UsageError: it is none of them, or makes layers that are not known here.
    """
    path = Path(given)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and given in names():
        longest = expanded({"base": given}).get("sequence")
        assumed = f"model.sequence: {longest}: that of the published model; state that of training"
        unsaid = "cluster, parallel, batch: a model's name does not say them"
        return given, Imported({"model": given}, (*((assumed,) if longest else ()), unsaid), ())
    elif not path.exists() and path.suffix != ".json":
        raise UsageError(f"--from {given}: no such file or folder, and as a published model {unknown(given, names())}")
    folder = path.resolve().parent.name
    imported = read_hugging_face(read_text(path, "a model's config.json"), str(path))
    return folder if path.name == "config.json" and folder else path.stem, imported


def read_with_model(read: Read, name: str, model: Imported, given: str, overrides: Sequence[str] = ()) -> Imported:
    """A scenario's values from a launch and its model.

    Args:
        read: what the launch starts.
        name: where the launch comes from, for errors.
        model: the values that the model gives.
        given: what the model is called, for messages.
        overrides: what is stated besides.

    Raises:
        UsageError: as `read_launch`, or the model is no transformer.
    """
    stated = _sizes(model.values)
    if stated is None:
        raise UsageError(
            f"--from {given}: no transformer whose sizes are all known, which a launch of Megatron-LM needs"
        )
    own = model_flags(stated)
    words = [word for flag, values in own.items() for word in (flag, *values)]
    own.pop("--make-vocab-size-divisible-by", None)  # is for the launch to choose
    choices = tuple((said, own | flags) for said, flags in read.choices)
    both = read_launch(read._replace(flags=own | read.flags, choices=choices), name, overrides=overrides)
    open_keys = [key for key in stated if both.values.get(f"model.{key}") == UNKNOWN]
    launched = _sizes({**both.values, **by_path({key: stated[key] for key in open_keys})})
    alone = _sizes(read_launch(read_words(words, (), {}), name).values)
    if launched is None or alone is None:  # the launch has sizes of which no model can be
        return both
    differ = {key: value for key, value in launched.items() if value != alone[key]}
    open_sizes: dict[str, Any] = dict.fromkeys(open_keys, UNKNOWN)
    named = {path: value for path, value in model.values.items() if path != "model"}
    named |= {"model.base": model.values["model"]} if "model" in model.values else {}
    named |= {**by_path(differ | open_sizes), "model.written": both.values["model.written"]}
    values = {path: value for path, value in both.values.items() if path.partition(".")[0] != "model"}
    settled = {*differ, *(["sequence"] if "--seq-length" in read.flags else [])}
    lines = (*_kept(model, settled), *_replaced(stated, differ, given))
    return both._replace(
        values=named | values,
        assumed=(*both.assumed, *lines),
        unread=(*model.unread, *both.unread),  # whose last ones are minor
        idle=(*both.idle, *model.idle),
    )


def _sizes(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """All sizes of a transformer; None where some are not known, or the model is none."""
    model = {path.partition(".")[2]: value for path, value in values.items() if path.startswith("model.")}
    options = expanded({"base": values["model"]} if "model" in values else model)
    if options.get("kind", DEFAULT) != DEFAULT:
        return None
    try:
        sizes = Transformer.model_validate({key: value for key, value in options.items() if key not in _BESIDE})
    except ValidationError:
        return None
    return {key: dict(value) if isinstance(value, Section) else value for key, value in sizes}


def _kept(model: Imported, settled: Collection[str]) -> Iterator[str]:
    """What the model assumes and the launch does not state."""
    dropped = ("cluster", *(f"model.{key}:" for key in settled))
    return (line for line in model.assumed if not line.startswith(dropped))


def _replaced(stated: Mapping[str, Any], differ: Mapping[str, Any], given: str) -> Iterator[str]:
    """Sizes of the launch that are others than those of the model; its sequence is its own."""
    for key, value in differ.items():
        if key != "sequence":
            why = "padded for tensor ranks" if key == "vocab" and value > stated[key] else "as the launch says"
            yield f"model.{key}: {_shown(value)}: {why}; {given} has {_shown(stated[key])}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
