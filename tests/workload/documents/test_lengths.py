"""Lengths of documents: their distributions, and files that hold them."""

from itertools import islice

import numpy as np
import pytest

from hybrid_des.workload import lengths
from hybrid_des.workload.draws import stream
from hybrid_des.workload.lengths import Documents, LengthRequest, read_lengths

LIMITS = LengthRequest(1, 10**6, 4096)


def documents(kind, limits=LIMITS, seed=0, **options):
    """Lengths that never end."""
    entry = lengths.find(kind)
    return Documents(entry.build(limits, *entry.arguments(options)), limits, stream(seed, "lengths"))


def taken(source, count):
    return [source.take() for _ in range(count)]


def test_lognormal_lengths_have_the_mean_that_is_asked_for():
    """Mean m and, with µ = ln m − σ²/2, median m exp(−σ²/2); the error of the mean of n is m √(exp σ² − 1) / √n."""
    drawn = np.array(taken(documents("lognormal", mean=1000, sigma=0.5), 40_000))
    error = 1000 * np.sqrt(np.expm1(0.25)) / np.sqrt(len(drawn))
    assert abs(drawn.mean() + 0.5 - 1000) < 4 * error  # rounded down
    assert abs(np.median(drawn) / (1000 * np.exp(-0.125)) - 1) < 0.02


def test_lengths_stay_within_their_limits_and_cuts_are_counted():
    source = documents("lognormal", LengthRequest(128, 8192, 4096), mean=1024, sigma=1.5)
    drawn = taken(source, 5000)
    assert min(drawn) == 128 and max(drawn) == 8192
    assert source.truncated == drawn.count(8192)


def test_a_length_that_is_looked_at_is_not_taken():
    source = documents("uniform", LengthRequest(3, 9, 1))
    first = [(source.peek(), source.peek(), source.take()) for _ in range(600)]
    assert all(len(set(same)) == 1 for same in first)
    assert {same[0] for same in first} == set(range(3, 10))


def test_fixed_lengths_are_those_of_the_model():
    assert taken(documents("fixed"), 3) == [4096] * 3
    assert taken(documents("fixed", length=7), 3) == [7] * 3


def test_a_histogram_has_the_shares_of_its_weights():
    drawn = taken(documents("histogram", values=[10, 20], weights=[3, 1]), 8000)
    assert set(drawn) == {10, 20}
    assert abs(drawn.count(10) / 8000 - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 8000)


def test_documents_of_a_file_come_once_before_any_comes_again(write):
    table = read_lengths(write("".join(f"{n}\n" for n in range(1, 101)), "lengths.csv"))
    source = documents("file", file=table)
    first, second = taken(source, 100), taken(source, 100)
    assert sorted(first) == sorted(second) == list(range(1, 101))
    assert first != second and first != sorted(first)


def test_documents_of_a_file_come_as_given(write):
    table = read_lengths(write("length,count\n9,1\n3,2\n7,1\n", "lengths.csv"))
    for seed in range(3):
        assert taken(documents("file", seed=seed, file=table, order="given"), 6) == [9, 3, 3, 7, 9, 3]


@pytest.mark.parametrize(
    ("text", "values", "counts"),
    [
        ("12\n7\n", [12, 7], [1, 1]),
        ("length\n12\n\n7\n", [12, 7], [1, 1]),
        ("id,length\na,12\nb,7\n", [12, 7], [1, 1]),
        ("count,Length\n3,12\n0,7\n", [12, 7], [3, 0]),
    ],
)
def test_files_of_lengths_have_one_per_line_or_named_columns(write, text, values, counts):
    table = read_lengths(write(text, "lengths.csv"))
    assert (table.values.tolist(), table.counts.tolist()) == (values, counts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no lengths; expected a number of tokens per line"),
        ("length\n", "a table without lengths"),
        ("12\nx\n", ':2: expected a whole number from 0 to 134217728, found "x"'),
        ("12\n-7\n", ':2: expected a whole number from 0 to 134217728, found "-7"'),
        ("a,b\n1,2\n", ":1: expected a column called length, or one number per line"),
        ("id,length\na\n", ':2: expected a whole number from 0 to 134217728, found ""'),
        ("length,count\n5,0\n", "counts of 0 documents only"),
    ],
)
def test_files_without_lengths_are_refused_with_their_line(write, text, said):
    with pytest.raises(ValueError) as error:
        read_lengths(write(text, "lengths.csv"))
    assert said in str(error.value) and "lengths.csv" in str(error.value)


def test_equal_files_are_equal_and_others_are_not(write):
    same = [read_lengths(write("5\n6\n", "a.csv")) for _ in range(2)]
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])
    assert read_lengths(write("5\n7\n", "a.csv")) != same[0]


def test_users_add_kinds_of_lengths(scratch):
    @lengths.lengths("halves", summary="the model's sequence and half of it")
    def halves(request):
        def draw(generator):
            while True:
                yield np.array([request.sequence, request.sequence // 2])

        return draw

    assert [*islice(iter(documents("halves").take, None), 4)] == [4096, 2048, 4096, 2048]
