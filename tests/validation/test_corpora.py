"""The shipped corpora: their rows, how many numbers are fitted, and errors on rows that ship beside them."""

import json

import pytest
import yaml
from support.paths import SCENARIOS

from hybrid_des.errors import ScenarioError
from hybrid_des.scenario import read_scenario, scenario_of
from hybrid_des.sweep import load_sweep
from hybrid_des.sweep.runner import with_case
from hybrid_des.validation.corpus import check_corpus

FOLDER = SCENARIOS / "validation"
CORPORA = sorted(FOLDER.glob("*.yaml"))
MOST_FITTED = {
    "vtrain_multi_node": 2, "korthikanti": 0, "megatron_2021": 0, "zero_bubble": 0, "h100_bf16": 2, "h100_fp8": 3,
    "b200_dense": 2, "fsdp_a100_40gb": 4, "fsdp_a100_80gb": 4, "fsdp_h100": 4,
}  # fmt: skip
FACTS = ("parameters",)  # of `overlap`: what is done, not how well


def test_every_corpus_has_its_limit():
    assert {file.stem for file in CORPORA} == set(MOST_FITTED)


@pytest.mark.parametrize("file", CORPORA, ids=lambda file: file.stem)
def test_few_numbers_are_fitted(file):
    own = yaml.safe_load(file.read_text())
    numbers = [key for section in ("efficiency", "overlap") for key in own.get(section, {}) if key not in FACTS]
    assert len(numbers) <= MOST_FITTED[file.stem]


@pytest.mark.parametrize("file", CORPORA, ids=lambda file: file.stem)
def test_every_row_is_a_valid_scenario(file):
    try:
        sweep = load_sweep(file)
    except ScenarioError as error:
        assert "no such file" in str(error)
        pytest.skip("its rows are not part of this repository")
    check_corpus(sweep)
    for case in sweep.cases():
        assert scenario_of(with_case(sweep.document, case)).model is not None


def test_numbers_carry_over_unchanged():
    fitted = read_scenario(FOLDER / "vtrain_multi_node.yaml").value["efficiency"]
    for name in ("korthikanti", "megatron_2021", "zero_bubble"):
        assert read_scenario(FOLDER / f"{name}.yaml").value["efficiency"] == fitted


def test_short_pipelines_of_zero_bubble_are_predicted(run):
    where = "schedule.microbatches == 24 and schedule.kind in ('1f1b', 'interleaved-1f1b')"
    found = json.loads(run("validate", FOLDER / "zero_bubble.yaml", "--where", where, "--json", "--jobs", "1")[1])
    assert found["failed"] == []
    assert found["step_time_s"]["n"] == 2
    assert found["step_time_s"]["worst_error_percent"] < 7
    assert found["peak_memory_bytes"]["worst_error_percent"] < 5
