"""Times on the NVLinks of one node: the closed forms that they are fitted by, and the fit itself."""

import runpy
import sys

import pytest
from support.paths import SCENARIOS

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer

FP16 = codecs.find("fp16").build()
SCRIPT = SCENARIOS / "validation" / "nccl_fit.py"


@pytest.fixture(scope="module")
def fit():
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "b200"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_closed_forms_are_what_is_simulated(fit, gpu, ranks):
    machine = fit["Machine"](gpu)
    wiring = machine.wiring(ranks)
    timing, rings = wiring.generation.timing, 0
    for power in range(12, 29, 2):
        size = 2**power
        for name in (*fit["DOES"], "nccl-all-to-all"):
            if name == "nccl-all-to-all":
                expected = fit["exchange"](wiring, size, timing.sends)
            elif wiring.choice(fit["DOES"][name], size).algorithm == "ring":
                expected, rings = fit["ring"](wiring, name, size, timing), rings + 1
            else:
                expected = machine.simulated(ranks, size, timing)
            run = measure(machine.fabric, name, [range(ranks)], lambda *_, size=size: Buffer(size // 2, FP16))
            if name == "nccl" and wiring.in_switch:  # with the switch
                run = machine.times.around(name, [range(ranks)], size // 2, FP16)
            assert run.duration / 10**6 == pytest.approx(expected, rel=1e-3), (name, size)
    assert rings >= 18


def test_the_rule_finds_the_numbers_behind_its_rows(fit):
    """From others, those that made the times of all-to-alls."""
    machine = fit["Machine"]("h100")
    sends, rows = machine.wiring(8).generation.timing.sends, []
    for ranks in (2, 4, 8):
        wiring = machine.wiring(ranks)
        for power in range(10, 30):

            def takes(numbers, wiring=wiring, size=2**power):
                return fit["exchange"](wiring, size, fit["sends_of"](numbers))

            numbers = [float(sends.peer), sends.own, sends.start, *sends.fill, *sends.late, sends.early, sends.lines]
            rows.append(fit["Measured"](("nccl-all-to-all", ranks), takes, takes(numbers), power >= 20))
    away = [0.6, 1500.0, 9.0, 1500.0, 13.0, 20.0, 4.0, 1.0, 150.0]
    found = fit["fitted"](rows, away, (0.2, 0.1, 0.05))
    assert fit["error"](rows, away) > 0.15
    assert fit["error"](rows, found) < 0.02


def test_older_rules_are_fitted_where_another_protocol_carries(fit, tmp_path):
    """Before and since 2.29, 16 MiB over two are sent alike. Of tables by the same rules the median counts."""
    head = "release,cluster.gpu,cluster.nccl,parallel.data,collective.name,collective.bytes,measured.collective_time_s"
    lines = [f"NCCL {release},b200,{nccl},{ranks},nccl-all-to-all,{size},{us}e-6"
             for release, nccl, us in (("2.27.3", "2.29.2", 30), ("2.29.2", "2.29.2", 20), ("2.29.7", "2.29.2", 10),
                                       ("2.28.9", "2.28.9", 90))
             for ranks, size in ((2, 2**24), (8, 2**22))]  # fmt: skip
    rows = tmp_path / "rows.csv"
    others = ["NCCL 2.29.2,b200,2.29.2,8,nccl,512,1e-6", "NCCL 2.29.2,h100,2.29.2,8,nccl,2048,1"]
    rows.write_text("\n".join([head, *lines, *others]))
    assert [found[1:] for found in fit["measured_of"]("b200", rows)] == [
        ("nccl-all-to-all", 2, 2**24, pytest.approx(20)), ("nccl-all-to-all", 8, 2**22, pytest.approx(20)),
        ("nccl-all-to-all", 8, 2**22, pytest.approx(90)),
    ]  # fmt: skip


def test_the_script_needs_rows(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "rows" in capsys.readouterr().err
