"""What is wrong with the outcome of a call; complaints about the same fault read alike."""

import json
import re
import unicodedata
from collections.abc import Iterator

from system.fuzzing.worker import Case, Outcome

CODES = (0, 1, 2)
LINES = 3  # of one error
GRID = 39  # lines of a deadlock, or of an order that cannot be carried out, and of all errors of a file
LONGEST_LINE = 2000
PLACE = re.compile(r"\S+:\d+: |[^\s:]+\.(?:yaml|csv|txt|json)\b|--[a-z]|schedules |collective|sweep|<")
ORDER = re.compile(r"deadlock|rank \d+|circular|micro-batch \d+|stage \d+")
BUG = re.compile(r"\b((?:[A-Z]\w*(?:Error|Exception))|KeyboardInterrupt): ")
FRAME = re.compile(r'File "[^"]*/hybrid_des/([^"]+)", line \d+, in (\S+)')
WORK = re.compile(
    r"\b(steps|pipeline|data|microbatches|chunks|count|layers|width|batch|pieces|ranks|factor)\b\W{1,4}(\d[\d_]*)"
)
MUCH = 3_000
SMALL = re.compile(r"\bbucket\W{1,4}\d{1,4}\b(?! ?[kKMGT])")  # bytes: as many buckets as there are parameters
SIMULATING = (("simulation/run.py", "carry_out"), ("collectives/benchmark.py", "run_collective"))


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """Everything wrong, the worst first; empty if all is well."""
    if outcome.stopped or outcome.raised:
        return list(_failure(case, outcome))
    return [
        *_code(outcome),
        *_characters(outcome),
        *_errors(case, outcome),
        *_output(case, outcome),
        *_remains(outcome),
    ]


def _failure(case: Case, outcome: Outcome) -> Iterator[str]:
    if outcome.stopped in ("hang", "died"):
        yield outcome.stopped
        return
    frames = FRAME.findall(outcome.raised)
    place = f"{frames[-1][0]} {frames[-1][1]}" if frames else "nowhere"
    if outcome.stopped:
        simulating = any(frame in SIMULATING for frame in frames)
        if not (simulating and is_long(case)):
            yield f"slow: in {place}"
        return
    error = outcome.raised.strip().splitlines()[-1].partition(":")[0].rpartition(".")[2]
    yield f"traceback: {error} in {place}"


def is_long(case: Case) -> bool:
    """Whether a simulation may take long because it was asked for much."""
    asked = {}
    for text in [*case.files.values(), *case.argv, " ".join(case.argv)]:
        for key, digits in WORK.findall(text):
            asked[key] = max(asked.get(key, 1), min(int(digits.replace("_", "")[:9]), 10**6))
    product = 1
    for key, number in asked.items():
        product *= max(number, 1) ** (2 if key == "ranks" else 1)  # most collectives have messages like ranks²
    return product > MUCH or any(map(SMALL.search, [*case.files.values(), " ".join(case.argv)]))


def _code(outcome: Outcome) -> Iterator[str]:
    if outcome.code not in CODES:
        yield f"exit code {outcome.code}"
    elif outcome.code and not outcome.err.strip() and not outcome.out.strip():
        yield f"exit code {outcome.code} without a message"
    elif outcome.code == 2 and not outcome.err.strip():
        yield "exit code 2 without a message on stderr"


def _characters(outcome: Outcome) -> Iterator[str]:
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        found = sorted({f"U+{ord(c):04X}" for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"})
        if found:
            yield f"control character in {name}: {first_words(text)}"


def first_words(text: str) -> str:
    """The last words before the first control character, to tell faults apart."""
    at = next(i for i, c in enumerate(text) if unicodedata.category(c) == "Cc" and c not in "\n\t")
    return " ".join(re.findall(r"(?<![\w./-])[a-z]{3,}(?= )", text[text.rfind("\n", 0, at) + 1 : at])[-2:])


def _errors(case: Case, outcome: Outcome) -> Iterator[str]:
    lines = outcome.err.splitlines()
    warned = next((line for line in lines if re.search(r"\b\w+Warning: ", line)), None)
    if warned is not None:
        place = FRAME_OF_WARNING.search(warned)
        yield f"Python warning: {place[1] if place else ''} {warned.partition('Warning: ')[2][:40]}"
        return
    if "Traceback" in outcome.err or "Traceback" in outcome.out:
        yield "traceback in the output"
    if not outcome.code:
        return
    if any(len(line) > LONGEST_LINE for line in lines):
        yield f"an error of more than {LONGEST_LINE} characters in a line"
    if len(lines) > GRID:
        yield f"more than {GRID} lines of errors"
    elif max(_lengths(case, lines), default=0) > LINES and not ORDER.search(outcome.err):
        yield f"an error of more than {LINES} lines: {_gist(lines[0])}"


FRAME_OF_WARNING = re.compile(r"/(hybrid_des/[^:]+)")


def _lengths(case: Case, lines: list[str]) -> list[int]:
    """Lines of each error: a file's errors are listed together, each beginning with its place."""
    lengths: list[int] = []
    given = tuple(f"{one}:" for one in case.argv if one)
    for line in lines:
        if not lengths or PLACE.match(line) or line.startswith(given):
            lengths.append(0)
        lengths[-1] += 1
    return lengths


def _gist(line: str) -> str:
    return " ".join(re.findall(r"\b[a-z]{3,15}\b", re.sub(r"\"[^\"]*\"", "", line)[:200])[-6:])


def _output(case: Case, outcome: Outcome) -> Iterator[str]:
    bug = BUG.search(outcome.out + outcome.err)
    if bug and "--import" not in case.argv and not any(bug[1] in text for text in (*case.files.values(), *case.argv)):
        yield f"an exception as a message: {bug[1]}"
    if outcome.code == 0 and "--json" in case.argv and outcome.out:
        try:
            json.loads(outcome.out, parse_constant=_refuse)
        except ValueError as error:
            if not outcome.out.startswith(("usage", "hybrid-des ")):
                yield f"--json prints no JSON: {str(error)[:40]}"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} in JSON")


def _remains(outcome: Outcome) -> Iterator[str]:
    parts = [name for name in outcome.made if ".part" in name]
    if parts:
        yield "a temporary folder is left behind"
    elif outcome.code == 2 and outcome.made:
        yield "an error leaves files behind"
