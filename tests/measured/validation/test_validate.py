"""The command `validate`: errors of predictions, groups, conditions, fits and what it writes."""

import csv
import itertools
import json
from functools import partial

import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.tables import from_table

from hybrid_des.analysis import experience_table, pair_table
from hybrid_des.analysis.experience_table import COLUMNS, known, read
from hybrid_des.analysis.pair_table import Pair, known_pairs
from hybrid_des.analysis.pair_table import read as read_pairs
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.commands import validate as validating
from hybrid_des.measured.validation.conditions import condition
from hybrid_des.measured.validation.corpus import Prediction, errors_of
from hybrid_des.measured.validation.evidence import evidence
from hybrid_des.measured.validation.fitting import fitted
from hybrid_des.measured.validation.picture import picture

CORPUS = "schedule: {kind: 1f1b, microbatches: 4}\nworkload: {forward: 1 s, backward: 2 s}\nsweep: {file: rows.csv}\n"
ROWS = """\
name,parallel.data,workload.forward,measured.step_time_s,measured.peak_memory_bytes,split
exact,1,1 s,12,,fit
slow,2,2 s,20,,fit
odd,1,4 s,20,,kept
"""


@pytest.fixture
def validate(run):
    return partial(run, "validate", "--jobs", 1)


@pytest.fixture
def corpus(write):
    write(ROWS, "rows.csv")
    return write(CORPUS, "corpus.yaml")


def test_errors_are_relative_to_the_measurement():
    errors = errors_of([1.1, 0.8, 1.0, 1.4])
    assert errors.n == 4
    assert errors.mean_error_percent == pytest.approx((10 + 20 + 0 + 40) / 4)
    assert errors.median_error_percent == pytest.approx(15)
    assert errors.p90_error_percent == pytest.approx(20 + 0.7 * 20)
    assert errors.worst_error_percent == pytest.approx(40)
    assert errors.bias_percent == pytest.approx((10 - 20 + 0 + 40) / 4)


def test_json_holds_the_errors_of_every_figure(validate, corpus):
    code, out, err = validate(corpus, "--json")
    found = json.loads(out)
    assert (code, err, found["rows"], found["failed"], found["fitted"]) == (0, [], 3, [], {})
    assert set(found) == {"step_time_s", "fitted", "rows", "failed"}
    names = ["n", *(f"{name}_error_percent" for name in ("mean", "median", "p90", "worst")), "bias_percent"]
    assert list(found["step_time_s"]) == names
    assert found["step_time_s"]["worst_error_percent"] == pytest.approx(20)
    assert found["step_time_s"]["bias_percent"] == pytest.approx((0 - 20 + 20) / 3)


def test_errors_are_shown_by_any_column(validate, corpus):
    out = validate(corpus, "--by", "parallel.data", "--by", "split")[1]
    assert "parallel.data 2, step time  1  20.0 %" in out
    assert "split fit, step time        2  10.0 %" in out
    by = json.loads(validate(corpus, "--by", "split", "--json")[1])["by"]["split"]
    assert by["kept"]["step_time_s"]["n"] == 1


def test_memory_is_compared_with_the_fullest_rank(validate, write):
    write("workload.parameters,measured.peak_memory_bytes\n1000,16000\n2000,40000\n", "rows.csv")
    found = json.loads(validate(write(CORPUS), "--json")[1])
    assert "step_time_s" not in found
    assert found["peak_memory_bytes"]["worst_error_percent"] == pytest.approx(20)


def test_a_row_that_fails_is_reported_and_counted(validate, write):
    write("schedule.kind,parallel.pipeline,measured.step_time_s\ndualpipe,3,1\n1f1b,1,12\n", "rows.csv")
    code, out, err = validate(write(CORPUS))
    assert (code, err) == (0, [])
    assert "failed  schedule.kind dualpipe, parallel.pipeline 3: dualpipe pairs" in out
    assert "1 of 2 rows failed" in out
    found = json.loads(validate(write(CORPUS), "--json")[1])
    assert (found["rows"], found["step_time_s"]["n"], len(found["failed"])) == (2, 1, 1)


