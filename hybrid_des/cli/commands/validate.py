"""Compare predictions with measured runs: a scenario whose sweep is a CSV file of rows.

    sweep: {file: rows.csv}

Columns are keys of the scenario, `measured.step_time_s`, `measured.peak_memory_bytes` and `split`; an empty cell leaves
the file's value. Every row is simulated; printed are the number of rows, the mean, median, 90 %, worst and signed mean
(bias) of the relative errors. --fit finds a few numbers from the rows of --where and shows the errors of the others.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.cli.arguments import add_common, import_files, processes
from hybrid_des.cli.output import progress_bar, say, show, text_table
from hybrid_des.errors import UsageError, unknown

if TYPE_CHECKING:
    from hybrid_des.sweep import Sweep
    from hybrid_des.validation.corpus import Prediction, RunCases
    from hybrid_des.validation.statistics import Errors

HEADS = ("", "n", "mean", "median", "90 %", "worst", "bias")
WORDS = {"step_time_s": "step time", "peak_memory_bytes": "peak memory"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the corpus, what to fit, and output options."""
    parser.add_argument("file", metavar="CORPUS", help="such as scenarios/validation/zero_bubble.yaml")
    parser.add_argument("--rows", metavar="FILE", help="take the rows of this CSV file instead")
    parser.add_argument("--where", metavar="CONDITION", help="rows to predict, or to fit: 'split == \"fit\"'")
    parser.add_argument("--fit", metavar="KEYS", help="numbers to fit, such as efficiency.gemm,efficiency.memory")
    parser.add_argument("--by", metavar="COLUMN", action="append", default=[], help="errors for each value of a column")
    add_common(parser, out="also write the table, a picture and the fitted numbers to this folder")
    parser.add_argument("--json", action="store_true", help="print only the errors, as one JSON object")
    jobs = "local worker processes, at most one per row (default: one per core)"
    parser.add_argument("--jobs", metavar="N", type=processes, help=jobs)


def run(args: argparse.Namespace) -> int:
    """Predict every row, print the errors, and return 1 if no row could be predicted."""
    from hybrid_des.pool.local_workers import cores
    from hybrid_des.pool.pool import open_pool
    from hybrid_des.sweep import sweep_rows
    from hybrid_des.validation.corpus import predict

    import_files(args.imports)
    sweep = _corpus(args)
    chosen = _chosen(sweep, args.where)
    jobs = min(args.jobs or cores(), len(sweep))
    with progress_bar(args.json) as show_done, open_pool(jobs, imports=args.imports, progress=show_done) as pool:
        runs = partial(sweep_rows, pool=pool)
        numbers = _fit(chosen, args.fit.split(","), runs) if args.fit else {}
        kept = _others(sweep, chosen) if args.fit else chosen
        before = predict(kept, runs) if args.fit else []
        predictions = predict(_with(kept, numbers), runs)
        used = predict(_with(chosen, numbers), runs) if kept is not chosen else []
    if args.out is not None:
        _write(args.out, sweep, [*used, *predictions], numbers, args.by)
    if args.json:
        print(json.dumps(_summary(predictions, used, before, numbers, args.by), indent=2, allow_nan=False))
    else:
        show(_report(predictions, used, before, numbers, args.by))
    if args.fit:
        _say_what_it_did(numbers, before, predictions)
    if all(one.error for one in predictions):
        say(f"{args.file}: no row could be predicted; the first: {predictions[0].error}")
        return 1
    return 0


def _corpus(args: argparse.Namespace) -> "Sweep":
    """The rows, checked."""
    from hybrid_des.scenario import read_scenario
    from hybrid_des.sweep import sweep_of
    from hybrid_des.validation.corpus import check_corpus

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


def _columns(sweep: "Sweep") -> list[str]:
    return list(dict.fromkeys(column for case in sweep.cases() for column in case))


def _chosen(sweep: "Sweep", where: str | None) -> "Sweep":
    """The rows that meet a condition."""
    from hybrid_des.sweep.rows import plain
    from hybrid_des.validation.selection import condition

    if where is None:
        return sweep
    meets = condition(where, [*_columns(sweep), "split"])
    cases = [case for case in sweep.cases() if meets(plain(case))]
    if not cases:
        raise UsageError(f"--where {where}: no row meets this")
    return sweep.of_cases(cases)


def _others(sweep: "Sweep", chosen: "Sweep") -> "Sweep":
    """The rows that are not chosen; the chosen ones if there are no others."""
    taken = list(chosen.cases())
    others = [case for case in sweep.cases() if case not in taken]
    return sweep.of_cases(others) if others else chosen


def _with(sweep: "Sweep", numbers: Mapping[str, float]) -> "Sweep":
    from hybrid_des.validation.fitting import with_numbers

    return with_numbers(sweep, numbers) if numbers else sweep


def _fit(sweep: "Sweep", paths: Sequence[str], runs: "RunCases") -> dict[str, float]:
    from hybrid_des.validation.corpus import predict
    from hybrid_des.validation.fitting import fitted, starts

    start = starts(sweep, paths)
    numbers = fitted(start, lambda numbers: predict(_with(sweep, numbers), runs))
    return {} if numbers == start else numbers


