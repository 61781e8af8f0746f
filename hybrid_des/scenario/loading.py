"""Load a `Scenario` from a file or mapping: read, override, validate, and report all problems together."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from hybrid_des.cluster.gpus import DEFAULT, part
from hybrid_des.errors import ScenarioError, UsageError, one_line
from hybrid_des.options import plain
from hybrid_des.scenario.composition import anchor_overrides, over_base, override, with_base
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.known_sections import KnownSections
from hybrid_des.scenario.overrides import Overrides, described
from hybrid_des.scenario.problem import Problem, paths_of, problems_in, sections_at, unknown_key
from hybrid_des.scenario.shipped import located
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted

# Placeholders for missing or invalid required values, so that the remaining checks can still run.
_STAND_IN: Mapping[tuple[str, str], object] = {
    ("schedule", "microbatches"): 1,
    ("workload", "forward"): 0,
    ("workload", "backward"): 0,
    ("faults", "horizon"): 1,
    **{("efficiency", key): 1 for key in ("gemm", "attention", "memory")},
}

PIPELINE = "parallel.pipeline"
REPLICAS, PARAMETERS = "parallel.data", "workload.parameters"
TIMES = ("workload.forward", "workload.backward")
SEVERAL = "holds several scenarios; hybrid-des FILE, explain, compare and spread take them, this takes one"
WITH = "with "  # before overrides, at the end of a description
LONGEST_DESCRIPTION = 200  # characters of a description that lists overrides


Source = str | Path | Mapping[str, object] | Scenario
"""A scenario, the path of its file, or a mapping with the content of one."""


def load(source: Source, overrides: Overrides = ()) -> Scenario:
    """Read a scenario from a file, or from a mapping with the content of one; a scenario is returned unchanged.

    Relative paths in a mapping, such as that of its `base`, are relative to the current folder. NumPy's scalars and
    arrays in it count as numbers and lists.

    Args:
        source: the file's path, the mapping, or a scenario to change.
        overrides: strings such as "parallel.pipeline=8", or a mapping such as {"parallel.pipeline": 8}.

    Raises:
        ScenarioError: one line per problem: file, line, path, what is wrong, what would be right.

    Example:
        >>> from hybrid_des import load
        >>> scenario = load("scenarios/a100_8x.yaml", {"schedule.kind": "gpipe", "parallel.data": 1})
        >>> scenario.schedule.kind, scenario.parallel.ranks
        ('gpipe', 4)
    """
    if isinstance(source, Scenario) and not overrides:
        return source
    return scenario_of(document_of(source, overrides))


def document_of(source: Source, overrides: Overrides = ()) -> Document:
    """A file as `read_scenario` reads it, or a mapping or scenario, with the overrides.

    Raises:
        ScenarioError: as `read_scenario`.
        UsageError: it is none of these.
    """
    if isinstance(source, str | Path):
        return read_scenario(source, overrides)
    values = to_mapping(source) if isinstance(source, Scenario) else source
    if not isinstance(values, Mapping):
        expected = "the path of a scenario file, a mapping with its content, or a Scenario"
        raise UsageError(f"found an object of type {type(source).__name__}; expected {expected}")
    document = over_base(Document(plain(values), "scenario"), Path())
    override(document, overrides)
    return document


def scenario_from(mapping: Mapping[str, object], source: str = "scenario") -> Scenario:
    """Make a scenario from plain values as in a file; numbers may also be `Fraction`.

    Raises:
        ScenarioError: one line per problem, starting with `source`.
    """
    return scenario_of(Document(plain(mapping), source))


def read_scenario(path: str | Path, overrides: Overrides = ()) -> Document:
    """Read a scenario file, merged with its `base` and the overrides, without validation.

    `hybrid_des.studies.sweep` expands a file with a `sweep` from this document.

    Raises:
        ScenarioError: the file cannot be read, is not strict YAML, or does not have a key to override.
    """
    document = with_base(path)
    override(document, overrides)
    anchor_overrides(document, located(path).parent)
    _describe_changes(document, overrides)
    return document


def _describe_changes(document: Document, overrides: Overrides) -> None:
    """Append the overrides to the description, which is that of the file; or make them the description."""
    text, changes = document.value.get("description", ""), described(overrides)
    changes = [one for one in changes if not one.startswith("name=")]  # which stands before the description
    if changes and isinstance(text, str) and not any(one.startswith("description=") for one in changes):
        without = f", without {', '.join(map(dotted, document.notices))}" if document.notices else ""
        start = f"{text}; {WITH}" if text else WITH
        document.value["description"] = one_line(f"{start}{', '.join(changes)}{without}", LONGEST_DESCRIPTION)


def titled(scenario: Scenario) -> str:
    """The name of a scenario with the overrides that its description ends in, for titles of figures."""
    *_, end = scenario.description.rpartition(f"; {WITH}")
    changes = end.removeprefix(WITH) if end != scenario.description or end.startswith(WITH) else ""
    return f"{scenario.name} {WITH}{changes}" if changes else scenario.name


def scenario_of(document: Document, known: KnownSections | None = None) -> Scenario:
    """Validate a document, but for sections that are known to be valid.

    Raises:
        ScenarioError: one line per problem.
    """
    values = copy.deepcopy(document.value)
    values.pop("search", None)  # a space of plans; the file itself is one of them
    many = [key for key in ("sweep", "plot") if values.pop(key, None) not in (None, "none")]
    problems = [Problem((key,), "expands to several scenarios; run it with hybrid_des.studies.sweep") for key in many]
    if values.pop("jobs", None) not in (None, "none"):
        raise document.error(("jobs",), SEVERAL)
    try:
        scenario = Scenario.model_validate(values) if known is None else known.scenario_of(values)
    except ValidationError as error:
        single = problems + [problem for problem in problems_in(error, Scenario) if not problem.needs]
        mended = _misfits(values, [problem.path for problem in single])
        problems = [_told(problem, values) for problem in _without_followers(single, values)] + mended
        raise ScenarioError(_lines(document, problems)) from None
    if problems:
        raise ScenarioError(_lines(document, problems))
    return scenario


def _lines(document: Document, problems: Sequence[Problem]) -> list[str]:
    """One line per problem, in file order."""
    order = {path: number for number, path in enumerate(document.places)}
    keys = list(dict.fromkeys((problem.path, problem.message) for problem in problems))

    def position(key: tuple[KeyPath, str]) -> int:
        return next((order[key[0][:n]] for n in range(len(key[0]), -1, -1) if key[0][:n] in order), 0)

    return [document.problem(path, message) for path, message in sorted(keys, key=position)]


def misnamed(path: str) -> str | None:
    """The problem with a path such as `schedule.knd`; None if scenarios have it."""
    at: KeyPath = ()
    for key in path.split("."):
        if not key.isdecimal():
            sections = list(sections_at(Scenario, at))
            if not sections:
                return f'{".".join(map(str, at))} has no keys such as "{key}"'
            known = {name for section in sections for name in section.known_keys()}
            if key not in known:
                return unknown_key(key, known, paths_of(key, Scenario))
        at = (*at, int(key) if key.isdecimal() else key)
    return None


def _misfits(values: dict[str, object], broken: Sequence[KeyPath]) -> list[Problem]:
    """Inconsistencies among the values that are valid by themselves."""
    mended = copy.deepcopy(values)
    for path in filter(None, broken):
        _mend(mended, path[:2])
    try:
        Scenario.model_validate(mended)
    except ValidationError as error:
        misfits = [problem for problem in problems_in(error, Scenario) if problem.needs]
        return [one for one in misfits if not any(_touch(need, path) for need in one.needs for path in broken)]
    return []


def _mend(values: dict[str, object], path: KeyPath) -> None:
    """Remove an invalid value, and insert placeholders for required ones."""
    section = values if len(path) == 1 else values.get(str(path[0]))
    if isinstance(section, dict):
        section.pop(str(path[-1]), None)
    elif isinstance(section, list):
        del values[str(path[0])]
    for (name, key), value in _STAND_IN.items():
        if (name, key)[: len(path)] == path:
            section = values.setdefault(name, {})
            if isinstance(section, dict):
                section[key] = value


def _without_followers(problems: Sequence[Problem], values: Mapping[str, object]) -> list[Problem]:
    """The problems without keys that are missing only because of another problem.

    The GPU and the precision have the defaults of efficiencies; a `model` excludes all of `workload`.
    """
    origins = [("cluster",), ("cluster", "gpu"), ("precision",)]
    following = {"efficiency"} if any(problem.path[:2] in origins for problem in problems) else set()
    following |= {"workload"} if values.get("model") not in (None, "none") else set()
    return [one for one in problems if one.message != "is required" or one.path[0] not in following]


def _told(problem: Problem, values: Mapping[str, object]) -> Problem:
    """A problem, with what a share is of which a GPU of one's own has no default."""
    cluster, key = values.get("cluster"), str(problem.path[-1])
    gpu = cluster.get("gpu") if isinstance(cluster, Mapping) else None
    usual = part(DEFAULT).efficiency["bf16"]
    if problem.message != "is required" or problem.path[:1] != ("efficiency",) or key not in usual:
        return problem
    if not isinstance(gpu, Mapping):
        return problem
    share = f"the share of its figures that runs reach, as {usual[key]} of {DEFAULT}"
    return problem._replace(message=f"is required for a GPU of one's own: {share}")