def test_it_fails_where_no_row_can_be_predicted(validate, write):
    write("schedule.kind,parallel.pipeline,measured.step_time_s\ndualpipe,3,1\n", "rows.csv")
    code, out, err = validate(write(CORPUS), "--json")
    assert (code, json.loads(out)["failed"][0]["error"] in err[0]) == (1, True)


def test_other_rows_may_be_given(validate, write, corpus):
    other = write("name,measured.step_time_s\nmine,24\n", "other.csv")
    assert json.loads(validate(corpus, "--rows", other, "--json")[1])["step_time_s"]["bias_percent"] == -50


def test_a_fit_shows_the_errors_of_other_rows(validate, write, tmp_path):
    rows = "".join(f"{m},{3 * m * 1.5},fit\n" for m in (2, 4, 8)) + "3,18,kept\n"
    write(f"schedule.microbatches,measured.step_time_s,split\n{rows}", "rows.csv")
    file = write(
        "schedule: {kind: 1f1b, microbatches: 4}\nworkload: {forward: 1, backward: 0}\nsweep: {file: rows.csv}\n"
    )
    options = ("--fit", "workload.forward", "--where", 'split == "fit"', "--out", tmp_path / "o")
    found = json.loads(validate(file, *options, "--json")[1])
    assert found["fitted"] == {"workload.forward": pytest.approx(4.5, rel=1e-3)}
    assert found["fitted_on"]["step_time_s"]["n"] == 3
    assert found["fitted_on"]["step_time_s"]["worst_error_percent"] < 0.1
    assert found["step_time_s"]["n"] == 1
    assert found["step_time_s"]["bias_percent"] == pytest.approx(-25, abs=0.1)
    assert yaml.safe_load((tmp_path / "o" / "fitted.yaml").read_text()) == {
        "workload": {"forward": found["fitted"]["workload.forward"]}
    }


def linear(amounts, measured):
    """Step times that are sums of amounts times numbers, row by row."""

    def predictions(numbers):
        each = [sum(amount * numbers[name] for name, amount in row.items()) for row in amounts]
        return [Prediction({}, {"step_time_s": y}, {"step_time_s": x}) for x, y in zip(each, measured, strict=True)]

    return predictions


def test_rows_that_follow_a_number_carry_it():
    rows = [{"x": 1.0}, {"x": 1.0, "y": 0.01}, {"y": 1.0}, {"x": 0.2, "y": 1.0}]
    found = evidence({"x": 1.0, "y": 1.0}, linear(rows, [1.0, 1.01, 1.0, 1.2]))
    assert (found.rows, found.carried, found.weak) == (4, {"x": 3, "y": 2}, [])
    assert found.left_out == pytest.approx([1.0] * 4)
    assert evidence({"x": 1.0, "y": 1.0}, linear(rows[:3], [1.0, 1.01, 1.0])).weak == ["y"]


def test_a_row_left_out_is_predicted_by_the_others():
    """The median of the others' ratios, since a fit minimizes absolute errors."""
    found = evidence({"x": 1.0}, linear([{"x": 1.0}] * 5, [0.8, 0.9, 1.0, 1.05, 1.1]))
    refitted = [fitted({"x": 1.0}, linear([{"x": 1.0}] * 4, [y for y in (0.8, 0.9, 1.0, 1.05, 1.1) if y != left]))["x"]
                for left in (0.8, 1.1)]  # fmt: skip
    assert 0.9 <= refitted[1] <= 1.0 <= refitted[0] <= 1.05
    assert found.left_out[0] == pytest.approx(refitted[0] / 0.8, rel=0.03)
    assert found.left_out[4] == pytest.approx(refitted[1] / 1.1, rel=0.06)