def _say_what_it_did(
    numbers: Mapping[str, float], before: Sequence["Prediction"], after: Sequence["Prediction"]
) -> None:
    """Say where a fit found nothing better, or made the rows that it did not see worse."""
    from hybrid_des.validation.statistics import errors_by_figure

    if not numbers:
        say("--fit: no numbers with a smaller mean error were found; those of the file stay")
        return
    first, then = (
        errors["step_time_s"].mean_error_percent if "step_time_s" in (errors := errors_by_figure(rows)) else 0.0
        for rows in (before, after)
    )
    if then > first:
        say(f"warning: --fit: the mean error of the other rows grew from {first:.1f} % to {then:.1f} %")


def _summary(
    predictions: Sequence["Prediction"],
    used: Sequence["Prediction"],
    before: Sequence["Prediction"],
    numbers: Mapping[str, float],
    by: Sequence[str],
) -> dict[str, Any]:
    from hybrid_des.validation.statistics import errors_by_figure, grouped

    def errors(rows: Sequence["Prediction"]) -> dict[str, Any]:
        return {figure: one._asdict() for figure, one in errors_by_figure(rows).items()}

    return {
        **errors(predictions),
        "fitted": dict(numbers),
        **({"fitted_on": errors(used)} if used else {}),
        **({"before_fit": errors(before)} if before else {}),
        **({"by": {c: {v: errors(rows) for v, rows in grouped(predictions, c).items()} for c in by}} if by else {}),
        "rows": len(predictions),
        "failed": [{"name": one.name, "error": one.error} for one in predictions if one.error],
    }


def _report(
    predictions: Sequence["Prediction"],
    used: Sequence["Prediction"],
    before: Sequence["Prediction"],
    numbers: Mapping[str, float],
    by: Sequence[str],
) -> str:
    from hybrid_des.validation.statistics import grouped

    parts = [_row_table(predictions)]
    failed = [one for one in predictions if one.error]
    if failed:
        lines = [f"failed  {one.name}: {one.error}" for one in failed]
        parts.append("\n".join([*lines, f"{len(failed)} of {len(predictions)} rows failed"]))
    name = "other rows" if used else "all rows"
    groups = [(name, predictions), (f"{name}, before", before), ("rows fitted", used)]
    groups += [(f"{column} {value}", rows) for column in by for value, rows in grouped(predictions, column).items()]
    parts.append(text_table(HEADS, [line for name, rows in groups for line in _error_lines(name, rows)]))
    if numbers:
        parts.append(f"fitted\n{_yaml(numbers)}".rstrip())
    return "\n\n".join(parts)


def _row_table(predictions: Sequence["Prediction"]) -> str:
    heads, lines = ["row"], [[one.name] for one in predictions]
    for figure, words in WORDS.items():
        if any(figure in one.measured for one in predictions):
            heads += [words, "measured", "error"]
            for one, line in zip(predictions, lines, strict=True):
                line += [_shown(figure, one.predicted), _shown(figure, one.measured), _percent(one.ratio(figure))]
    return text_table(heads, lines)


def _shown(figure: str, of: Mapping[str, float]) -> str:
    from hybrid_des.units import format_bytes, format_seconds

    if figure not in of:
        return ""
    return format_seconds(of[figure]) if figure == "step_time_s" else format_bytes(round(of[figure]))


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _error_lines(name: str, rows: Sequence["Prediction"]) -> list[list[str]]:
    from hybrid_des.validation.statistics import errors_by_figure

    def line(figure: str, errors: "Errors") -> list[str]:
        n, *amounts, bias = errors
        return [f"{name}, {WORDS[figure]}", str(n), *(f"{amount:.1f} %" for amount in amounts), f"{bias:+.1f} %"]

    return [line(figure, errors) for figure, errors in errors_by_figure(rows).items()]


def _yaml(numbers: Mapping[str, float]) -> str:
    import yaml

    tree: dict[str, Any] = {}
    for path, number in numbers.items():
        *sections, key = path.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[key] = number
    return yaml.safe_dump(tree, sort_keys=False)


def _write(
    folder: Path, sweep: "Sweep", rows: Sequence["Prediction"], numbers: Mapping[str, float], by: Sequence[str]
) -> None:
    """Write `validation.csv`, `validation.png` and `fitted.yaml`."""
    from hybrid_des.analysis.spreadsheets import write_csv
    from hybrid_des.report.files import write_whole
    from hybrid_des.sweep import table
    from hybrid_des.validation.picture import picture

    def fill(workshop: Path) -> None:
        records = [_record(one) for one in rows]
        write_csv(table(records), workshop / "validation.csv")
        drawn = picture(str(sweep.document.value["name"]), rows, by[0] if by else None)
        drawn.savefig(workshop / "validation.png", dpi=120, metadata={"Software": None})
        if numbers:
            (workshop / "fitted.yaml").write_text(_yaml(numbers), encoding="utf-8")

    write_whole(folder, fill, replaces=["fitted.yaml"])


def _record(one: "Prediction") -> dict[str, Any]:
    """A line of the table: the row's cells, the predictions and their errors in percent."""
    predicted = {f"predicted.{figure}": value for figure, value in one.predicted.items()}
    ratios = {figure: one.ratio(figure) for figure in one.predicted}
    errors = {f"error_percent.{figure}": 100 * (ratio - 1) for figure, ratio in ratios.items() if ratio is not None}
    cells = {key: str(value) if isinstance(value, list) else value for key, value in one.case.items()}
    return {**cells, **predicted, **errors, **({"error": one.error} if one.error else {})}
