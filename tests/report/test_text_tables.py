"""Tables of text fit the width that they are given, and say as much as without one."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.report.text_tables import text_table

HEADS = ["name", "schedule.microbatch_size", "step time", "why"]
ROWS = [["one", "8", "1.435 s", "a"], ["two", "16", "2 s", "a"]]
WORDS = st.text(st.sampled_from("ab cd"), max_size=60).map(lambda text: " ".join(text.split()))


def lines_of(*arguments, **options):
    return text_table(*arguments, **options).splitlines()


def test_a_table_that_fits_is_as_without_a_width():
    whole = text_table(HEADS, ROWS)
    assert whole.splitlines()[1] == "one   8                         1.435 s    a"
    assert text_table(HEADS, ROWS, width=max(map(len, whole.splitlines()))) == whole


def test_headings_are_broken_at_dots_underscores_and_spaces():
    assert lines_of(HEADS, ROWS, width=40) == [
        "      schedule.",
        "      microbatch_  step",
        "name  size         time     why",
        "one   8            1.435 s  a",
        "two   16           2 s      a",
    ]


def test_values_of_all_rows_are_said_once_above():
    heads, rows = (
        ["name", "kind", "efficiency"],
        [["one", "interleaved-1f1b", "80 %"], ["two", "interleaved-1f1b", "9 %"]],
    )
    assert lines_of(heads, rows, width=30) == [
        "in all rows: kind",
        "  interleaved-1f1b",
        "name  efficiency",
        "one   80 %",
        "two   9 %",
    ]


def test_long_texts_are_wrapped_in_their_column():
    rows = [["one", "a sentence that says what the first one is for"], ["two", "short"]]
    assert lines_of(["name", "description"], rows, width=40) == [
        "name  description",
        "one   a sentence that says what the",
        "        first one is for",
        "two   short",
    ]


def test_rows_that_do_not_fit_are_folded_in_columns():
    rows = [["1" * 12, "2" * 14, "3" * 12], ["4" * 12, "5", "6"]]
    assert lines_of(["a", "b", "c"], rows, width=34) == [
        "a             b",
        "    c",
        "1" * 12 + "  " + "2" * 14,
        "    " + "3" * 12,
        "4" * 12 + "  5",
        "    6",
    ]


def test_a_short_rows_last_text_reaches_across():
    rows = [["one", "2 s", "9 %"], ["two", "failed: no rank has this much memory"]]
    assert lines_of(["name", "step", "bubble"], rows)[-1] == "two   failed: no rank has this much memory"
    assert lines_of(["name", "step", "bubble"], rows, width=30)[-3:] == [
        "two",
        "    failed: no rank has this",
        "      much memory",
    ]


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=2, max_size=5)))
def test_every_table_fits_and_loses_nothing(cells):
    apart = [[f"{number}{cell}" for cell in row] for number, row in enumerate(cells)]  # no value is in all rows
    table = lines_of(apart[0], apart[1:], width=50)
    assert all(len(line) <= 50 for line in table)
    assert sorted("".join(table).replace(" ", "")) == sorted("".join(chain.from_iterable(apart)).replace(" ", ""))