def test_a_fit_says_what_it_rests_on(validate, write):
    rows = "".join(f"{m},{forward},{3 * m * 1.5}\n" for m, forward in ((2, ""), (4, ""), (8, 1)))
    write(f"schedule.microbatches,workload.forward,measured.step_time_s\n{rows}", "rows.csv")
    file = write(HELD_OUT.replace("workload: {forward: 1, ", "workload: {forward: 1, optimizer: 1, "))
    code, out, err = validate(file, "--fit", "workload.optimizer")
    assert code == 0
    assert "workload.optimizer is carried by 3 of 3 rows" in out
    assert "each row left out of the fit: " in out
    found = json.loads(validate(file, "--fit", "workload.optimizer", "--json")[1])
    assert (found["carried_by"], found["left_out"]["n"]) == ({"workload.optimizer": 3}, 3)
    code, _, err = validate(file, "--fit", "workload.optimizer", "--where", "schedule.microbatches == 4")
    assert (code, err[-1]) == (
        0,
        "warning: --fit: workload.optimizer rests on fewer than two rows; fit it to others too",
    )


def test_a_fit_is_not_swayed_by_one_odd_row():
    def predictions(numbers):
        measured = [2.0, 4.0, 6.0, 8.0, 30.0]
        return [
            Prediction({}, {"step_time_s": y}, {"step_time_s": (i + 1) * numbers["x"]}) for i, y in enumerate(measured)
        ]

    assert fitted({"x": 1.0}, predictions)["x"] == pytest.approx(2, rel=0.01)


def test_a_fit_avoids_numbers_for_which_rows_fail():
    def predictions(numbers):
        found = {} if numbers["x"] > 1.2 else {"step_time_s": numbers["x"]}
        return [Prediction({}, {"step_time_s": 3.0}, found)]

    assert 1 < fitted({"x": 1.0}, predictions)["x"] <= 1.2


def test_a_fit_leaves_out_a_row_that_fails():
    def predictions(numbers):
        return [Prediction({}, {"step_time_s": 3.0}, {"step_time_s": numbers["x"]}), Prediction({}, {}, {}, "a reason")]

    assert fitted({"x": 1.0}, predictions)["x"] == pytest.approx(3, rel=0.01)


def test_a_fit_keeps_shares_at_most_one():
    def predictions(numbers):
        assert numbers["efficiency.gemm"] <= 1
        return [Prediction({}, {"step_time_s": 3.0}, {"step_time_s": numbers["efficiency.gemm"]})]

    assert fitted({"efficiency.gemm": 0.9}, predictions) == {"efficiency.gemm": 1.0}


@pytest.mark.parametrize("ratios", [(0.7, 0.7, 0.7, 1, 1.9), (0.5, 0.9, 1.9), (0.999999, 1.000001), (1,)])
def test_a_fit_never_ends_worse_than_it_began(ratios):
    def predictions(numbers):
        return [Prediction({}, {"step_time_s": 1.0}, {"step_time_s": ratio * numbers["x"]}) for ratio in ratios]

    def error(numbers):
        return errors_of([p.ratio("step_time_s") for p in predictions(numbers)]).mean_error_percent

    start = {"x": 1.0}
    found = fitted(start, predictions)
    assert found == start or error(found) < error(start)


HELD_OUT = "sweep: {file: rows.csv}\nschedule: {kind: 1f1b, microbatches: 2}\nworkload: {forward: 1, backward: 0}\n"


def test_a_fit_that_worsens_other_rows_says_so(validate, write):
    write("schedule.microbatches,measured.step_time_s,split\n2,4,fit\n4,4,kept\n", "rows.csv")
    options = ("--fit", "workload.forward", "--where", 'split == "fit"')
    code, out, err = validate(write(HELD_OUT), *options)
    weak = "warning: --fit: workload.forward rests on fewer than two rows; fit it to others too"
    assert (code, err) == (0, ["warning: --fit: the mean error of the other rows grew from 0.0 % to 100.0 %", weak])
    assert "other rows, before, step time  1  0.0 %" in out
    found = json.loads(validate(write(HELD_OUT), *options, "--json")[1])
    assert found["before_fit"]["step_time_s"]["mean_error_percent"] == 0


def test_a_fit_that_finds_nothing_better_says_so(validate, write, tmp_path):
    write("schedule.microbatches,measured.step_time_s\n2,2\n4,4\n", "rows.csv")
    code, out, err = validate(write(HELD_OUT), "--fit", "workload.forward", "--out", tmp_path / "o")
    said = "--fit: no numbers with a smaller mean error were found; those of the file stay"
    assert (code, err) == (0, [said])
    assert "fitted" not in out
    assert not (tmp_path / "o" / "fitted.yaml").exists()


