"""The log of a run as a scenario: what its settings say, and the means of what its steps print."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.cluster import gpus
from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.interchange.frameworks.scenario_file import Imported
from hybrid_des.interchange.jobs.mappings import flat_mapping
from hybrid_des.interchange.jobs.reading import read_settings
from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape
from hybrid_des.interchange.loops.log_lines import Line, lines_of
from hybrid_des.interchange.loops.nemo_rl import NEMO_RL
from hybrid_des.interchange.loops.settings import Setting, Settings, settings_in, without_program
from hybrid_des.interchange.loops.skyrl import SKYRL
from hybrid_des.interchange.loops.slime import SLIME
from hybrid_des.interchange.loops.spread import from_deviation, from_largest, from_share
from hybrid_des.interchange.loops.steps import Mean, Steps, split_whole, steady
from hybrid_des.interchange.loops.trl import TRL
from hybrid_des.interchange.loops.verl import VERL

FRAMEWORKS: Mapping[str, Framework] = {
    "verl": VERL, "nemo-rl": NEMO_RL, "slime": SLIME, "skyrl": SKYRL, "trl": TRL,
}  # fmt: skip
MOST_HEAD = 100_000  # lines before the first step in which settings are looked for
NEGLIGIBLE = 0.002  # of a step: rounding of its phases
SYNCS = 6  # weight syncs of the scenario: the first one or two are unlike the others
LEAST_AT_CAP = 3  # samples at the cap, over all steps, from which the spread is told: a factor of two is 5 % of sigma
_ORDER = (
    "samples", "updates", "take", "ahead", "barrier", "prompt", "response", "rollout", "sync", "trainer", "rest",
)  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8"}  # of engines
_DEVICE, _CAP, _PRECISION = "NVIDIA ", "rl.response.max", "rl.rollout.precision"
_SAMPLE = ("schedule.microbatch_size:", "model.sequence: every sample")  # said of jobs whose lengths are not known


class Measured(NamedTuple):
    """What a run took, to which the engine's share is set.

    Attributes:
        kind: "generation" of all samples between two syncs, or "cycle", from one sync to the next.
        seconds: on average.
        source: the numbers and lines that it comes from.
    """

    kind: str
    seconds: float
    source: str


class LoopRead(NamedTuple):
    """A log as a scenario's values, and what its engines took; None: the log does not say."""

    imported: Imported
    measured: Measured | None


class _Log(NamedTuple):
    """A log that was read.

    Attributes:
        steps: what it says of each.
        head: lines up to the second step that have no numbers of a step.
        last: the last line.
        marks: titles of frameworks that it may be of, each with the first line that says so.
        device: the GPU that it names, and the line.
    """

    steps: Steps
    head: list[Line]
    last: Line
    marks: dict[str, int]
    device: tuple[str, int] | None


def read_loop(
    files: Sequence[Path],
    name: str,
    fixed: Mapping[str, Any] | None = None,
    model: Imported | None = None,
) -> LoopRead:
    """A scenario with an `rl` section from the log of a run.

    Args:
        files: the log, then other files of the run that have settings, such as its script.
        name: of the framework, as in `FRAMEWORKS`.
        fixed: values by path that hold in any case.
        model: its values, from a config.json; without it, the log names it.

    Raises:
        UsageError: a file cannot be read, is another framework's, or has no whole step; the message names it.
    """
    framework, log = FRAMEWORKS[name], _read(files[0], FRAMEWORKS[name])
    label = str(files[0])
    other = [number for number, phase in framework.phases.items() if phase == of.OTHER]
    always = [name for name in (*framework.phases, *framework.lengths.values()) if name not in other]
    whole, cut = split_whole(log.steps.all, framework.needed, always)
    if not whole:
        raise UsageError(_without_steps(label, name, log, cut is not None))
    reading = Reading(label, framework, _settings(files, log), steady(whole, other))
    if cut is not None:
        reading.assumed.append(f"{label}:{cut.line}: cut in the middle of a step, which is left out")
    shape = _shape(reading)
    _lengths(reading, shape)
    measured = _times(reading, shape)
    if measured is not None:
        reading.sources.append(f"{measured.kind} {_seconds(measured.seconds)}: {measured.source}")
    return LoopRead(_imported(reading, shape, log, fixed or {}, model), measured)


def _read(file: Path, framework: Framework) -> _Log:
    """Read a log once, from top to bottom."""
    steps, head = Steps(framework.form), list[Line]()
    marks, unseen = dict[str, int](), [*FRAMEWORKS.values()]
    device: tuple[str, int] | None = None
    line = Line(0, "", "")
    for line in lines_of(file):
        if framework.title not in marks:
            marks |= {one.title: line.number for one in unseen if one.marks.search(line.text)}
            unseen = [one for one in unseen if one.title not in marks]
        if device is None and _DEVICE in line.text:
            named = gpus.named_in(line.text[line.text.index(_DEVICE) :][:60])
            device = None if named is None else (named, line.number)
        if not steps.add(line) and len(steps.all) < 2 and len(head) < MOST_HEAD:
            head.append(line)
    return _Log(steps, head, line, marks, device)


