"""What a run printed of each step: numbers by name, each with its line, and their means over the steady steps."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from hybrid_des.interchange.loops.log_lines import Line

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_AFTER_COLON = re.compile(rf"([\w/.@-]+):(?:np\.\w+\()?({_NUMBER})\)?(?= - |\s*$)")
_IN_MAPPING = re.compile(rf"'([^']+)': (?:np\.\w+\()?'?({_NUMBER})'?\)?(?=[,}}\s])")
_BULLET = re.compile(rf"^\s*[•*-] ([\w/ ()]+?): ({_NUMBER})(s\b|\b)")
_FINISHED = re.compile(rf"Finished: '(\w+)', time cost: ({_NUMBER})s")


class Number(NamedTuple):
    """A number of a step, and its line."""

    value: float
    line: int


class Step(NamedTuple):
    """The numbers of a step, by name, and its first line."""

    line: int
    numbers: dict[str, Number]

    def has(self, names: Iterable[str]) -> bool:
        """Whether one of these is there."""
        return any(name in self.numbers for name in names)


class Form(NamedTuple):
    """How a framework prints the numbers of a step.

    Attributes:
        pairs: names and values in a line.
        label: what has the number of a step; lines of one number are one step, and others have no numbers.
        begins: what begins a step, where lines have no number; lines up to the next are of that step.
        alone: whether only the line that begins a step has its numbers.
    """

    pairs: Callable[[str], Iterator[tuple[str, float]]]
    label: re.Pattern[str] | None = None
    begins: re.Pattern[str] | None = None
    alone: bool = False


def after_colons(text: str) -> Iterator[tuple[str, float]]:
    """`step:12 - timing_s/gen:74.020 - response_length/mean:324.958`."""
    return ((match[1], float(match[2])) for match in _AFTER_COLON.finditer(text))


def in_mapping(text: str) -> Iterator[tuple[str, float]]:
    """`perf 3: {'perf/rollout_time': 371.1, 'rollout/truncated_ratio': 0.46}`; nothing if it is not closed."""
    if "{" in text and not text.rstrip().endswith(("}", "}.")) and "}" not in text[text.index("{") :]:
        return
    yield from ((match[1], float(match[2])) for match in _IN_MAPPING.finditer(text))


def bullets(text: str) -> Iterator[tuple[str, float]]:
    """`  • policy_training: 25.05s (37.6%)`."""
    return ((match[1].strip(), float(match[2])) for match in _BULLET.finditer(text))


def finished(text: str) -> Iterator[tuple[str, float]]:
    """`Finished: 'generate', time cost: 48.80s`, and a line of a mapping that is printed over several."""
    yield from ((match[1], float(match[2])) for match in _FINISHED.finditer(text))
    yield from ((match[1].removeprefix("timing/"), float(match[2])) for match in _IN_MAPPING.finditer(f"{text} "))


class Steps:
    """The steps of a log, collected line by line."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._step: Step | None = None
        self._by_label: dict[str, Step] = {}
        self.all: list[Step] = []

    def add(self, line: Line) -> bool:
        """Take what a line says of a step; whether it says anything."""
        step = self._step_of(line)
        if step is None:
            return False
        pairs = [*self._form.pairs(line.text)]
        for name, value in pairs if line.whole else pairs[:-1]:  # the last number of a line that was cut may be, too
            step.numbers[name] = Number(value, line.number)
        return bool(pairs)

    def _step_of(self, line: Line) -> Step | None:
        form = self._form
        if form.label is not None:
            label = form.label.search(line.text)
            if label is None:
                return None
            if label[1] not in self._by_label:
                self._by_label[label[1]] = self._begin(line)
            return self._by_label[label[1]]
        if form.begins is not None and form.begins.search(line.text):
            self._step = self._begin(line)
            return self._step
        return None if form.alone else self._step

    def _begin(self, line: Line) -> Step:
        step = Step(line.number, {})
        self.all.append(step)
        return step


class Mean(NamedTuple):
    """The mean of numbers of steps.

    Attributes:
        names: those of which it is the sum.
        value: the mean.
        first, last: lines between which they stand.
        steps: how many.
    """

    names: tuple[str, ...]
    value: float
    first: int
    last: int
    steps: int

    def __str__(self) -> str:
        lines = f"lines {self.first} to {self.last}" if self.last > self.first else f"line {self.first}"
        many = f"mean of {self.steps} steps" if self.steps > 1 else "one step"
        return f"{' + '.join(self.names)}, {lines}, {many}"


def mean_of(steps: Sequence[Step], names: Sequence[str]) -> Mean | None:
    """The mean over the steps that have one of some numbers, of their sum; None if no step has one."""
    having = [step for step in steps if step.has(names)]
    if not having:
        return None
    numbers = [[step.numbers[name] for name in names if name in step.numbers] for step in having]
    lines = [number.line for own in numbers for number in own]
    present = tuple(name for name in names if any(name in step.numbers for step in having))
    total = fmean(sum(number.value for number in own) for own in numbers)
    return Mean(present, total, min(lines), max(lines), len(having))


class Steady(NamedTuple):
    """The steps that means are taken over.

    Attributes:
        steps: those.
        first: how many at the start were left out.
        others: how many were left out for a validation or a checkpoint.
    """

    steps: list[Step]
    first: int
    others: int

    def __str__(self) -> str:
        left = [f"the first {self.first}" if self.first > 1 else "the first one"] if self.first else []
        left += [f"{self.others} with a validation or a checkpoint"] if self.others else []
        many = f"means of {len(self.steps)} steps" if len(self.steps) > 1 else "one step"
        return f"{many}; left out: {' and '.join(left) or 'none'}"


def steady(steps: Sequence[Step], other: Iterable[str]) -> Steady:
    """Steps without the first, which warms up, and without those that did something else, if any is left then.

    Args:
        steps: whole ones.
        other: names of times for validations and checkpoints.
    """
    first = 1 if len(steps) > 1 else 0
    rest, names = [*steps[first:]], [*other]
    plain = [step for step in rest if not step.has(names)]
    return Steady(plain or rest, first, len(rest) - len(plain) if plain else 0)


def split_whole(steps: Sequence[Step], needed: Sequence[str], names: Sequence[str]) -> tuple[list[Step], Step | None]:
    """The steps that have all they need, and the last one if it was cut: it lacks what the one before it has.

    Args:
        steps: all that a log begins.
        needed: numbers that a step has, alternatives with a bar between them.
        names: numbers that every step has, if one has them.
    """
    whole = [step for step in steps if all(step.has(one.split("|")) for one in needed)]
    last = steps[-1] if steps else None
    if last is None:
        return whole, None
    if not whole or last is not whole[-1]:
        return whole, last if last.has(names) or not last.numbers else None
    if len(whole) > 1 and not {*whole[-2].numbers} & {*names} <= last.numbers.keys():
        return whole[:-1], last
    return whole, None
