"""A launch line: environment, program, flags; written as shell, read from a line or a script, and rules for both.

A script is read, not run: the flags are those of the command that it starts (`shell_script`). What a batch system sets
and reserves is that of the `#SBATCH` lines or of the manifest around it (`batch_job`).

A rule is one setting as flags, in both directions: it writes the flags of a scenario's values, which are a mapping from
paths such as "parallel.tensor" to plain values, and reads values from the flags of a launch line. Flags that state the
framework's own default are not written; where they are missing, that default is read.
"""

import difflib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line, unknown
from hybrid_des.interchange.frameworks.batch_job import SHORT, sbatch_job
from hybrid_des.interchange.frameworks.kubernetes import kubernetes_job
from hybrid_des.interchange.frameworks.shell_script import Script, Started, read_script

TYPING_ERROR = 0.85  # least similarity of a flag and one that is meant: a letter or two of ten
WIDTH = 102  # columns of a written line, with its continuation
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_LENT = re.compile(r"[\w.+-]{1,32}")  # a value that may state a size, a number or a choice
_SECRET = re.compile(r"(?i)key|token|secret|pass")
BARE = re.compile(r"\$(?:\{.+\}|\(.*\)|[A-Za-z_@*]\w*)", re.DOTALL)  # a variable or a command's output, nothing else
_BUNDLE = re.compile(r"(?i)arg|opt|extra|flag|param|@|\*")  # names of variables that hold flags, not a value