def test_numbers_of_rows_are_decimals_wherever_they_show(validate, write, tmp_path):
    write("workload.forward,workload.recompute,measured.step_time_s\n0.98389,0.1,1\n2,0.2,1\n", "rows.csv")
    out = validate(write(CORPUS), "--out", tmp_path / "o", "--by", "workload.recompute")[1]
    assert "workload.forward 0.98389" in out
    assert "workload.recompute 0.1, step time" in out
    table = list(csv.DictReader((tmp_path / "o" / "validation.csv").read_text().splitlines()))
    assert [row["workload.forward"] for row in table] == ["0.98389", "2.0"]
    found = json.loads(validate(write(CORPUS), "--where", "workload.recompute == 0.1", "--json")[1])
    assert found["rows"] == 1


@pytest.mark.parametrize("measured", [(1.2, 4.3), (30, 33), (0.002, 0.09), (3, 2000), (1, 10**9), (5, 5)], ids=str)
def test_tick_labels_of_the_picture_stay_apart(measured):
    rows = [Prediction({}, {"step_time_s": value}, {"step_time_s": value}) for value in measured]
    figure = picture("a", rows)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    above, below = figure.axes
    boxes = [tick.get_window_extent(renderer) for tick in below.get_xticklabels(which="both") if tick.get_text()]
    assert len(boxes) >= 2
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(sorted(boxes, key=lambda box: box.x0)))
    texts = [tick.get_text() for axis in (below.xaxis, above.yaxis) for tick in axis.get_ticklabels(which="both")]
    assert all(float(text) > 0 for text in texts if text)  # written out, not as powers


