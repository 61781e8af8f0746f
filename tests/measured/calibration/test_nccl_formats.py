"""Output of nccl-tests in other forms: JSON, tags inside rows, and no name of the collective."""

import json

import pytest
from support.nccl_logs import NAMES, STARTING, log, parsed, rows

from hybrid_des.cluster.time_table import read_collective_table
from hybrid_des.errors import UsageError

TIMES = {2**20: 30.1, 2**22: 60.2}


def nccl_tests(wrong=0.0, ranks=8):
    """What -J writes."""

    def figures(size, time):
        rate = size / time / 1000
        return {"time": time, "alg_bw": rate, "bus_bw": rate * 2 * (ranks - 1) / ranks, "nwrong": wrong}

    results = [
        {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
         "out_of_place": figures(size, time), "in_place": figures(size, time / 2), "experiment_name": "AllReduce"}
        for size, time in TIMES.items()
    ]  # fmt: skip
    return {"version": 3, "args": ["./build/all_reduce_perf"], "nccl_version": 22903, "results": results}


def rccl_tests():
    """What -Z json writes, a list."""
    rows_of = ((size, time, place) for size, time in TIMES.items() for place in (0, 1))
    return [
        {"#wrong": "0", "algBw": size / time / 1000, "busBw": size * 1.5 / time / 1000, "gpus": 4, "inPlace": place,
         "name": "AllReduce", "redop": "sum", "size": size, "time": time / (1 + place), "type": "float"}
        for size, time, place in rows_of
    ]  # fmt: skip


EXPECTED = [(size, round(time * 10**6)) for size, time in TIMES.items()]


def test_json_of_nccl_tests_is_read():
    found = parsed(json.dumps(nccl_tests()), "n.json")
    assert (found.test, found.ranks, found.times) == ("all_reduce", 8, EXPECTED)
    assert parsed(json.dumps(nccl_tests(), indent=2), "n.json").times == EXPECTED


@pytest.mark.parametrize("text", [json.dumps(rccl_tests()), "\n".join(map(json.dumps, rccl_tests())),
                                  "\n".join(f"{json.dumps(one)}," for one in rccl_tests())])  # fmt: skip
def test_json_of_rccl_tests_is_read(text):
    found = parsed(text, "n.json")
    assert (found.test, found.ranks, found.times) == ("all_reduce", 4, EXPECTED)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (nccl_tests(wrong=3.0), "1048576 B: nwrong is 3.0: results are wrong"),
        ([rccl_tests()[0] | {"time": 0}], "time is 0, expected a number above 0"),
        ([rccl_tests()[0] | {"busBw": "x"}], "busBw is x, expected a number"),
        ([rccl_tests()[0] | {"size": -1}], "size is -1, expected a whole number of bytes"),
        ({"results": []}, "no nccl-tests results"),
        ({"version": 3}, "no nccl-tests results"),
    ],
)
def test_wrong_json_is_one_line(document, said):
    with pytest.raises(UsageError) as caught:
        parsed(json.dumps(document), "n.json")
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("tag", ["[0]", "[1,0]<stdout>:"])
def test_tags_inside_rows_are_skipped(tag):
    lines = log().split("\n")
    assert any("     0 " in line for line in lines)
    cut = [tag + (line.replace("     0 ", f"     0{tag} ", 1) if line[:1] == " " else line) for line in lines]
    assert parsed("\n".join(cut), "n.txt") == parsed(log(), "n.txt")


def test_a_ratio_above_one_is_that_of_an_all_reduce():
    found = parsed(NAMES + rows(), "n.txt")
    assert (found.test, found.ranks) == ("all_reduce", 8)
    assert "the collective is not named; all_reduce, since busbw exceeds algbw" in found.notes


def test_an_all_to_all_is_a_table_of_its_group(write, run):
    text = STARTING.format("alltoall_perf") + NAMES + rows(test="all_gather")
    assert parsed(text, "n.txt").ranks == 8
    file = write(text, "n.txt")
    code, out, err = run("measure", "--from", file)
    assert (code, out.splitlines()[-1]) == (0, "4194304,110,all-to-all,8,1")
    assert any("8 ranks are taken for one node" in line for line in err)
    assert read_collective_table(write(out, "t.csv")).time("all-to-all", 8, 1, 2**20) == 50_000_000
    assert "--link needs a run of all_reduce, all_gather" in run("measure", "--from", file, "--link")[2][0]