def _without_steps(label: str, name: str, log: _Log, cut: bool) -> str:
    """Why a log has no whole step."""
    title = FRAMEWORKS[name].title
    if title not in log.marks and log.marks:
        other, line = min(log.marks.items(), key=lambda item: item[1])
        option = next(key for key, framework in FRAMEWORKS.items() if framework.title == other)
        return f"{label}:{line}: the log of {other}, not of {title}; give it with --from-{option}"
    needed = " and ".join(one.replace("|", " or ") for one in FRAMEWORKS[name].needed)
    if log.steps.all and (cut or not log.last.whole):
        return f"{label}:{log.last.number}: cut before the first step was whole; expected {needed} of {title}"
    return f"{label}: no whole step of {title} in {log.last.number:,} lines; expected {needed}"


def _settings(files: Sequence[Path], log: _Log) -> Settings:
    """Settings of the log, over those of other files."""
    beside: Settings = {}
    for file in files[1:]:
        flat = flat_mapping(read_text(file, "settings of the run"), str(file))
        beside |= {key: Setting(value, 0) for key, value in flat.items()}
    return beside | settings_in(log.head)


def _shape(reading: Reading) -> Shape:
    """Put what settings say of the loop."""
    for path, keys in reading.framework.settings.items():
        if path not in (_CAP, _PRECISION):
            reading.copy(path, *keys)
    keys = reading.framework.settings.get(_PRECISION, ())
    precision = PRECISIONS.get(str(reading.value(*keys)))
    if precision is not None:
        reading.put(_PRECISION, precision, reading.where(*keys))
    if "rl.samples" not in reading.values:
        reading.ask("rl.samples", "the samples per prompt")
    shape = reading.framework.shape(reading)
    if shape.updates is None:
        reading.ask("rl.updates", "the optimizer steps between two weight syncs")
    return shape


def _lengths(reading: Reading, shape: Shape) -> None:
    """Put the lengths of responses and prompts."""
    mean, prompt = reading.length(of.MEAN), reading.length(of.PROMPT)
    reading.values["rl.response.kind"] = "lognormal"
    if mean is None:
        reading.ask("rl.response.mean", "the mean length of responses")
    else:
        reading.put("rl.response.mean", round(mean.value), str(mean), f"{mean.value:,.0f} tokens")
    if _CAP not in reading.values:
        _put_cap(reading)
    cap = reading.values[_CAP]
    _spread(reading, shape, mean, cap if isinstance(cap, int) else None)
    if prompt is not None:
        reading.put("rl.prompt", round(prompt.value), str(prompt), f"{prompt.value:,.0f} tokens")
    elif "rl.prompt" not in reading.values:
        reading.ask("rl.prompt", "the tokens of prompts")


def _put_cap(reading: Reading) -> None:
    """Put where responses are cut: the setting, else the longest one."""
    keys, largest = reading.framework.settings[_CAP], reading.length(of.LARGEST)
    cap = reading.whole(*keys)
    if cap is not None:
        reading.put(_CAP, cap, reading.where(reading.key(*keys)))
    elif largest is not None:
        having = [step for step in reading.steady.steps if step.has(largest.names)]
        longest = round(max(step.numbers[largest.names[0]].value for step in having))
        reading.put(_CAP, longest, f"the longest in the log: {largest.names[0]}", f"{longest:,} tokens")
    else:
        reading.ask(_CAP, "where responses are cut")


def _spread(reading: Reading, shape: Shape, mean: Mean | None, cap: int | None) -> None:
    """Put sigma, from whichever number says most of it."""
    if mean is not None:
        for sigma, source in _sigmas(reading, shape, mean, cap):
            if sigma is not None:
                reading.put("rl.response.sigma", round(sigma, 3), source)
                return
    reading.ask("rl.response.sigma", "how much lengths differ (1 is common for reasoning)")


def _sigmas(reading: Reading, shape: Shape, mean: Mean, cap: int | None) -> Iterator[tuple[float | None, str]]:
    """Sigma by each number that a log may have, the surest first, with where it comes from."""
    share, deviation, largest = (reading.length(what) for what in (of.SHARE, of.DEVIATION, of.LARGEST))
    batch, samples = reading.values.get("batch"), 0
    if isinstance(batch, int) and shape.updates:
        samples = batch * shape.updates
    if share is not None and cap and share.value * max(samples, 1) * share.steps >= (LEAST_AT_CAP if samples else 0):
        at_cap = f"the mean and {share.value:.2%} of responses at the cap of {cap:,}".replace("%", " %")
        yield from_share(mean.value, cap, share.value), f"from {at_cap}: {share}"
    if deviation is not None:
        sigma = from_deviation(mean.value, deviation.value, cap) if cap else from_deviation(mean.value, deviation.value)
        yield sigma, f"from the standard deviation of {deviation.value:,.0f} tokens: {deviation}"
    if largest is not None and samples and (not cap or largest.value < cap):
        text = f"from the mean and the longest of {samples:,} responses, {largest.value:,.0f} tokens: {largest}"
        yield from_largest(mean.value, largest.value, samples), text


