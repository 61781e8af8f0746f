"""What may stand in `slow` and `jitter`, and what is said where it is wrong."""

import pytest
from support.scenarios import MINIMAL, SPINE, plain

from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from

GOOD = [
    {"gpu": 3, "factor": 0.5},
    {"node": 0, "factor": 0.8, "from": "10 h", "until": "12 h"},
    {"stage": 0, "factor": 2},
    {"link": "node0/nic0/out", "factor": 0.5, "latency": "5 us"},
    {"nic": "node0/nic0", "flap": "20 ms", "from": "1 s"},
]
NOISE = {"noise": {"period": "1 ms", "detour": "25 us"}}
LOGNORMAL = {"distribution": "lognormal", "sigma": 0.02}


@pytest.mark.parametrize(
    "jitter", ["none", LOGNORMAL, {**LOGNORMAL, **NOISE}, [LOGNORMAL, {**LOGNORMAL, "level": "rank"}]]
)
def test_what_is_written_out_reads_back(jitter):
    scenario = scenario_from(plain(slow=GOOD, jitter=jitter))
    assert scenario_from(to_mapping(scenario)) == scenario


def test_spells_are_whole_picoseconds():
    scenario = scenario_from(plain(slow=GOOD))
    assert [one.target for one in scenario.slow[:3]] == [("gpu", 3), ("node", 0), ("stage", 0)]
    assert scenario.slow[1].spell[:2] == (36_000 * 10**12, 43_200 * 10**12)
    assert scenario.slow[4].spell == (10**12, 102 * 10**10, 0)


def test_a_free_link_has_nothing_to_lose(problems):
    text = SPINE + "slow: [{link: gpu3/to/right, factor: 0.5}]\n"
    names = [line for line in problems(text) if "slow" in line]
    assert len(names) == 1


def test_mistakes_are_told_with_their_lines_beside_others(problems):
    text = MINIMAL + "slow:\n  - {gpu: 99, factor: 0.5}\n  - {gpu: 0, factor: 0}\nparallel: {pipeline: 9}\n"
    said = problems(text)
    assert said[0].startswith("5: slow[1].factor: expected a speed")
    assert said[1].startswith("6: parallel: 9 ranks")


def test_a_value_of_the_list_can_be_set(tmp_path):
    (tmp_path / "one.yaml").write_text(
        MINIMAL + "slow: [{gpu: 3, factor: 0.5}]\njitter: {distribution: normal, sigma: 0.1}\n"
    )
    scenario = load(tmp_path / "one.yaml", ["slow.0.gpu=5", "jitter.sigma=0.2"])
    assert (scenario.slow[0].gpu, float(scenario.jitter[0].options.sigma)) == (5, 0.2)
