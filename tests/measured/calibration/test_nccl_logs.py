"""Output of nccl-tests and rccl-tests of many versions: what is read, what is assumed aloud, what is refused."""

import re

import pytest
from support.nccl_logs import NAMES, SETTINGS, STARTING, TIMES, group, log, parsed, rank_list, row, rows

from hybrid_des.errors import UsageError
from hybrid_des.measured.calibration.nccl_tests import link_table
from hybrid_des.measured.calibration.runs import parse_runs

MICROSECOND = 10**6
CHOICES = "all_reduce, all_gather, reduce_scatter, sendrecv or alltoall"


def microseconds(measured):
    return {size: time / MICROSECOND for size, time in measured.times}


def refused(text, said, collective=None):
    """The text is refused in one line that starts with file and line number."""
    with pytest.raises(UsageError) as error:
        parsed(text, "n.txt", collective)
    message = str(error.value)
    assert said in message and message.startswith("n.txt:") and "\n" not in message and message.isprintable()
    return message


def test_a_run_is_read_whole_and_without_assumptions():
    measured = parsed(log(), "n.txt")
    assert (measured.test, measured.ranks, measured.notes) == ("all_reduce", 8, ())
    assert microseconds(measured) == TIMES


def test_names_of_mpi_programs_are_known():
    assert parsed(log(program="{}_perf_mpi"), "n.txt").test == "all_reduce"


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", " 0: ", "node-7: ", "2025-07-01T12:00:00.123Z ", "12:34:56 INFO "]
)
def test_prefixes_of_launchers_are_skipped(prefix):
    noise = "node-7:26:26 [0] NCCL INFO Launch mode Parallel\n"
    lines = "".join(f"{prefix}{line}\n{noise}" for line in log().splitlines())
    measured = parsed(lines, "n.txt")
    assert (measured.ranks, microseconds(measured)) == (8, TIMES)


def test_colours_and_carriage_returns_are_removed():
    coloured = re.sub("(?m)^(.*?)(float)", "\x1b[1;32m\\1\x1b[0m\x1b]0;title\x07\\2\x1b(B", log()).replace("\n", "\r\n")
    assert coloured.count("\x1b") > 8
    assert microseconds(parsed(coloured, "n.txt")) == TIMES


def test_times_of_ten_seconds_and_more_are_read():
    big = {2**40: 12_345_678.0}
    measured = parsed(log(times={**TIMES, **big}), "n.txt")
    assert microseconds(measured) == {**TIMES, 2**40: 12_000_000.0}
    assert measured.notes == ("1 times are printed with two digits, such as 1.2e+07 in line 20; taken as printed",)


def test_columns_per_iteration_and_timestamps_are_read():
    names = NAMES.replace("#wrong", "#wrong    i_min    i_max    i_p99    i_cv%").replace(
        "i_cv%\n", "i_cv%           timestamp\n"
    )
    per_iteration, stamp = "    49.10    61.00    60.00     3.20", "  2025-07-01 12:34:56"
    table = "".join(
        f"{size:12}  {size // 4:12}     float     sum      -1"
        f"{group(size, time)}{per_iteration}{group(size, 1)}{per_iteration}{stamp}\n"
        for size, time in TIMES.items()
    )
    for text in (STARTING.format("all_reduce_perf") + rank_list(range(8)) + names + table, rank_list(range(8)) + table):
        measured = parsed(text, "n.txt", "all_reduce")
        assert (microseconds(measured), measured.ranks) == (TIMES, 8)
    assert "no line of column names; columns read as size count type redop root time" in measured.notes[0]


@pytest.mark.parametrize(("place", "said"), [
    ("in-place", ("one group of columns; times are in-place",)),
    ("out-of-place", ()),
    ("", ("one group of columns; times are in-place or out-of-place (not named)",)),
])  # fmt: skip
def test_one_group_of_columns_of_rccl_tests_is_read(place, said):
    names = f"#                             {place}\n" + NAMES.splitlines()[2].replace("root", "root", 1)[:88] + "\n"
    assert names.count("time") == 1
    table = "".join(f"{size:12} {size // 4:12}  float  sum  -1{group(size, time)}\n" for size, time in TIMES.items())
    listed = rank_list(
        range(8), "#   Rank {0:2} Pid  56417 on c42f4555f685 device {0:2} [0002:00:00.0] AMD Instinct MI300X\n"
    )
    head = f"# Collective test starting: all_reduce_perf\nrccl-tests: Version develop:5272cd1\n{listed}"
    measured = parsed(head + names + table, "n.txt")
    assert (microseconds(measured), measured.ranks, measured.notes) == (TIMES, 8, said)


