"""Compare predictions with measured runs: a scenario whose sweep is a CSV file of rows.

    sweep: {file: rows.csv}

Columns are keys of the scenario, `measured.step_time_s`, `measured.peak_memory_bytes`, `split` and `release`; an empty
cell leaves the file's value. Every row is simulated; printed are the number of rows, the mean, median, 90 %, worst and
signed mean (bias) of the relative errors. --record adds them to the table behind the prediction intervals. --fit fits a
few parameters to the rows of --where and shows the errors of the others.
"""

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hybrid_des.analysis.experience_table import TABLE, known, written
from hybrid_des.analysis.pair_table import PAIRS, known_pairs
from hybrid_des.analysis.pair_table import written as written_pairs
from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.errors import UsageError, unknown
from hybrid_des.interface.cli.arguments import add_common, add_jobs
from hybrid_des.interface.cli.output import output_width, progress_bar, say, show_result, write_file
from hybrid_des.measured.validation.conditions import condition
from hybrid_des.measured.validation.corpus import (
    Prediction,
    check_corpus,
    errors_by_figure,
    errors_of,
    grouped,
    predict,
)
from hybrid_des.measured.validation.evidence import Evidence, evidence
from hybrid_des.measured.validation.fitting import fitted, starts, with_numbers
from hybrid_des.measured.validation.picture import picture
from hybrid_des.measured.validation.record import Corpus, MeasuredRun, pairs_of, runs_of
from hybrid_des.report.files.staging import write_whole
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.composition import nested, value_at
from hybrid_des.scenario.loading import read_scenario, scenario_of
from hybrid_des.scenario.strict_yaml import Document, KeyPath, dotted
from hybrid_des.studies.pool import cores, open_pool
from hybrid_des.studies.sweep.axes import FITTED, NOTED, STACK, Sweep, plain, sweep_of
from hybrid_des.studies.sweep.rows import table
from hybrid_des.studies.sweep.runner import sweep_rows, with_case
from hybrid_des.units import format_bytes, format_seconds

HEADS = ("", "n", "mean", "median", "90 %", "worst", "bias")
PACKAGE = TABLE.parents[1]
SECTIONS = (("efficiency",), ("overlap",))  # sections whose numbers a corpus states because they were fitted to it
WORDS = {"step_time_s": "step time", "collective_time_s": "time", "peak_memory_bytes": "peak memory"}


@dataclass(frozen=True)
class Validation:
    """The predictions of a corpus.

    Attributes:
        predictions: those of the rows whose errors are shown.
        before: the same with the numbers of the file, if some were fitted.
        used: those of the rows that were fitted.
        numbers: the fitted numbers.
        evidence: what they rest on.
        by: columns by whose values errors are shown.
    """

    predictions: Sequence[Prediction]
    before: Sequence[Prediction]
    used: Sequence[Prediction]
    numbers: Mapping[str, float]
    by: Sequence[str]
    evidence: Evidence | None = None

    @property
    def failed(self) -> list[Prediction]:
        """The rows that could not be predicted."""
        return [one for one in self.predictions if one.error]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the corpus, what to fit, and output options."""
    parser.add_argument("file", metavar="CORPUS", help="a scenario, such as scenarios/validation/zero_bubble.yaml")
    parser.add_argument("--rows", metavar="FILE", help="take the rows of this CSV file instead")
    parser.add_argument("--where", metavar="CONDITION", help="rows to predict, or to fit: 'split == \"fit\"'")
    parser.add_argument("--fit", metavar="KEYS", help="parameters to fit, such as efficiency.gemm,efficiency.memory")
    parser.add_argument("--record", action="store_true", help="add the errors to the package's tables")
    parser.add_argument("--by", metavar="COLUMN", action="append", default=[], help="errors for each value of a column")
    add_common(parser, out="also write the table, a picture and the fitted numbers to this folder")
    parser.add_argument("--json", action="store_true", help="print only the errors, as one JSON object")
    add_jobs(parser, ", at most one per row (default: one per core)")


def run(args: argparse.Namespace) -> int:
    """Predict every row, print the errors, and return 1 if no row could be predicted."""
    if args.record and (args.fit or args.where):
        raise UsageError("--record notes all rows of a corpus with its own numbers; leave out --fit and --where")
    sweep = _corpus(args)
    validation = _validated(args, sweep)
    if args.out is not None:
        _write(args.out, sweep, validation)
    if args.record:
        _note(args, sweep, validation)
    show_result(args, lambda: _summary(validation), lambda: _report(validation))
    if args.fit:
        _say_what_it_did(validation)
    if len(validation.failed) == len(validation.predictions):
        say(f"{args.file}: no row could be predicted; the first: {validation.failed[0].error}")
        return 1
    return 0


def _note(args: argparse.Namespace, sweep: Sweep, validation: Validation) -> None:
    """Replace the runs of this corpus in the package's table."""
    corpus, document = str(sweep.document.value["name"]), sweep.document
    block = read_scenario(args.file, args.set).value["sweep"]  # --rows replaces it
    stated = sum(map(partial(_is_fitted, document), document.places))
    block = block if isinstance(block, dict) else {}
    fitted, stack = block.get(FITTED, stated), block.get(STACK, "")
    rows = [
        MeasuredRun(
            scenario_of(with_case(document, one.case)), str(one.case.get("stack", stack)),
            str(one.case.get("release", "")), one.predicted["step_time_s"], one.measured["step_time_s"],
        )
        for one in validation.predictions
        if one.ratio("step_time_s") is not None
    ]  # fmt: skip
    noted = Corpus(corpus, fitted, date.today().isoformat(), _commit())
    known.cache_clear()  # another process may have noted a corpus meanwhile
    known_pairs.cache_clear()
    own = [] if block.get(NOTED) == "pairs" else runs_of(noted, rows)
    runs = [*(one for one in known() if one.corpus != corpus), *own]
    of_pairs = [] if block.get(NOTED) == "runs" else pairs_of(noted, rows)
    pairs = [*(one for one in known_pairs() if one.corpus != corpus), *of_pairs]
    write_file(TABLE, written(runs))
    write_file(PAIRS, written_pairs(pairs))
    known.cache_clear()
    known_pairs.cache_clear()
    of_corpus = [sum(one.corpus == corpus for one in table) for table in (runs, pairs)]
    say(
        f"{TABLE}: {len(runs)} runs, {of_corpus[0]} of {corpus}; {PAIRS.name}: {len(pairs)} pairs, {of_corpus[1]} of it"
    )