def _touch(a: KeyPath, b: KeyPath) -> bool:
    length = min(len(a), len(b))
    return a[:length] == b[:length]


def given_values(scenario: Scenario) -> dict[str, object]:
    """The fewest values that make an equal scenario: without defaults, and without what follows from other values.

    A file would hold these: the micro-batches of a `batch` or the links of a GPU are derived again if another value
    changes. The schedule is kept, which a scenario without a pipeline may omit and others need.
    """
    mapping = fewest(to_mapping(scenario))
    if scenario.schedule.kind is not None:
        kept = mapping.get("schedule")
        mapping["schedule"] = {"kind": scenario.schedule.kind, **(kept if isinstance(kept, dict) else {})}
    return mapping


def stated_of(source: Source, overrides: Overrides = ()) -> Document:
    """What is stated of a scenario: that of a file or mapping, or the fewest values that make it.

    Raises:
        ScenarioError: one line per problem.
    """
    if isinstance(source, Scenario):
        return Document(given_values(load(source, overrides)), source.name)
    return document_of(source, overrides)


def fewest(values: Mapping[str, object]) -> dict[str, object]:
    """The fewest of these values that make the same scenario.

    Raises:
        ScenarioError: they make none.
    """
    mapping: dict[str, object] = plain(values)
    _leave_out_derived(mapping, mapping, scenario_from(mapping))
    return mapping


