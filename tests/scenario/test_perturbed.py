"""What may stand in `slow` and `jitter`, and what is said where it is wrong."""

import pytest
from support.scenarios import MINIMAL, SPINE, plain

from hybrid_des.errors import ScenarioError
from hybrid_des.scenario import load, scenario_from, to_mapping

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


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"gpu": 8, "factor": 0.5}, "slow[0].gpu: there is no gpu 8; the cluster has GPUs 0 … 7"),
        ({"node": 1, "factor": 0.5}, "slow[0].node: there is no node 1; the cluster has nodes 0 … 0"),
        ({"stage": 1, "factor": 0.5}, "slow[0].stage: there is no stage 1; the pipeline has stages 0 … 0"),
        (
            {"link": "node0/nic0/ou", "factor": 0.5},
            'slow[0].link: unknown "node0/nic0/ou"; did you mean "node0/nic0/out"?',
        ),
        ({"link": "cable", "factor": 0.5}, 'slow[0].link: unknown "cable"; expected such as node0/gpu0/nvlink-out'),
        ({"nic": "node0/nic9", "factor": 0.5}, 'slow[0].nic: unknown "node0/nic9"; did you mean "node0/nic'),
        (
            {"gpu": 0, "factor": 0},
            "slow[0].factor: expected a speed relative to the usual, more than 0, such as 0.5, found 0",
        ),
        (
            {"gpu": 0, "factor": -1},
            "slow[0].factor: expected a speed relative to the usual, more than 0, such as 0.5, found -1",
        ),
        ({"gpu": 0, "facter": 1}, 'slow[0].facter: unknown "facter"; did you mean "factor"?'),
        ({"gpu": 0}, "slow[0]: expected a factor such as 0.5"),
        ({"nic": "node0/nic0"}, "slow[0]: expected a factor such as 0.5, a latency or a flap"),
        ({"factor": 0.5}, "slow[0]: expected one of gpu, node, stage, link, nic, found none"),
        (
            {"gpu": 0, "node": 0, "factor": 1},
            "slow[0]: expected one of gpu, node, stage, link, nic, found gpu and node",
        ),
        ({"gpu": 0, "factor": 1, "from": 3, "until": 3}, "slow[0].until: the interval ends at 3 s, but begins at 3 s"),
        ({"gpu": 0, "flap": 1}, "slow[0].flap: is read for a link or nic, not for a gpu"),
        ({"stage": 0, "factor": 1, "latency": 1}, "slow[0].latency: is read for a link or nic, not for a stage"),
        ({"nic": "node0/nic0", "flap": 0}, "slow[0].flap: must be more than 0"),
        ({"nic": "node0/nic0", "flap": 1, "factor": 0.5}, "slow[0].factor: cannot be combined with `flap`"),
        ({"gpu": 0, "factor": 1, "from": -1}, "slow[0].from: -1 is negative; expected a time such as 50 ms"),
    ],
)
def test_a_wrong_item_is_one_line(item, said):
    with pytest.raises(ScenarioError) as error:
        scenario_from(plain(slow=[item]))
    (line,) = error.value.problems
    assert line.startswith(f"scenario: {said}")


@pytest.mark.parametrize(
    ("jitter", "said"),
    [
        (5, "jitter: expected a mapping, found 5"),
        ({}, "jitter.distribution: is required, one of bernoulli, exponential, lognormal, normal, uniform"),
        ({"distribution": "lognrmal"}, 'jitter.distribution: unknown "lognrmal"; did you mean "lognormal"?'),
        ({"distribution": "lognormal"}, "jitter.sigma: is required by lognormal"),
        ({**LOGNORMAL, "p": 0.1}, "jitter.p: is not read by lognormal; read by bernoulli"),
        ({**LOGNORMAL, "level": "step"}, 'jitter.level: unknown "step"; did you mean "rank-step"?'),
        ({**LOGNORMAL, "sigma": 11}, "jitter.sigma: must be at most 10, not 11"),
        ({"distribution": "uniform", "spread": 1.5}, "jitter.spread: must be from 0 to 1, not 1.5"),
        ([LOGNORMAL, {"distribution": "normal"}], "jitter[1].sigma: is required by normal"),
        ([NOISE, NOISE], "jitter: found more than one `noise`; expected one at most"),
        (
            {"noise": {"period": "1 ps", "detour": "0.6 ps"}},
            "jitter.noise.detour: must be more than 0 and less than the period",
        ),
        ({"noise": {"period": 1, "detour": 1}}, "jitter.noise.detour: must be more than 0 and less than the period"),
    ],
)
def test_wrong_jitter_is_one_line(jitter, said):
    with pytest.raises(ScenarioError) as error:
        scenario_from(plain(jitter=jitter))
    assert error.value.problems == (f"scenario: {said}",)


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