def _is_fitted(document: Document, path: KeyPath) -> bool:
    """Whether the corpus itself, not its base, states this number for its rows."""
    if path[:1] not in SECTIONS or len(path) != 2 or not document.places[path].startswith(f"{document.source}:"):
        return False
    value = value_at(document.value, dotted(path))
    return value is not None and not isinstance(value, bool)


def _commit() -> str:
    """The commit of the package's folder, with + if files of the package differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=PACKAGE, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    with suppress(OSError):
        changed = git("status", "--porcelain", "--", "*.py", "*.yaml")
        return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")
    return "unknown"


def _corpus(args: argparse.Namespace) -> Sweep:
    """The rows, checked."""
    document = read_scenario(args.file, args.set)
    if args.rows is not None:
        document.value["sweep"] = {"file": str(Path(args.rows).absolute())}
    if document.value.get("sweep") in (None, "none"):
        raise UsageError(f"{args.file}: expected rows of measured runs: sweep: {{file: rows.csv}}")
    sweep = sweep_of(document, args.imports)
    check_corpus(sweep)
    columns = _columns(sweep)
    for column in args.by:
        if column not in columns:
            raise UsageError(f"--by {unknown(column, columns)}")
    return sweep


def _columns(sweep: Sweep) -> list[str]:
    return list(dict.fromkeys(column for case in sweep.cases() for column in case))


def _validated(args: argparse.Namespace, sweep: Sweep) -> Validation:
    """Fit numbers to the chosen rows, and predict the others; without a fit, predict the chosen rows."""
    chosen = _chosen(sweep, args.where)
    jobs = min(args.jobs or cores(), len(sweep))
    with progress_bar(args.json) as progress, open_pool(jobs, imports=args.imports, progress=progress) as pool:
        run = partial(sweep_rows, pool=pool)
        if not args.fit:
            return Validation(predict(chosen, run), [], [], {}, args.by)
        start = starts(chosen, args.fit.split(","))
        numbers = fitted(start, lambda numbers: predict(with_numbers(chosen, numbers), run))
        if numbers == start:
            numbers = {}
        taken = list(chosen.cases())
        others = [case for case in sweep.cases() if case not in taken]
        kept = sweep.of_cases(others) if others else chosen
        before = predict(kept, run)
        predictions = predict(with_numbers(kept, numbers), run)
        used = predict(with_numbers(chosen, numbers), run) if others else []
        rests = evidence(numbers, lambda other: predict(with_numbers(chosen, other), run)) if numbers else None
    return Validation(predictions, before, used, numbers, args.by, rests)


def _chosen(sweep: Sweep, where: str | None) -> Sweep:
    """The rows that meet a condition."""
    if where is None:
        return sweep
    meets = condition(where, [*_columns(sweep), "split"])
    cases = [case for case in sweep.cases() if meets(plain(case))]
    if not cases:
        raise UsageError(f"--where {where}: no row meets this")
    return sweep.of_cases(cases)


def _say_what_it_did(validation: Validation) -> None:
    """Say where a fit found nothing better, or made the rows that it did not see worse."""
    if not validation.numbers:
        say("--fit: no numbers with a smaller mean error were found; those of the file stay")
        return
    each = [next(iter(errors_by_figure(rows).values()), None) for rows in (validation.before, validation.predictions)]
    first, then = (errors.mean_error_percent if errors else 0.0 for errors in each)
    if then > first:
        say(f"warning: --fit: the mean error of the other rows grew from {first:.1f} % to {then:.1f} %")
    for path in validation.evidence.weak if validation.evidence else ():
        say(f"warning: --fit: {path} rests on fewer than two rows; fit it to others too")


def _summary(validation: Validation) -> dict[str, Any]:
    def errors(rows: Sequence[Prediction]) -> dict[str, Any]:
        return {figure: one._asdict() for figure, one in errors_by_figure(rows).items()}

    by = {c: {v: errors(rows) for v, rows in grouped(validation.predictions, c).items()} for c in validation.by}
    return {
        **errors(validation.predictions),
        "fitted": dict(validation.numbers),
        **(_evidence(validation.evidence) if validation.evidence else {}),
        **({"fitted_on": errors(validation.used)} if validation.used else {}),
        **({"before_fit": errors(validation.before)} if validation.before else {}),
        **({"by": by} if by else {}),
        "rows": len(validation.predictions),
        "failed": [{"name": one.name, "error": one.error} for one in validation.failed],
    }


def _evidence(rests: Evidence) -> dict[str, Any]:
    left_out = {"left_out": errors_of(rests.left_out)._asdict()} if rests.left_out else {}
    return {"carried_by": dict(rests.carried), **left_out}


def _report(validation: Validation) -> str:
    parts = [_row_table(validation.predictions)]
    if validation.failed:
        lines = [f"failed  {one.name}: {one.error}" for one in validation.failed]
        parts.append("\n".join([*lines, f"{len(lines)} of {len(validation.predictions)} rows failed"]))
    name = "other rows" if validation.used else "all rows"
    groups = [(name, validation.predictions), (f"{name}, before", validation.before), ("rows fitted", validation.used)]
    groups += [
        (f"{c} {value}", rows) for c in validation.by for value, rows in grouped(validation.predictions, c).items()
    ]
    errors = []
    for name, rows in groups:
        for figure, (n, *amounts, bias) in errors_by_figure(rows).items():
            percent = [f"{amount:.1f} %" for amount in amounts]
            errors.append([f"{name}, {WORDS[figure]}", str(n), *percent, f"{bias:+.1f} %"])
    parts.append(text_table(HEADS, errors, width=output_width()))
    if validation.numbers:
        parts.append(f"fitted\n{_yaml(validation.numbers)}".rstrip())
    if validation.evidence:
        parts.append(_rests_on(validation.evidence))
    return "\n\n".join(parts)


def _rests_on(rests: Evidence) -> str:
    """How many rows carry each number, and the errors of rows left out of the fit."""
    lines = [f"{path} is carried by {count} of {rests.rows} rows" for path, count in rests.carried.items()]
    if rests.left_out:
        errors = errors_of(rests.left_out)
        mean, worst = errors.mean_error_percent, errors.worst_error_percent
        lines.append(f"each row left out of the fit: {mean:.1f} % mean, {worst:.1f} % worst")
    return "\n".join(lines)


def _row_table(predictions: Sequence[Prediction]) -> str:
    heads, lines = ["row"], [[one.name] for one in predictions]
    for figure, words in WORDS.items():
        if any(figure in one.measured for one in predictions):
            heads += [words, "measured", "error"]
            for prediction, line in zip(predictions, lines, strict=True):
                ratio = prediction.ratio(figure)
                line += [_shown(figure, prediction.predicted), _shown(figure, prediction.measured)]
                line.append("" if ratio is None else f"{100 * (ratio - 1):+.1f} %")
    return text_table(heads, lines, width=output_width())


def _shown(figure: str, of: Mapping[str, float]) -> str:
    if figure not in of:
        return ""
    return format_seconds(of[figure]) if figure.endswith("_s") else format_bytes(round(of[figure]))


def _yaml(numbers: Mapping[str, float]) -> str:
    return yaml.safe_dump(nested(numbers), sort_keys=False)


def _write(folder: Path, sweep: Sweep, validation: Validation) -> None:
    """Write `validation.csv`, `validation.png` and `fitted.yaml`."""
    rows = [*validation.used, *validation.predictions]

    def fill(staging: Path) -> None:
        write_csv(table([_record(one) for one in rows]), staging / "validation.csv")
        drawn = picture(str(sweep.document.value["name"]), rows, validation.by[0] if validation.by else None)
        drawn.savefig(staging / "validation.png", dpi=120, metadata={"Software": None})
        if validation.numbers:
            (staging / "fitted.yaml").write_text(_yaml(validation.numbers), encoding="utf-8")

    write_whole(folder, fill, replaces=["fitted.yaml"])


def _record(prediction: Prediction) -> dict[str, Any]:
    """A line of the table: the row's cells, the predictions and their errors in percent."""
    predicted = {f"predicted.{figure}": value for figure, value in prediction.predicted.items()}
    ratios = {figure: prediction.ratio(figure) for figure in prediction.predicted}
    errors = {f"error_percent.{figure}": 100 * (ratio - 1) for figure, ratio in ratios.items() if ratio is not None}
    cells = {key: str(value) if isinstance(value, list) else value for key, value in prediction.case.items()}
    return {**cells, **predicted, **errors, **({"error": prediction.error} if prediction.error else {})}