def _leave_out_derived(values: dict[str, object], mapping: dict[str, object], scenario: Scenario) -> None:
    for key in list(values):
        value = values.pop(key)
        try:
            derived = scenario_from(mapping) == scenario
        except ScenarioError:
            derived = False
        if not derived:
            values[key] = value
            if isinstance(value, dict):
                _leave_out_derived(value, mapping, scenario)


def models_differ(path: str | Path, document: Document, overrides: Sequence[str]) -> str | None:
    """One line if a sweep or overrides compare models of different sizes; None if they do not.

    A workload that does not say `per` gives the numbers of one rank: twice as many ranks make twice the model. Lists
    with a number for each rank are refused elsewhere if their lengths do not fit.

    Args:
        path: the scenario's file.
        document: its content, with the overrides.
        overrides: strings such as "parallel.pipeline=8".
    """
    workload = document.value.get("workload")
    meant = not isinstance(workload, dict) or "per" in workload or isinstance(workload.get("forward"), list)
    if (
        meant
        or _touched(document, overrides, "workload.per", *TIMES)
        or not _varies(path, document, overrides, PIPELINE)
    ):
        return None
    return (
        f"{document.source}: {PIPELINE} changes the size of the model: the workload's numbers are for each rank; "
        "workload.per=model divides one model, workload.per=rank says that this is meant"
    )


def replicas_are_free(path: str | Path, document: Document, overrides: Sequence[str]) -> str | None:
    """One line if a sweep or overrides change the number of replicas of recorded ops, whose gradients are unknown."""
    workload = document.value.get("workload")
    if not isinstance(workload, dict) or "durations" not in workload or workload.keys() & {"parameters", "tensors"}:
        return None
    if _touched(document, overrides, PARAMETERS) or not _varies(path, document, overrides, REPLICAS):
        return None
    return f"{document.source}: {REPLICAS} reduces no gradients: recorded ops do not say how many; set {PARAMETERS}"


def _varies(path: str | Path, document: Document, overrides: Sequence[str], size: str) -> bool:
    """Whether a sweep or overrides compare several sizes of an axis of `parallel`, such as "parallel.data"."""
    values = next((item[size] for item in _axes(document) if size in item), None)
    if values is None and size in _replaced(overrides) and Path(path).is_file():  # what stdin held is gone
        values = [_size(document, size), _size(with_base(path), size)]
    return isinstance(values, list) and len(set(map(str, values))) > 1


def _touched(document: Document, overrides: Sequence[str], *keys: str) -> bool:
    return bool({*keys} & {*_replaced(overrides), *(path for item in _axes(document) for path in item)})


def _axes(document: Document) -> list[dict[str, object]]:
    axes = document.value.get("sweep")
    return [item for item in axes if isinstance(item, dict)] if isinstance(axes, list) else []


def _replaced(overrides: Sequence[str]) -> set[str]:
    return {text.partition("=")[0].strip() for text in overrides}


def _size(document: Document, size: str) -> object:
    parallel = document.value.get("parallel")
    return parallel.get(size.rpartition(".")[2], 1) if isinstance(parallel, dict) else 1