def test_the_table_and_the_picture_are_written(validate, corpus, tmp_path):
    validate(corpus, "--out", tmp_path / "o", "--by", "split")
    table = list(csv.DictReader((tmp_path / "o" / "validation.csv").read_text().splitlines()))
    assert [float(row["error_percent.step_time_s"]) for row in table] == pytest.approx([0, -20, 20])
    assert [row["split"] for row in table] == ["fit", "fit", "kept"]
    assert (tmp_path / "o" / "validation.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "o" / "fitted.yaml").exists()


@from_table
def test_conditions_read_columns_by_their_names(text, meets):
    row = {"split": "fit", "parallel.tensor": 8, "parallel.sequence": True}
    assert condition(text, [*row, "missing"])(row) is meets


@pytest.mark.parametrize("text", ["split ==", "split + 1", "open('x')", "f'{split}'", "[x for x in split]"])
def test_a_condition_only_compares(text):
    with pytest.raises(UsageError, match=r"expected a condition on columns|unknown"):
        condition(text, ["split"])({"split": "fit"})


MODELLED = """\
name: mine
model: {layers: 2, hidden: 512, ffn: 2048, heads: 8, sequence: 512, vocab: 1024}
batch: 4
cluster: {gpu: h100}
efficiency: {gemm: 0.5}
sweep: {file: rows.csv}
"""


@pytest.fixture
def table(monkeypatch, tmp_path):
    """The package's table of runs, with one of this corpus and one of another, and that of pairs, with two likewise."""
    like = "h100,16 bits,dense,megatron,no,no,none,none,no,no,8000000,8,1e9,0,512,1"
    file, pairs = tmp_path / "experience.csv", tmp_path / "pairs.csv"
    file.write_text(f"{','.join(COLUMNS)}\nmine,{like},1.5,2026-01-01,abc\nother,{like},1.25,2026-01-01,abc\n")
    pair = "precision,0.5,0.6,2026-01-01,abc"
    pairs.write_text(f"{','.join(Pair._fields)}\nmine,{pair}\nother,{pair}\n")
    for module in (experience_table, validating):
        monkeypatch.setattr(module, "TABLE", file)
    for module in (pair_table, validating):
        monkeypatch.setattr(module, "PAIRS", pairs)
    known.cache_clear()
    known_pairs.cache_clear()
    yield file
    known.cache_clear()
    known_pairs.cache_clear()


@pytest.mark.parametrize(("said", "fitted"), [(", fitted: 3", 3), ("", 1)], ids=["said", "the efficiency"])
def test_record_replaces_the_runs_of_a_corpus(validate, write, table, said, fitted):
    rows = "name,parallel.data,measured.step_time_s,measured.peak_memory_bytes\nfirst,1,1,\nsecond,2,,1e9\nthird,4,1,\n"
    write(rows, "rows.csv")
    code, _, err = validate(write(MODELLED.replace(".csv}", f".csv{said}}}"), "mine.yaml"), "--record")
    assert (code, err) == (0, [f"{table}: 3 runs, 2 of mine; pairs.csv: 2 pairs, 1 of it"])
    mine, _, other = read(table.read_text())
    assert (other.corpus, other.ratio) == ("other", 1.25)
    assert (mine.corpus, mine.like.gpu, mine.like.gpus, mine.fitted) == ("mine", "h100", 1, fitted)
    assert (mine.like.stack, mine.like.calibrated, mine.like.sequence) == ("megatron", True, 512)
    assert mine.date > other.date


def test_record_notes_pairs_that_differ_in_one_setting(validate, write, table):
    """Of one machine and batch: the first and the second in recomputation, the third from both in two settings."""
    head = "name,recompute,precision,stack,measured.step_time_s"
    rows = ("first,none,bf16,deepspeed,2", "second,full,bf16,deepspeed,3", "third,selective,fp8,deepspeed,3")
    write("\n".join([head, *rows]), "rows.csv")
    assert validate(write(MODELLED, "mine.yaml"), "--record")[0] == 0
    mine, other = read_pairs(table.with_name("pairs.csv").read_text())
    assert (mine.corpus, mine.move, mine.measured) == ("mine", "recomputation", 1.5)
    assert 1.2 < mine.predicted < 1.4
    assert other.corpus == "other"
    assert {one.like.stack for one in read(table.read_text()) if one.corpus == "mine"} == {"deepspeed"}


def test_runs_of_several_releases_are_no_pairs(validate, write, table):
    """Their settings are not all that differs; nor with runs of several days, between which machines were changed."""
    head = "name,release,recompute,measured.step_time_s"
    write("\n".join([head, "first,25.04,none,2", "second,25.11,full,3", "third,25.11,none,2.5"]), "rows.csv")
    assert validate(write(MODELLED, "mine.yaml"), "--record")[0] == 0
    mine, _ = read_pairs(table.with_name("pairs.csv").read_text())
    assert mine.measured == pytest.approx(2.5 / 3, abs=1e-4)


def test_of_recipes_in_part_only_runs_are_noted(validate, write, table):
    write("name,recompute,measured.step_time_s\nfirst,none,2\nsecond,full,3\n", "rows.csv")
    code, _, err = validate(write(MODELLED.replace(".csv}", ".csv, noted: runs}"), "mine.yaml"), "--record")
    assert (code, err) == (0, [f"{table}: 3 runs, 2 of mine; pairs.csv: 1 pairs, 0 of it"])


def test_of_rows_that_others_have_only_pairs_are_noted(validate, write, table):
    write("name,recompute,measured.step_time_s\nfirst,none,2\nsecond,full,3\n", "rows.csv")
    code, _, err = validate(write(MODELLED.replace(".csv}", ".csv, noted: pairs}"), "mine.yaml"), "--record")
    assert (code, err) == (0, [f"{table}: 1 runs, 0 of mine; pairs.csv: 2 pairs, 1 of it"])
    code, _, err = validate(write(MODELLED.replace(".csv}", ".csv, noted: all}"), "mine.yaml"))
    assert code == 2
    assert 'sweep.noted: expected `pairs` or `runs`, found "all"' in err[0]


@pytest.mark.parametrize("word", ["--fit", "--where"])
def test_only_whole_corpora_as_they_stand_are_recorded(validate, write, table, word):
    write("name,parallel.data,measured.step_time_s\nfirst,1,1\n", "rows.csv")
    before = table.read_text()
    more = [word, "efficiency.gemm" if word == "--fit" else "parallel.data == 1"]
    code, _, err = validate(write(MODELLED, "mine.yaml"), "--record", *more)
    assert (code, table.read_text()) == (2, before)
    assert "leave out --fit and --where" in err[0]
