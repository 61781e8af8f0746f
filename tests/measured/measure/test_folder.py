"""A measured folder: tables that grow, that are read again, and what it refuses."""

import pytest

from hybrid_des.errors import UsageError
from hybrid_des.measured.calibration.fit import line_through
from hybrid_des.measured.calibration.nccl_tests import Measurement
from hybrid_des.measured.measure.folder import ABOUT, Folder, contents_of
from hybrid_des.measured.measure.machine import Facts, machine_of
from hybrid_des.measured.measure.measuring import Measured, spread_of
from hybrid_des.measured.measure.proof import Proof
from hybrid_des.measured.measure.stages import inputs_of

ABOUT_CPU = {"device": "cpu", "ranks": 2}


def test_a_stopped_measurement_goes_on_with_its_rows(tmp_path):
    folder = Folder(tmp_path, ABOUT_CPU, {}, writes=True)
    assert list(tmp_path.iterdir()) == []  # a command that is refused before it measures leaves nothing
    folder.add("t.csv", {"kind": "a", "bytes": 1, "seconds": 0.5})
    folder.add("t.csv", {"kind": "b", "bytes": 2, "more": 7})
    kept = contents_of(tmp_path, ABOUT_CPU, ["t.csv", "other.csv"], again=False)
    assert kept == {"t.csv": [{"kind": "a", "bytes": 1, "seconds": 0.5}, {"kind": "b", "bytes": 2, "more": 7}]}
    again = Folder(tmp_path, ABOUT_CPU, kept, writes=False)
    assert again.has("t.csv", kind="b", bytes=2) and not again.has("t.csv", kind="b", bytes=1)
    assert contents_of(tmp_path, ABOUT_CPU, ["t.csv"], again=True) == {}


def test_what_is_measured_anew_replaces_all_tables(tmp_path):
    """Else one that is stopped would go on with rows of before."""
    before = Folder(tmp_path, ABOUT_CPU, {}, writes=True)
    before.add("t.csv", {"kind": "a"})
    before.add("other.csv", {"kind": "b"})
    names = ["t.csv", "other.csv"]
    anew = Folder(tmp_path, {**ABOUT_CPU, "ranks": 4}, {}, writes=True, dropped=names)
    assert (tmp_path / "other.csv").exists()  # nothing was measured yet
    anew.add("t.csv", {"kind": "c"})
    assert contents_of(tmp_path, {**ABOUT_CPU, "ranks": 4}, names, again=False) == {"t.csv": [{"kind": "c"}]}


def test_only_the_first_rank_writes(tmp_path):
    Folder(tmp_path, ABOUT_CPU, {}, writes=False).add("t.csv", {"kind": "a"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_measurement_is_refused(tmp_path):
    Folder(tmp_path, ABOUT_CPU, {}, writes=True).write({ABOUT: ABOUT_CPU})
    with pytest.raises(UsageError, match=r"other ranks \(2, now 4\); name another folder, or --again"):
        contents_of(tmp_path, {**ABOUT_CPU, "ranks": 4}, [], again=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1x4096", [((1, 4096), None)]),
        ("4x128:int64, 4x128x64", [((4, 128), "int64"), ((4, 128, 64), None)]),
    ],
)
def test_shapes_are_read(text, expected):
    assert list(inputs_of(text)) == expected


@pytest.mark.parametrize("text", ["", "1x", "0x4", "ax4", "1x4:", "99999999x99999999"])
def test_wrong_shapes_are_refused(text):
    with pytest.raises(UsageError, match=r"--shapes: .*expected sizes such as 1x4096"):
        inputs_of(text)


def test_a_line_is_found_again():
    times = [Measurement(size, 3_000_000 + 250 * size) for size in (4096, 2**16, 2**24)]
    latency, bandwidth = line_through(times)
    assert (latency, bandwidth) == pytest.approx((3e-6, 4e9))


def test_a_line_never_begins_below_zero():
    latency, bandwidth = line_through([Measurement(1000, 1_000_000), Measurement(2000, 3_000_000)])
    assert latency == 0 and bandwidth > 0


def test_nodes_have_the_links_that_were_measured():
    rows = [
        {"bytes": size, "time_us": start + size / rate, "collective": "send-receive", "ranks": ranks, "nodes": nodes}
        for start, rate, ranks, nodes in ((9, 5000, 2, 1), (3, 200_000, 8, 1), (20, 25_000, 16, 2))
        for size in (4096, 2**20, 2**26)
    ]
    machine = machine_of(Facts("NVIDIA H100 80GB HBM3", "h100", 80, 132, 16, 8), {"collectives.csv": rows}, {})
    assert machine == {
        "cluster": {
            "gpu": "h100", "nodes": 2, "gpus_per_node": 8, "nvlink": {"bandwidth": "200 GB/s", "latency": "3 us"},
            "infiniband": {"bandwidth": "25 GB/s", "latency": "20 us"},
        }
    }  # fmt: skip


def test_the_spread_of_repeats_is_told():
    rows = [{"time_us": 10, "p10_us": 9, "p90_us": 12}, {"time_us": 10, "p10_us": 10, "p90_us": 10}]
    assert spread_of({"collectives.csv": rows, "empty.csv": []}) == {
        "collectives.csv": {"median": pytest.approx(0.3), "worst": pytest.approx(0.3), "rows": 2}
    }


def test_a_report_says_what_was_not_measured(tmp_path):
    measured = Measured(tmp_path, "4 × cpu", ["machine.yaml"], [Proof("gpipe", 2.001, 1.901, 1.961)], ["the moon"])
    lines = measured.text().splitlines()
    assert lines[2] == f"base:       {tmp_path / 'machine.yaml'}"
    assert lines[3] == "proof       gpipe: measured 2.001 s (fastest 1.901 s), predicted 1.961 s: -2.0 %"
    assert lines[4] == "not measured the moon"
