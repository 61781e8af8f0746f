"""Files of a job of another program, and those that they name, as one scenario."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hybrid_des.errors import UsageError, unknown
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.megatron_model import model_flags
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, Imported
from hybrid_des.interchange.jobs.adapters import place_adapters
from hybrid_des.interchange.jobs.mappings import Flat, flat_mapping, flattened
from hybrid_des.interchange.jobs.model_names import model_called
from hybrid_des.interchange.jobs.plan import PER_NODE, QUANTITIES, complete
from hybrid_des.interchange.jobs.tools import TOOLS, Tool, recognised, tool_of
from hybrid_des.interchange.jobs.translation import Stated, translate
from hybrid_des.interchange.recipes import Built, built_by, function_in
from hybrid_des.options import Section
from hybrid_des.workload.models.catalogue import expanded
from hybrid_des.workload.models.kinds.registration import DEFAULT
from hybrid_des.workload.models.kinds.transformer import Transformer
from hybrid_des.workload.models.layer import OPS

MOST_FILES = 16  # of which each names the next
_SIZES = {"--num-layers": "layers", "--hidden-size": "hidden", "--num-attention-heads": "heads"}
_OF_MODEL = {
    "--seq-length": "model.sequence", "--attention-backend": "model.attention",
    "--mtp-num-layers": "model.predictions", "--num-layers": "model.layers", "--vocab-size": "model.vocab",
}  # fmt: skip
_BESIDE = 6  # folders above a file in which the files that it names are looked for


def read_job(
    files: Sequence[Path],
    tool: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    model: Imported | None = None,
    places: Sequence[Path] = (),
) -> Imported:
    """A scenario's values from the files of a job; of two that state the same, the last counts.

    Args:
        files: configurations, or launch lines and scripts, of programs in `TOOLS`; recipes in Python, maybe with the
            function after a colon: `recipes.py:llama3_8b`.
        tool: the program of those that are not recognised.
        fixed: values by path that hold in any case; the number of nodes gives that of replicas.
        model: its values, from a config.json; without it, the files name or describe one.
        places: folders in which the modules of recipes are looked for, beside those around the files.

    Raises:
        UsageError: a file is none of a known program, or a value is wrong; the message names it.
    """
    if tool is not None and tool not in TOOLS:
        raise UsageError(f"--tool: {unknown(tool, TOOLS)}")
    stated = Stated(files={file.name for file in files}, places=(*places, *(file.resolve().parent for file in files)))
    before = None
    for file in files:
        before = _read(file, tool, stated, (), before)
    return _scenario(stated, fixed or {}, model, str(files[-1]))


def read_settings(
    flat: Flat, tool: str, name: str, fixed: Mapping[str, Any] | None = None, model: Imported | None = None
) -> Imported:
    """A scenario's values from settings that are read already, by dotted key.

    Args:
        flat: the settings.
        tool: the program, by its name in `TOOLS`.
        name: where they come from, for errors.
        fixed: values by path that hold in any case.
        model: its values, from a config.json.

    Raises:
        UsageError: a value is wrong; the message names it.
    """
    stated = Stated()
    translate(flat, TOOLS[tool], name, stated)
    return _scenario(stated, fixed or {}, model, name)


def _read(file: Path, tool: str | None, stated: Stated, users: tuple[Path, ...], user: Tool | None = None) -> Tool:
    """Read a file above those that it names; one that is not recognised is of the program of its user, or of the last.

    Returns:
        The program that it is for.
    """
    if len(users) >= MOST_FILES:
        raise UsageError(f"{file}: more than {MOST_FILES} files, each of which names the next")
    flat = _flat(file, tool, stated)
    program = TOOLS[tool] if tool is not None else tool_of(flat, str(file), user)
    flat = _with_recipe(flat, program, str(file), stated)
    for key, paths in program.table.files.items():
        for given in (given for given in flat if key in (given, program.inner(given))):
            for named in flat[given] if isinstance(flat[given], list) else [flat[given]]:
                if isinstance(named, str) and named:
                    _read_named((*users, file.resolve()), named, program, stated, paths)
    translate(flat, program, str(file), stated)
    return program


def _flat(file: Path, tool: str | None, stated: Stated) -> Flat:
    """The values of a file by dotted key: of what it builds, if it is Python."""
    path, colon, call = str(file).partition(".py:")
    if not colon and file.suffix != ".py":
        return flat_mapping(read_text(file, "the configuration of a job"), str(file))
    recipe = Path(f"{path}.py") if colon else file

    def is_job(values: Mapping[str, Any]) -> bool:
        flat = flattened(values, str(file))
        return any(recognised(flat)) if tool is None else TOOLS[tool].is_that_of(flat)

    return _built(built_by(recipe, call, is_job, stated.places), str(recipe), stated)


def _built(built: Built, name: str, stated: Stated) -> Flat:
    """The values of a recipe; what was not followed of it is said."""
    calls = [*dict.fromkeys(built.not_followed)]
    stated.assumed += [f"{call}: changes nothing of the job; its source was not found" for call in calls]
    return flattened(built.values, name)


def _with_recipe(flat: Flat, program: Tool, name: str, stated: Stated) -> Flat:
    """What a launch states above the recipe that it names, if its source is found."""
    table = program.table
    for key, modules in table.recipes.items():
        if not isinstance(called := flat.get(key), str):
            continue
        short = called.partition("(")[0]
        named = [module.format_map({**_Blank(flat), key: short}) for module in modules]
        function = next((module.partition(":")[2] for module in named if ":" in module), short)
        file = function_in([module.partition(":")[0] for module in named], function, stated.places)
        if file is None:
            where = "its source is not beside the job, nor in the active environment"
            said = f"{key}: {called}: {where}; run this there, or give what a run prints ({table.prints})"
            (stated.assumed if key in program.keys else stated.asked).append(said)
            continue
        built = built_by(file, f"{function}{called.removeprefix(short)}", lambda values: True, stated.places)
        stated.read.append(f"{key}: {called} is built in {file.name}")
        return {**_built(built, name, stated), **{other: value for other, value in flat.items() if other != key}}
    return flat


class _Blank(dict[str, Any]):
    """Values of which those that are missing are blank."""

    def __missing__(self, key: str) -> str:
        return ""


def _read_named(users: tuple[Path, ...], named: str, program: Tool, stated: Stated, paths: Sequence[str]) -> None:
    """Read a file that another one names; what it would say is unknown if it is not there."""
    *_, user = users
    if Path(named).name in stated.files - {user.name}:
        return
    above = user.parents[:_BESIDE]
    candidates = (folder / inner / named for folder in above for inner in ("", *program.table.folders))
    file = next((path for path in candidates if path.is_file() and path.resolve() not in users), None)
    if file is None:
        otherwise = {path: named if path == "model_name" else UNKNOWN for path in paths}
        stated.values = {**otherwise, **stated.values}
        stated.asked.append(f"{named}: named in {user.name}, but not beside it; give it with another --from-job")
        return
    _read(file, None, stated, users, program)


def _scenario(stated: Stated, fixed: Mapping[str, Any], model: Imported | None, name: str) -> Imported:
    """The values of a scenario, with the model that a config.json, a name or the files themselves give."""
    values = {**stated.values}
    stated.unread += place_adapters(values)
    tuned: dict[str, Any] = {path: values[path] for path in ("model.frozen", "model.adapters") if path in values}
    if "nproc_per_node" in stated.given and not {"cluster.nodes", "gpus"} & {*values, *fixed}:
        values["cluster.nodes"] = 1
        stated.assumed.append("cluster.nodes: 1: as torchrun starts without --nnodes")
    named = values.pop("model_name", None)
    own = _sizes(model, stated) if model is not None else {}
    if isinstance(base := fixed.get("model.base"), str):
        own = {"model.base": base}
    elif model is None and named is not None and not values.get("model.layers"):
        own = {"model.base": model_called(str(named)) or UNKNOWN}
        if own["model.base"] == UNKNOWN and _SIZES.keys() <= stated.flags.keys():
            own = {}
        elif own["model.base"] == UNKNOWN:
            stated.asked.append(f"model: {named}: not in the catalogue; give its config.json with --from, too")
        else:
            stated.assumed.append(f"model: {own['model.base']}: the published model of this name, for {named}")
    if not stated.flags and not own and "model.layers" not in values:
        own = {"model.base": UNKNOWN}
    values = {**own, **values} if stated.flags else {**own, **stated.constants, **values}
    options = _transformer(values)
    if (
        options is not None
        and "model.base" in own
        and not {"model.sequence", "--seq-length"} & {*values, *fixed, *stated.flags}
    ):
        longest = f"model.sequence: {options.sequence}: that of the published model; state that of training"
        stated.assumed.append(longest)
    if stated.flags:
        imported = _of_megatron(stated, values, options, fixed, name)
        return imported._replace(values={**_by_base(imported.values), **tuned} if tuned else imported.values)
    values |= dict.fromkeys(stated.undecided, UNKNOWN)
    assumed = complete(values, fixed, None if options is None else options.layers, name)
    of_release = options is not None and options.experts and options.written == "transformers"
    if of_release and "experts.kernel" not in {*values, *fixed}:
        stated.assumed.append("experts.kernel: fused: as transformers 5 without Liger's kernels; else per-expert")
    if options is not None and options.latent and values.get("recompute") == [OPS] and "recompute" not in fixed:
        values["recompute"] = UNKNOWN
        stated.asked.append("recompute: UNKNOWN: a choice by operator, which is not described for latent attention")
    asked = () if "cluster.gpu" in values else ("cluster.gpu: nothing names it",)
    assumed = [*stated.assumed, *_defaults(stated, values), *assumed, *asked]
    unread = (*stated.asked, *stated.unread, *stated.minor)
    read = tuple(stated.read)
    return Imported(values, tuple(assumed), unread, tuple(stated.idle), minor=len(stated.minor), read=read)


def _by_base(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values whose model has a section, to which others may be added."""
    return {
        "model.base" if path == "model" and isinstance(value, str) else path: value for path, value in values.items()
    }