def _make_room(reading: Reading) -> None:
    """Let a micro-batch hold the longest sample, which frameworks leave alone in it."""
    prompt, response, tokens = (reading.values.get(path) for path in ("rl.prompt", _CAP, "data.tokens"))
    if isinstance(tokens, int) and isinstance(prompt, int) and isinstance(response, int) and prompt + response > tokens:
        reading.values["data.tokens"] = prompt + response
        reading.assumed.append(f"data.tokens: {prompt + response}: the longest sample, above the {tokens} of the log")


def _times(reading: Reading, shape: Shape) -> Measured | None:
    """Put the trainer's time, the sync's and the rest, of a batch; what the engines took."""
    step, samples, engines = (reading.mean(phase) for phase in (of.STEP, of.SAMPLES, of.ENGINES))
    trainer, sync, switch = reading.mean(of.UPDATE, of.PASS), reading.mean(of.SYNC), reading.mean(of.SWITCH)
    inside = reading.framework.inside
    if inside and not shape.overlaps:
        samples, inside = engines, False
    if trainer is not None:
        reading.put("rl.trainer.time", _seconds(trainer.value / shape.logged), str(trainer))
    else:
        reading.assumed.append(f"rl.trainer: simulated: {reading.framework.title}'s log has no time of training")
    if switch is not None and not shape.apart:
        reading.put("rl.rollout.switch", _seconds(switch.value / len(switch.names)), f"each of {switch}")
    if sync is not None:
        reading.put("rl.sync.time", _seconds(sync.value), str(sync))
    else:
        reading.values["rl.sync.time"] = "0 s"
        reading.assumed.append("rl.sync.time: 0 s: no line of the log has it; it is in the time of another phase")
    every = reading.values.get("rl.sync.every", 1)
    if sync is not None:
        sync = sync._replace(value=sync.value / every)  # of a batch
    phases = [samples, trainer, *(() if inside else (sync, switch))]
    if trainer is not None and samples is not None:
        _rest(reading, shape, step, [mean for mean in phases if mean is not None])
    generation = samples if not shape.overlaps else engines if reading.values.get("rl.barrier") else None
    if generation is not None:
        return Measured("generation", generation.value / shape.logged, str(generation))
    return None if step is None else Measured("cycle", step.value / shape.logged * every, str(step))


def _rest(reading: Reading, shape: Shape, step: Mean | None, phases: Sequence[Mean]) -> None:
    """Put what is left of a step without its phases."""
    if step is None:
        reading.assumed.append("rl.rest: 0 s: no line of the log has the time of a whole step")
        return
    left = (step.value - sum(mean.value for mean in phases)) / shape.logged
    names = ", ".join(name for mean in phases for name in mean.names)
    if left < -NEGLIGIBLE * step.value:
        reading.assumed.append(f"rl.rest: 0 s: phases take longer than the step ({step.value:.4g} s): {names}")
    reading.put("rl.rest", _seconds(left), f"{step}, less {names}")


def _seconds(value: float) -> str:
    return f"{max(value, 0.0):.4g} s"


def _place(path: str) -> int:
    section, _, key = path.partition(".")
    return _ORDER.index(key.partition(".")[0]) if section == "rl" else len(_ORDER)


def _imported(reading: Reading, shape: Shape, log: _Log, fixed: Mapping[str, Any], model: Imported | None) -> Imported:
    """The trainer's values by its settings, and those of the loop above them."""
    framework, own = reading.framework, reading.framework.trainer
    flat = without_program(reading.settings)
    flat = {key: value for key, value in flat.items() if any(fnmatchcase(key, pattern) for pattern in own)}
    framework.change(reading, flat, shape)
    if log.device is not None and "cluster.gpu" not in fixed:
        reading.put("cluster.gpu", log.device[0], f"named in line {log.device[1]}")
    stated = {**fixed} if not shape.apart else {path: value for path, value in fixed.items() if path != "cluster.nodes"}
    trainer = read_settings(flat, framework.tool, reading.name, stated, model)
    values = {**trainer.values, **dict(sorted(reading.values.items(), key=lambda item: _place(item[0])))}
    if "data.packing" in reading.values:
        values.pop("schedule.microbatch_size", None)
    values.pop("schedule.microbatches", None)
    values["steps"] = SYNCS
    _make_room(reading)
    said = _SAMPLE if "data.packing" in reading.values else ()
    asked = [line for path, line in reading.asked.items() if path not in fixed]
    steps = f"{reading.name}: {reading.steady}"
    known = (*(f"{path}:" for path in reading.values), *said)
    kept = [line for line in trainer.assumed if not line.startswith(known)]
    return trainer._replace(
        values=values,
        assumed=(*reading.assumed, *kept),
        unread=(*asked, *trainer.unread),
        sources=(steps, *reading.sources),
    )