class Launch(NamedTuple):
    """A command that starts a framework.

    Attributes:
        unsaid: the parts of a scenario that it does not express.
        refused: flags that the framework does not accept together, each with what it expects.
    """

    environment: Mapping[str, str]
    program: str
    flags: Sequence[str]
    unsaid: Sequence[str]
    refused: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The command as shell, with a continuation at the end of each line but the last."""
        return self.within(WIDTH)

    def within(self, width: int) -> str:
        """The command as shell, in lines of at most `width` columns where its flags allow."""
        words = [*(f"{name}={value}" for name, value in self.environment.items()), self.program]
        lines = [" ".join(words)] if len(" ".join([*words, "\\"])) <= width else words
        begin = len(lines)
        for flag in self.flags:
            if len(lines) > begin and len(f"{lines[-1]} {flag} \\") <= width:
                lines[-1] += f" {flag}"
            else:
                lines.append(f"    {flag}")
        return " \\\n".join(lines)


def torchrun(ranks: int, per_node: int) -> str:
    """What starts a program on each of so many GPUs, on nodes that it fills."""
    used = min(per_node, ranks)
    return f"torchrun --nnodes {-(-ranks // used)} --nproc-per-node {used}"


class Read(NamedTuple):
    """What a line or script starts.

    Attributes:
        flags: with dashes in their names, each with the words that follow it; where one is repeated, the last counts.
        apart: the words of no flag: in front of the first, and after one that has its value, as --nnodes=2.
        program: the Python file or module that is started; empty if none is named.
        choices: the flags if a condition held that was not decided, each with the condition.
        notes: what was taken for given or left out, one line each.
        elsewhere: variables that get a value only under conditions, with these.
        variables: those of the script and of the command itself that have one word.
        documents: what the script writes to files, by their paths.
        borrowed: variables of the environment of this process that were asked for.
    """

    flags: dict[str, list[str]]
    apart: tuple[str, ...]
    program: str
    choices: tuple[tuple[str, dict[str, list[str]]], ...]
    notes: tuple[str, ...]
    elsewhere: Mapping[str, str]
    variables: Mapping[str, str]
    documents: Mapping[str, str]
    borrowed: Mapping[str, str]


def flags_in(text: str, name: str) -> dict[str, list[str]]:
    """The flags of a line or script, as in `Read`.

    Raises:
        UsageError: a quotation is not closed.
    """
    return launch_in(text, name).flags


def launch_in(
    text: str,
    name: str,
    known: Collection[str] | None = None,
    *,
    is_file: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Read:
    """What a line or script starts: of several commands, the last of those with the most flags that are known.

    Args:
        text: a line of flags, with or without the program, or a shell script.
        name: where it comes from, for errors.
        known: the flags of the framework; None: all are.
        is_file: whether `name` is a path, beside which sourced files are looked for.
        environment: variables that count where a script does not set them; paths and secrets among them do not.

    Raises:
        UsageError: a quotation is not closed, or no flag is known.
    """
    job = kubernetes_job(text, name) or sbatch_job(text)
    lent = {
        key: value for key, value in (environment or {}).items() if _LENT.fullmatch(value) and not _SECRET.search(key)
    }
    script = read_script(job.script, name, job.variables, is_file=is_file, environment=lent)
    around = job.options.items()
    directives = {f"--{option}": [script.variables.text(value)] if value else [] for option, value in around}
    counted = [(one, _known(flags_of(one.words), known)) for one in script.started]
    candidates = [one for one, count in counted if count and 2 * count >= max(count for _, count in counted)]
    chosen = next((one for one in reversed(candidates) if not one.condition), candidates[-1] if candidates else None)
    notes = [*job.notes, *_said(script, candidates, chosen)]
    words = chosen.words if chosen is not None else _unstarted(script, known)
    if known is not None and not _known(flags_of(words), known):
        raise UsageError(f"{name}: {_without(script)}")
    if chosen is None and not script.loose and known is not None:
        notes.append("nothing in it starts a program: the flags of its variables are read")
    flags = directives | flags_of(words)
    choices = [
        (choice.said, flags | flags_of(choice.words))
        for choice in script.choices
        if chosen is None or choice.variable in chosen.variables
    ]
    if chosen is not None and chosen.condition:  # so are all of them
        choices += [(one.condition, directives | flags_of(one.words)) for one in candidates if one is not chosen]
    own = chosen.environment if chosen is not None else {}
    variables = {key: value for key, value in script.variables.values.items() if isinstance(value, str)} | {**own}
    said = (*notes, *script.notes)
    left = script.elsewhere, variables, script.documents, script.variables.borrowed
    return Read(flags, tuple(_apart(words)), _program(words), tuple(choices), said, *left)


def read_words(words: Sequence[str], notes: Sequence[str], variables: Mapping[str, str]) -> Read:
    """What a command starts, all of whose words are known.

    Args:
        words: the command and its arguments.
        notes: what was left out before, as in `Read`.
        variables: those with which it is started.
    """
    return Read(flags_of(words), tuple(_apart(words)), _program(words), (), tuple(notes), {}, variables, {}, {})


def count_known(words: Sequence[str], known: Collection[str]) -> int:
    """The number of flags among words that a framework has."""
    return _known(flags_of(words), known)


def flags_of(words: Iterable[str]) -> dict[str, list[str]]:
    """The flags among words, each with the words that follow it."""
    flags: dict[str, list[str]] = {}
    values: list[str] = []
    short = False  # whether the word before is an option of srun that has a long name
    for word in words:
        match = _FLAG.fullmatch(word)
        if match is None:
            short = word[1:] in SHORT and word.startswith("-")
            values = flags.setdefault(f"--{SHORT[word[1:]]}", []) if short else values
            if not short:
                values.append(word)
            continue
        values = flags[f"--{match[1].replace('_', '-')}"] = []
        if match[2] is not None:
            values.append(match[2])
            values = []  # what follows is no value of it
    return flags


def _apart(words: Iterable[str]) -> Iterator[str]:
    """The words of no flag, as in `Read`."""
    stands_apart = True
    for word in words:
        if match := _FLAG.fullmatch(word):
            stands_apart = match[2] is not None
        elif stands_apart:
            yield word


def _program(words: Sequence[str]) -> str:
    """The Python file or module that is started, which a launcher of PyTorch is not."""
    modules = [word for before, word in itertools.pairwise(words) if before in ("-m", "--module")]
    named = [word for word in modules if not word.startswith(("torch.distributed", "accelerate"))]
    return next((word for word in reversed(words) if word.endswith(".py")), next(reversed(named), ""))


def _known(flags: Mapping[str, Sequence[str]], known: Collection[str] | None) -> int:
    return len(flags) if known is None else len(flags.keys() & {*known})


def _unstarted(script: Script, known: Collection[str] | None) -> tuple[str, ...]:
    """Flags that stand by themselves; else those of variables."""
    loose = tuple(word for _, words in script.loose for word in words)
    return loose if _known(flags_of(loose), known) else script.assigned


def _said(script: Script, candidates: Sequence[Started], chosen: Started | None) -> Iterator[str]:
    """What is left out of commands, and why."""
    if chosen is None:
        return
    lines = ", ".join(str(one.line) for one in candidates)
    if len({one.line for one in candidates}) > 1:
        yield f"lines {lines} start programs with such flags: line {chosen.line} is read"
    elif len({one.words for one in candidates}) > 1:  # in a function or a loop
        yield f"line {chosen.line} starts {len(candidates)} programs with such flags: the last is read"
    if chosen.condition:
        yield f"{chosen.condition}: not decided; line {chosen.line}, which it starts, is read"
    for line, words in script.loose:
        shown = one_line(" ".join(words), LONGEST_SHOWN)
        yield f"line {line}: {shown}: begins a command of its own, so that the shell does not pass it on"


def _without(script: Script) -> str:
    """What a text without a flag of the framework has instead."""
    started = [one for one in script.started if one.words]
    shown = one_line(" ".join(started[-1].words), LONGEST_SHOWN) if started else ""
    has = f"; line {started[-1].line} starts {shown}" if started else ""
    more = f"; {script.notes[0]}" if script.notes else ""
    return f"no flag of Megatron-LM's pretrain_gpt.py, such as --num-layers{has}{more}"


def is_off(words: Sequence[str]) -> bool:
    """Whether the words of a flag turn it off, as in `--sequence_parallel false` of programs around Megatron-LM."""
    return len(words) == 1 and words[0].lower() == "false"


Found = TypeVar("Found")


class Unreadable(UsageError):
    """The value of a flag that cannot be read."""

    def __init__(self, message: str, flag: str, why: str) -> None:
        super().__init__(message)
        self.flag, self.why = flag, why


class Given:
    """The flags of a launch line, of which those that were read are remembered.

    Attributes:
        aside: flags whose value cannot be read, each with the reason; they count as read, and as not given.
        unmodelled: flags without an equal here, each with what is wrong in the figures.
    """

    def __init__(
        self, flags: Mapping[str, Sequence[str]], name: str, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.flags = flags
        self._elsewhere = elsewhere or {}
        self._read: set[str] = set()
        self._valued: set[str] = set()  # of these, those that have a value
        self.aside: dict[str, str] = {}
        self.unmodelled: dict[str, str] = {}

    def __contains__(self, flag: str) -> bool:
        self._read.add(flag)
        return flag in self.flags and flag not in self.aside and not is_off(self.flags[flag])

    def tried(self, read: "Callable[[Given], Found]") -> "Found":
        """What a rule reads, without the flags whose values it cannot read; these are set aside."""
        while True:
            try:
                return read(self)
            except Unreadable as error:
                if error.flag not in self.flags or error.flag in self.aside:
                    raise
                self.aside[error.flag] = error.why

    @property
    def read(self) -> frozenset[str]:
        """The flags that were asked for, given or not."""
        return frozenset(self._read)

    def pass_over(self, *switches: str) -> None:
        """Count flags without a value as read: they change nothing here."""
        self._read |= {*switches}

    def words(self, flag: str) -> Sequence[str]:
        """The words that follow a flag."""
        self._valued.add(flag)
        return self.flags[flag] if flag in self else ()

    def text(self, flag: str) -> str | None:
        """The word that follows a flag; None without the flag.

        Raises:
            Unreadable: there is none, or it is a variable that the script does not set.
        """
        self._valued.add(flag)
        if flag not in self:
            return None
        word = next(iter(self.flags[flag]), "")
        if not word:
            raise self.error(flag, "has no value")
        if word.startswith("$"):
            shown = one_line(word, LONGEST_SHOWN)
            where = self._elsewhere.get(word.strip("${}"), "")
            only = f", but under {where}" if where else ""
            raise self.error(flag, f"{shown} has no value in the script{only}")
        return word

    def number(self, *flags: str, least: int = 1) -> int | None:
        """The whole number after the first of these flags that is given; None without any.

        Args:
            flags: with one meaning.
            least: the least number that they may have.

        Raises:
            Unreadable: it is no number, or a lower one.
        """
        given = [flag for flag in flags if flag in self]  # reads the others too, which say the same
        for flag in given[:1]:
            word = self.text(flag)
            if word is not None:
                if not re.fullmatch(r"[0-9]{1,15}", word) or int(word) < least:
                    raise self.error(flag, f'expected a whole number, found "{one_line(word, LONGEST_SHOWN)}"')
                return int(word)
        return None

    def error(self, flag: str, message: str) -> Unreadable:
        """An error at the value of a flag."""
        return Unreadable(f"{self.name}: {flag}: {message}", flag, message)

    @property
    def unread(self) -> list[str]:
        """The flags that nothing has read."""
        return [flag for flag in self.flags if flag not in self._read]

    def shown(self, flag: str) -> str:
        """A flag with its first word."""
        return one_line(" ".join([flag, *self.flags[flag][:1]]), LONGEST_SHOWN)

    def unset(self, switches: Collection[str]) -> list[str]:
        """Words beside the value of a flag that are variables without one: what they hold is missing.

        Args:
            switches: flags without a value, beside those that are read.
        """
        variables = []
        for flag, words in self.flags.items():
            bare = [(number, word) for number, word in enumerate(words) if BARE.fullmatch(word)]
            switch = flag in switches or (flag in self._read and flag not in self._valued)
            variables += [word for number, word in bare if number or switch or _bundles(word)]
        return [*dict.fromkeys(one_line(word, LONGEST_SHOWN) for word in variables)]

    def meant(self, flag: str) -> str:
        """A hint at the flag that may be meant by one that nothing has read; empty if none is similar."""
        near = difflib.get_close_matches(flag, self._read - self.flags.keys(), n=1, cutoff=TYPING_ERROR)
        return f"; did you mean {near[0]}?" if near else ""


def _bundles(word: str) -> bool:
    """Whether the name of a variable says that it holds flags."""
    return not word.startswith("$(") and _BUNDLE.search(word) is not None


Values = Mapping[str, Any]


class Rule(NamedTuple):
    """How a setting is written as flags, and how it is read from them."""

    write: Callable[[Values], Iterable[str]]
    read: Callable[[Given], Values]

    def when(self, holds: Callable[[Values], bool]) -> "Rule":
        """The same, written only where something holds."""
        return Rule(lambda values: self.write(values) if holds(values) else (), self.read)


def number(flag: str, path: str, default: int | None = None, *, least: int = 1) -> Rule:
    """A whole number after a flag."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        return () if value is None or value == default else (f"{flag} {value}",)

    def read(given: Given) -> Values:
        value = given.number(flag, least=least)
        return {path: default if value is None else value}

    return Rule(write, read)


def word(flag: str, path: str, words: Mapping[str, Any], default: Any) -> Rule:
    """A word after a flag; of several with one meaning, the first is written."""

    def write(values: Values) -> Iterable[str]:
        value = values.get(path)
        written = next((text for text, meaning in words.items() if meaning == value), None)
        return () if written is None or value == default else (f"{flag} {written}",)

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
