"""The report on a loop as text, at most one screen: the verdict, both sides' time by cause, ages, lengths, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybrid_des.report.text import folded, labelled
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import MeasuredTrainer, Rl
from hybrid_des.studies.rl.figures import BEFORE_SYNC, LoopFigures, Spread
from hybrid_des.studies.rl.loop import NOTES
from hybrid_des.studies.rl.whatifs import WhatIf
from hybrid_des.units import format_number, format_seconds, format_share

WIDTH, LABEL = 100, 11
MOST_SHOWN = 3  # what-ifs in a verdict
LEAST = 0.005  # of the cycle: a smaller gain is none
SHOWN = 0.0005  # of the time: a smaller part is not shown
SO_FAR = (
    "so far, changes to a run whose phases were measured were predicted within 7 % (11 % with its training time kept), "
    "changes to one of which only the step was known within 26 % up to 32B parameters and within 28 % from 235B on; "
    "runs predicted from their recipe alone were 4 to 58 % off, mostly too fast; "
    "what staleness does to learning is not predicted"
)
MISFIT = "OUT OF MEMORY: the training step does not fit (explain --memory says why)"
ENGINE_WORDS = {
    "decode": "decode",
    "prefill": "prefill",
    "allowance": "idle: allowance used up",
    "drained": "idle: drained",
    "waiting": "idle: waiting",
    "sync": "sync",
    "switching": "switching",
    "away": "away",
}
TRAINER_WORDS = {
    "passes": "forward passes",
    "train": "training",
    "first samples": "waits for first samples",
    "long tail": "waits for the long tail",
    "rest": "rest",
    "sync": "sync",
    BEFORE_SYNC: "waits for running samples",
    "lent": "lent",
    "switching": "switching",
}


def trainer_parts(figures: LoopFigures) -> dict[str, tuple[str, int]]:
    """What the trainer does: words and picoseconds by state, which sum to the time."""
    own = {"lent": "generation"} if figures.rl.colocated else {}
    return {state: (own.get(state, TRAINER_WORDS[state]), time) for state, time in figures.trainer.items()}


def engine_parts(figures: LoopFigures) -> dict[str, tuple[str, int]]:
    """What engines do: words and GPU-picoseconds by state, which sum to GPUs × time.

    Colocated engines are idle while others still generate, and while the trainer has the GPUs, which is no loss.
    """
    parts = {state: (ENGINE_WORDS[state], time) for state, time in figures.engines.items()}
    if figures.rl.colocated:
        idle = figures.engines["drained"] + figures.engines["allowance"]
        parts["away"] = ("the trainer's turn", idle - figures.tail)
        parts["drained"] = ("idle: others still generate", figures.tail)
        del parts["allowance"]
    return parts


def render(
    scenario: Scenario, figures: LoopFigures, tried: Sequence[WhatIf], width: int = WIDTH, ended: str = ""
) -> str:
    """The report, as wide as given, without a newline at its end."""
    rl = figures.rl
    title = f"{scenario.name}: {scenario.description}" if scenario.description else scenario.name
    blocks = [
        ("Verdict", [verdict_of(figures, tried)]),
        ("Setup", [_setup(figures)]),
        ("Cycle", [_cycle(figures)]),
        ("Trainer", [trainer_said(figures)]),
        ("Engines", [*engines_said(figures)]),
        ("Queue", [_queue_said(figures)]),
        ("Ages", [_ages(figures)]),
        ("Lengths", [_lengths(figures)]),
        ("Lost", [*_lost(figures)]),
        ("Basis", ["; ".join([_basis(rl), SO_FAR, *(note for note in figures.record.notes if note not in NOTES)])]),
    ]
    return "\n".join([*folded(title, width), *labelled(blocks, width, LABEL), *([ended] if ended else [])])


def verdict_of(figures: LoopFigures, tried: Sequence[WhatIf]) -> str:
    """What is lost, and what would help, in one sentence; every change was simulated with the same draws."""
    helping = [what_if for what_if in without_equals(tried) if what_if.gain > LEAST][:MOST_SHOWN]
    told = [told_what_if(figures, what_if) for what_if in helping]
    if tried and not told:
        others = ", ".join(f"{one.change.words}: {format_seconds(one.cycle)}" for one in tried[:MOST_SHOWN])
        none = (
            f"none of the {len(tried)} changes tried shortens"
            if len(tried) > 1
            else "the only change tried does not shorten"
        )
        told = [f"{none} it ({others})"]
    told += [told_what_if(figures, one) for one in tried if one.change.kind == "lend" and one not in helping]
    memory = [] if figures.record.trainer_fits else [MISFIT]
    return f"{'; '.join([*memory, _lost_time(figures), *told])}."


def without_equals(tried: Sequence[WhatIf]) -> list[WhatIf]:
    """One what-if of each kind: of those that gain about as much as the best, the one with the youngest samples."""
    kinds = {what_if.change.kind: [one for one in tried if one.change.kind == what_if.change.kind] for what_if in tried}
    best = []
    for several in kinds.values():
        most = max(one.gain for one in several)
        best.append(min((one for one in several if one.gain > most - LEAST), key=lambda what_if: what_if.age))
    return sorted(best, key=lambda what_if: what_if.cycle)


def _lost_time(figures: LoopFigures) -> str:
    """What the sides lose of a cycle."""
    cycle = format_seconds(figures.cycle)
    if figures.rl.colocated:
        tail = format_seconds(figures.idle * figures.cycle)
        turn = format_seconds(figures.generation)
        return f"Generation takes {turn} of {cycle}, in which a GPU idles {tail} while others still generate"
    idle = figures.idle * figures.cycle
    if figures.wait < SHOWN * figures.cycle:
        return f"The trainer does not wait, an engine idles {format_seconds(idle)} of {cycle}"
    return f"The trainer waits {format_seconds(figures.wait)} of {cycle}, an engine idles {format_seconds(idle)}"


def told_what_if(figures: LoopFigures, what_if: WhatIf) -> str:
    """A change with its cycle, and its mean age where that is another."""
    before = figures.ages.mean
    same = f"{what_if.age:.2f}" == f"{before:.2f}"
    older = "" if same else f", mean age {what_if.age:.2f} instead of {before:.2f}"
    return f"{what_if.change.words}: {format_seconds(what_if.cycle)}{older}"


def _setup(figures: LoopFigures) -> str:
    """Both sides and the allowance in a line."""
    rl, record = figures.rl, figures.record
    replicas = len(figures.own_replicas)
    sizes = sorted({*record.gpus_of_replicas[:replicas]})
    gpus = "1 GPU" if sizes == [1] else f"{' and '.join(map(str, sizes))} GPUs"
    of_gpus = f"{replicas:,} replica{'s' if replicas > 1 else ''} of {gpus}"
    sides = (
        f"{record.trainer_gpus:,} GPUs train and generate in turns, in {of_gpus}" if rl.colocated
        else f"{record.trainer_gpus:,} GPUs train, {figures.rollout_gpus:,} generate in {of_gpus}"
    )  # fmt: skip
    prompts = rl.updates * figures.batch // rl.samples
    barrier = ", with a barrier between batches" if rl.barrier else ""
    batch = f"batches of {prompts:,} prompts × {rl.samples} samples, {format_number(float(rl.ahead))} ahead{barrier}"
    return f"{sides}; {batch}"


def _cycle(figures: LoopFigures) -> str:
    count = figures.measured
    warm = f" after {figures.warm_up} of warm-up" if figures.warm_up else ""
    batches = f" of {figures.rl.sync.every} batches" if figures.rl.sync.every > 1 else ""
    mean = f"mean of {count} cycles{batches}{warm}" if count > 1 else f"one cycle{batches}{warm}"
    rate = f"{format_number(figures.samples_per_s)} samples/s, {format_number(figures.tokens_per_s)} tokens/s"
    per_gpu = format_number(figures.tokens_per_gpu_s)
    return f"{format_seconds(figures.cycle)} from sync to sync ({mean}): {rate}, {per_gpu} per GPU"


def trainer_said(figures: LoopFigures) -> str:
    """What the trainer does with a cycle."""
    return f"busy {format_share(figures.trainer_busy)}; {_parts(figures, dict(trainer_parts(figures).values()), 1)}"


def engines_said(figures: LoopFigures) -> Iterator[str]:
    """What the mean GPU of the engines does with a cycle; lent ones; what verl would show."""
    times = dict(engine_parts(figures).values())
    most = sorted({rollout.concurrency for rollout in figures.rl.rollout})
    full = f"{format_number(figures.sequences)} of {' or '.join(map(str, most))} sequences while decoding"
    yield f"busy {format_share(figures.rollout_busy)}; {_parts(figures, times, figures.rollout_gpus)}; {full}"
    lent = sum(figures.record.gpus_of_replicas[figures.own_replicas.stop :])
    if lent:
        times = {ENGINE_WORDS[state]: time for state, time in figures.lent.items()}
        yield f"{lent} lent GPUs: {_parts(figures, times, lent)}"
    if not figures.rl.colocated:
        shown = format_share(figures.idle_by_last_pause)
        yield f"idle {format_share(figures.idle)} without syncs; verl's rollouter/idle_ratio would show {shown}"


def _parts(figures: LoopFigures, times: Mapping[str, int], gpus: int) -> str:
    """Seconds per cycle and GPU by what they are spent on, the largest first."""
    whole = figures.time * gpus
    shown = sorted(((time, name) for name, time in times.items() if time > SHOWN * whole), reverse=True)
    return ", ".join(f"{name} {format_seconds(figures.per_cycle(time, gpus))}" for time, name in shown)


def _queue_said(figures: LoopFigures) -> str:
    groups, running = figures.queue
    return f"{groups:,.4g} groups on average, {running:,.0f} samples running"


def _ages(figures: LoopFigures) -> str:
    ages, spans = figures.ages, figures.spans
    if ages.largest == 0:
        return f"0: no trained sample was begun before the last sync; {_versions(spans)}"
    shares = ", ".join(
        f"{age}: {format_share(count / sum(ages.counts.values()), 0)}" for age, count in ages.counts.items()
    )
    return f"mean {ages.mean:.2f} syncs, 95 % up to {ages.p95}, largest {ages.largest} ({shares}); {_versions(spans)}"


def _versions(spans: Spread) -> str:
    if spans.largest <= 1:
        return "each response is of one version"
    return f"{spans.mean:.2f} versions per response, at most {spans.largest}"


def _lengths(figures: LoopFigures) -> str:
    """Responses as drawn, and the mean of those that were trained."""
    drawn, trained = figures.drawn, figures.trained_lengths
    cut = f", {format_share(drawn.at_cap)} at the cap" if drawn.at_cap > SHOWN else ""
    spread = f"median {drawn.median:,.0f}, 95 % up to {drawn.p95:,.0f}, longest {drawn.longest:,}{cut}"
    return f"mean {drawn.mean:,.0f} tokens, {spread}; of trained ones mean {trained.mean:,.0f}"


def _lost(figures: LoopFigures) -> Iterator[str]:
    """Tokens and samples that were in vain."""
    again, discarded = figures.tokens("recomputed"), figures.tokens("discarded")
    share = format_share(again / (figures.tokens("response") or 1))
    told = {
        f"{again:,} tokens computed again ({share} of those generated)": again,
        f"{discarded:,} tokens discarded": discarded,
        f"{figures.samples_with('dropped'):,} samples too old": figures.samples_with("dropped"),
        f"{figures.samples_with('filtered'):,} samples with equal rewards": figures.samples_with("filtered"),
    }
    yield ", ".join(text for text, amount in told.items() if amount) or "nothing"


def _basis(rl: Rl) -> str:
    """Where the trainer's time is from."""
    if isinstance(rl.trainer, MeasuredTrainer):
        return "the trainer's time is measured (rl.trainer)"
    every = "some of the trainer's steps are simulated, others interpolated" if rl.trainer == "sampled" else ""
    steps = every or "the trainer's steps are simulated, with the samples that leave the queue"
    return f"{steps}; in what-ifs, a step takes the time of the most similar one"