def test_algorithms_at_the_end_of_rows_are_skipped():
    text = log().replace("#wrong\n", "#wrong    algo   proto  nchannels\n")
    text = re.sub(r"(float.*)", r"\1    RING      LL         16", text)
    assert microseconds(parsed(text, "n.txt")) == TIMES


def test_milliseconds_of_old_versions_are_told_by_bandwidths():
    old = "# NCCL Tests compiled with NCCL 2.4\n# ./build/all_reduce_perf -g 8\n"
    old += rank_list(range(8), "#   Rank {0:2} on       ncrh device {0:2} [0x05] GeForce RTX 2080 Ti\n")
    old += (
        "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
    )
    for size, time in TIMES.items():
        cells = f"{time / 1000:7.3f}  {size / time / 1000:5.2f}  {size / time / 1000 * 1.75:5.2f}    2e-07"
        old += f"{size:12}  {size // 4:12}   float     sum  {cells}  {cells}\n"
    measured = parsed(old, "n.txt")
    assert (measured.test, measured.ranks, microseconds(measured)) == ("all_reduce", 8, TIMES)
    assert measured.notes == ("times are milliseconds, as size / algbw says (nccl-tests before NCCL 2.5)",)


def test_bandwidths_of_old_gathers_are_read():
    """Before NCCL 2.5, algbw counts n−1 of n parts, and busbw is the same."""
    text = "all_gather_perf\n" + rank_list(range(4))
    text += "#      bytes             N    type     time  algbw  busbw      res     time  algbw  busbw      res\n"
    for size, time in TIMES.items():
        cells = f"{time / 1000:7.3f}  {size / time / 4000 * 3:5.2f}  {size / time / 4000 * 3:5.2f}    0e+00"
        text += f"{size:12}  {size // 4:12}   float  {cells}  {cells}\n"
    measured = parsed(text, "n.txt")
    assert (measured.test, measured.ranks, microseconds(measured)) == ("all_gather", 4, TIMES)


def test_times_that_contradict_bandwidths_are_refused():
    text = log().replace("  110.00", "  11.000")
    assert refused(text, "column time holds 11.000 for 4194304 B at 38.13 GB/s (algbw), expected about 110 us")
    assert refused(text, "n.txt:19: ")


@pytest.mark.parametrize("ranks", [(0, 1, 7), (0, 1), (), (5, 6, 7)])
def test_an_elided_list_of_ranks_is_no_number_of_ranks(ranks):
    measured = parsed(log(ranks=ranks), "n.txt")
    assert measured.ranks == 8
    what = f"the list of ranks is incomplete ({len(ranks)} listed)" if ranks else "no list of ranks"
    assert measured.notes == (f"{what}; 8 ranks, as busbw / algbw says",)


def test_unknown_ranks_are_not_guessed():
    small = dict.fromkeys((8, 16, 32), 30.0)
    dots = rank_list(range(4)) + "#  ...\n" + NAMES
    measured = parsed(dots + rows(small), "n.txt", "all_reduce")
    assert measured.ranks is None
    assert measured.notes == (
        "bandwidths are too small to tell the unit of time; taken as microseconds",
        "the list of ranks is incomplete (4 listed); the number of ranks is unknown",
    )


def test_only_the_first_group_of_split_ranks_counts():
    split = rank_list(range(8)).replace("Group  0", "Group  1", 4)
    measured = parsed(split + NAMES + rows(ranks=4), "n.txt", "all_reduce")
    assert (measured.ranks, measured.notes) == (4, ())


def test_more_listed_ranks_than_bandwidths_allow_are_refused():
    assert refused(rank_list(range(8)) + NAMES + rows(ranks=4), "8 ranks are listed, but busbw", "all_reduce")


@pytest.mark.parametrize(("text", "line", "said"), [
    (SETTINGS.format(8) + SETTINGS.format(8) + NAMES + rows(), 2, "another line of settings (nThread), the first is"),
    (NAMES + NAMES + rows(), 7, "another line of column names, the first is line 3"),
    (rank_list([0, 0]) + NAMES + rows(), 3, "another rank 0, the first is line 2"),
    (rows() + rows(), 4, "1048576 B after 4194304 B; expected the ascending sizes of one run"),
    (rows() + rows(kind="half      sum      -1"), 4, "half sum -1 after float sum -1; expected the rows of one type"),
    (rows() + rows({2**23: 200.0}, ranks=16), 4, "busbw / algbw is 78.64 / 41.94, expected that of all_reduce"),
])  # fmt: skip
def test_two_runs_in_one_log_are_refused(text, line, said):
    refused(text, f"n.txt:{line}: {said}", "all_reduce")


