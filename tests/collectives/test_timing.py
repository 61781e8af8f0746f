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


@pytest.mark.parametrize("nccl", ["2.28.9", "2.29.2"])
@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "b200"])
def test_closed_forms_are_what_is_simulated(fit, gpu, nccl):
    machine = fit["Machine"](gpu, nccl)
    timing = machine.wiring(8).generation.timing
    rings, exchanges, found = [], [], {"ring": [], "sends": []}
    for ranks in (2, 4, 8):
        wiring = machine.wiring(ranks)
        for power in range(12, 29, 2):
            for name in (*fit["DOES"], "nccl-all-to-all"):
                size, carrier = 2**power, machine.carrier(name, ranks, 2**power)
                if carrier == "nvls":
                    continue
                run = measure(machine.fabric, name, [range(ranks)], lambda *_, size=size: Buffer(size // 2, FP16))
                found[carrier].append(run.duration / 10**6)
                if carrier == "ring":
                    rings.append((wiring, name, size))
                else:
                    exchanges.append((wiring, size))
    assert len(rings) >= 60
    assert fit["Rings"](rings).take(timing) == pytest.approx(found["ring"], rel=1e-3)
    assert fit["Exchanges"](exchanges).take(timing) == pytest.approx(found["sends"], rel=1e-3)


def test_passages_are_simulated_with_other_figures(fit):
    machine = fit["Machine"]("h100")
    timing = machine.wiring(8).generation.timing
    run = machine.times.around("nccl", [range(8)], 2**27, FP16)
    assert machine.simulated(8, 2**28, timing) == pytest.approx(run.duration / 10**6)
    later = machine.simulated(8, 2**28, timing._replace(switch=timing.switch + 5))
    assert later - run.duration / 10**6 == pytest.approx(5)


def test_the_rule_finds_the_numbers_behind_its_rows(fit):
    """From others, those that made the times of all-to-alls."""
    forms = fit["Forms"]("h100")
    keys = [fit["Key"](nccl, "nccl-all-to-all", ranks, 2**power)
            for nccl in forms.machines for ranks in (2, 4, 8) for power in range(10, 30)]  # fmt: skip
    takes, numbers = forms.exchanges(keys), fit["numbers_of_sends"](forms.known.sends)
    problem = fit["Problem"](keys, takes(numbers), takes)
    away = [number * factor for number, factor in zip(numbers, (1.2, 0.8, 1, 1.3, 1, 1.2, 0.8, 1.3), strict=True)]
    assert problem.errors(away).mean() > 0.1
    assert problem.errors(fit["fitted"](problem, away, (0.2, 0.1, 0.05, 0.02))).mean() < 0.02


def test_every_table_counts_once_with_its_own_rules(fit, tmp_path):
    """Of repeats the median; of all GPUs of a generation, no others, nothing smaller than 1 KiB."""
    head = "release,cluster.gpu,cluster.nccl,parallel.data,collective.name,collective.bytes,measured.collective_time_s"
    lines = [f"NCCL {release},b200,{nccl},2,nccl-all-to-all,{2**24},{us}e-6"
             for release, nccl, us in (("2.27.3", "2.29.2", 30), ("2.27.3", "2.29.2", 50), ("2.27.3", "2.29.2", 31),
                                       ("2.28.9", "2.28.9", 90))]  # fmt: skip
    rows = tmp_path / "rows.csv"
    others = ["NCCL 2.29.2,b200,2.29.2,8,nccl,512,1e-6", "NCCL 2.29.2,h100,2.29.2,8,nccl,2048,1",
              f"NCCL 2.27.3,gb200,2.29.2,2,nccl-all-to-all,{2**24},45e-6"]  # fmt: skip
    rows.write_text("\n".join([head, *lines, *others]))
    assert {(gpu, key.nccl): us for (gpu, _, key), us in fit["rows_of"](rows, fit["GPUS"]["b200"]).items()} == {
        ("b200", "2.29.2"): pytest.approx(31), ("b200", "2.28.9"): pytest.approx(90),
        ("gb200", "2.29.2"): pytest.approx(45),
    }  # fmt: skip
    [(names, posed, own, _)] = fit["problems_of"]("b200", rows)
    assert (names.split(",")[0], len(own)) == ("peer", 3)
    assert posed(own).kept == ()
    assert posed([row for row in own if row.key.nccl == "2.29.2"]).kept == (2,)


def test_numbers_of_another_release_stay_as_they_are(fit):
    """With the rows of one, how releases differ and how fast they are cannot be told apart."""
    forms = fit["Forms"]("h100")
    keys = [fit["Key"]("2.28.9", "nccl-all-to-all", 4, 2**power) for power in range(12, 28)]
    numbers = fit["numbers_of_sends"](forms.known.sends)
    away = [number * 1.1 for number in numbers]
    rows = [fit["Measured"](key, us, "h100") for key, us in zip(keys, forms.exchanges(keys)(numbers), strict=True)]
    found = fit["fitted"](fit["problem_of"](forms.carriers["sends"], rows), away, (0.1, 0.05))
    assert found[2] == away[2]
    assert found[1] != away[1]


def test_repeats_lie_between_members_in_step_and_a_chunk_apart(fit):
    """16 MiB over two: repeats of NVIDIA's tables took 38.1 to 46.2 µs on GB300s, 38.8 to 48.3 on GB200s."""
    machine = fit["Machine"]("b200")
    wiring = machine.wiring(2)
    timing = wiring.generation.timing
    took = [fit["Exchanges"]([(wiring, 2**24)]).take(timing._replace(sends=timing.sends._replace(apart=apart)))[0]
            for apart in (0, 1)]  # fmt: skip
    assert took[0] < 38.1 < 48.3 < took[1]
    assert took == pytest.approx([37.4, 49.6], abs=0.5)


def test_the_script_needs_rows(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "rows" in capsys.readouterr().err