def _defaults(stated: Stated, values: Mapping[str, Any]) -> Iterator[str]:
    """Programs' own values that count, one line each."""
    counts = (path for path in stated.defaults if path in stated.flags or ("." in path and path in values))
    return (stated.defaults[path] for path in counts)


def _sizes(model: Imported, stated: Stated) -> dict[str, Any]:
    """The values of a model by path, its name under `base`; what was said of it is said of the job."""
    said = [line for line in model.assumed if line.startswith("model.")]
    stated.assumed += [line for line in said if line.partition(":")[0] not in stated.values]
    stated.unread += model.unread
    stated.idle += model.idle
    return {"model.base" if path == "model" else path: value for path, value in model.values.items()}


def _transformer(values: Mapping[str, Any]) -> Transformer | None:
    """The model that values describe; None if something is missing."""
    sizes = {path.removeprefix("model."): value for path, value in values.items() if path.startswith("model.")}
    if UNKNOWN in sizes.values():
        return None
    options = expanded(sizes)
    try:
        return Transformer.model_validate(options) if options.pop("kind", DEFAULT) == DEFAULT else None
    except ValidationError:
        return None


def _of_megatron(
    stated: Stated, values: dict[str, Any], options: Transformer | None, fixed: Mapping[str, Any], name: str
) -> Imported:
    """What flags of Megatron-LM say; a model that they do not describe is written as flags below them."""
    below = {} if options is None or _describe_another(stated.flags, options) else model_flags(_stated(options))
    known = {**values, **fixed}
    assumed = [*_per_node(known, values.pop("gpus", None))]
    machine = {"--nnodes": "cluster.nodes", "--nproc-per-node": "cluster.gpus_per_node"}
    gpus = {flag: [str(known[path])] for flag, path in machine.items() if isinstance(known.get(path), int)}
    flags = {**below, **stated.flags, **gpus}
    read = read_megatron(" ".join(shlex.join([flag, *words]) for flag, words in flags.items()), name)
    result, first = dict(read.values), len(read.unread) - read.minor
    if below:
        own = {path: value for path, value in values.items() if path.startswith("model.")}
        said = {path: result[path] for flag, path in _OF_MODEL.items() if flag in stated.flags and path in result}
        result = {path: value for path, value in result.items() if not path.startswith("model")} | own | said
        result.setdefault("model.written", read.values["model.written"])
    result |= {path: value for path, value in values.items() if not path.startswith(("model.", *QUANTITIES))}
    result |= dict.fromkeys(stated.undecided, UNKNOWN)
    if len(gpus) < len(machine):
        result["parallel.data"] = result["cluster.nodes"] = UNKNOWN
        known |= {"parallel.data": UNKNOWN}
    return read._replace(
        values=result,
        assumed=(
            *stated.assumed,
            *_defaults(stated, known),
            *assumed,
            *(line for line in read.assumed if line.partition(":")[0] not in known),
        ),
        unread=(*stated.asked, *read.unread[:first], *stated.unread, *read.unread[first:], *stated.minor),
        minor=read.minor + len(stated.minor),
        idle=(*stated.idle, *read.idle),
        refused=read.refused if stated.is_line else (),
        read=tuple(stated.read),
    )


def _describe_another(flags: Mapping[str, Sequence[str]], options: Transformer) -> bool:
    """Whether flags describe a model, and not the one that is named."""
    sizes = {flag: [str(getattr(options, name))] for flag, name in _SIZES.items()}
    return _SIZES.keys() <= flags.keys() and sizes != {flag: [*flags[flag]] for flag in _SIZES}


def _per_node(known: dict[str, Any], gpus: int | None) -> Iterator[str]:
    """Fill in nodes of eight GPUs where nothing says how many they have; yields what is assumed."""
    if "cluster.gpus_per_node" not in known and (gpus or isinstance(known.get("cluster.nodes"), int)):
        known["cluster.gpus_per_node"] = min(PER_NODE, gpus or PER_NODE)
        yield f"cluster.gpus_per_node: {known['cluster.gpus_per_node']}: nothing says how many GPUs a node has"
    if gpus and "cluster.nodes" not in known:
        known["cluster.nodes"] = -(-gpus // known["cluster.gpus_per_node"])


def _stated(options: Transformer) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Section) else value for name, value in options}