@pytest.mark.parametrize("text", [
    log() + log(), log() + log("all_gather"), SETTINGS.format(8) + NAMES + rows() + SETTINGS.format(8) + NAMES + rows(),
    NAMES + rows() + NAMES + rows(), rows() + NAMES + rows(),
])  # fmt: skip
def test_runs_one_after_the_other_are_read_apart(text):
    runs = parse_runs(text, "n.txt", None if "starting" in text else "all_reduce")
    assert [microseconds(run) for run in runs] == [TIMES, TIMES]


def test_repetitions_within_a_run_are_averaged_aloud():
    again = {size: time * 1.5 for size, time in TIMES.items()}
    cycles = NAMES + "# Testing 1 cycle.\n" + rows() + "# Testing 2 cycle.\n" + rows(again)
    measured = parsed(cycles, "n.txt", "all_reduce")
    assert microseconds(measured) == {size: time * 1.25 for size, time in TIMES.items()}
    assert "3 rows repeat a size, such as 1048576 B in line 10; the mean time is taken" in measured.notes


def test_rows_of_no_bytes_are_left_out_aloud():
    none = row(1, 0.13).replace("           1 ", "           0 ")
    measured = parsed(NAMES + none + none + rows(), "n.txt", "all_reduce")
    assert microseconds(measured) == TIMES
    assert measured.notes[0] == "2 rows of 0 bytes left out"


@pytest.mark.parametrize("wrong", ["5", "1e+06", "3e-01*", "nan"])
def test_wrong_results_are_refused(wrong):
    refused(log(wrong=wrong), f"n.txt:17: column #wrong holds {wrong}: results are wrong, expected 0 or N/A")


@pytest.mark.parametrize("wrong", ["0", "N/A", "2e-07", "0e+00"])
def test_unchecked_and_rounded_results_are_taken(wrong):
    assert microseconds(parsed(log(wrong=wrong), "n.txt")) == TIMES


@pytest.mark.parametrize(
    "time", ["1.2.3", "1-2", "N/A", "nan", "-5", "0.00", "1e999999999", "5" * 5000, "\x1b[31m", "\x9bA;"]
)
def test_a_row_without_a_time_is_refused(time):
    text = log().replace("  110.00", f"  x{time}" if time[0] in "\x1b\x9b" else f"  {time}", 1)
    refused(text, "n.txt:19: column time holds ")


@pytest.mark.parametrize(("old", "new", "said"), [
    ("   38.52   67.40       0\n", "\n", "n.txt:19: a row of 10 columns, expected 13 as in line 15"),
    ("  4194304 ", f"  {'9' * 5000} ", "n.txt:19: a size of 5000 digits, expected at most 15"),
    ("   time", "cputime", "n.txt:15: column cputime is the time of the launch on the CPU (-C 1)"),
    ("algbw", "other", "n.txt:15: no column algbw; expected time, algbw and busbw"),
])  # fmt: skip
def test_rows_that_do_not_fit_their_columns_are_refused(old, new, said):
    assert old in log()
    refused(log().replace(old, new), said)


def test_a_row_of_unknown_columns_needs_their_names():
    text = rows().replace("       0\n", "       0      77\n")
    refused(text, "n.txt:1: a row of 14 columns without a line of column names", "all_reduce")


@pytest.mark.parametrize(("text", "collective", "said"), [
    (NAMES + rows(test="all_gather"), None,
     f"n.txt: does not name its collective; say which it is: --collective {CHOICES}"),
    ("ls: all_reduce_perf all_gather_perf\n" + rows(), None, "names all_reduce in line 1 and all_gather in line 1"),
    (log("all_gather"), "all_reduce", "names all_gather in line 2, expected all_reduce (--collective)"),
])  # fmt: skip
def test_a_log_must_name_its_collective(text, collective, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parsed(text, "n.txt", collective)


def test_messages_of_less_than_a_byte_are_left_out():
    small = {4: 30.0, **TIMES}
    table = link_table(parsed(log(times=small), "n.txt"))
    assert [size for size, _ in table.entries] == [size // 8 for size in TIMES]
