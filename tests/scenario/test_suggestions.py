"""Suggestions: what people type, and what they meant."""

import pytest
from support.scenarios import scenario

from hybrid_des.analysis.counterfactual.what_if import override_of
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.files import read_text
from hybrid_des.scenario.loading import load
from hybrid_des.units import parse_quantity


@pytest.mark.parametrize(
    ("typed", "dimension", "same"),
    [
        ("400 Gbps", "bandwidth", "400 Gb/s"), ("800Gbps", "bandwidth", "800 Gb/s"), ("50GBps", "bandwidth", "50 GB/s"),
        ("25 GiBps", "bandwidth", "25 GiB/s"), ("100 Mbps", "bandwidth", "100 Mb/s"),
        ("312 TFLOPS", "compute", "312 TFLOP/s"),
    ],
)  # fmt: skip
def test_units_that_people_type_are_read(typed, dimension, same):
    assert parse_quantity(typed, dimension) == parse_quantity(same, dimension)


@pytest.mark.parametrize(
    ("typed", "said"), [("400 gbps", "expected GBps or Gbps"), ("400 GB/S", "expected GB/s or Gb/s")]
)
def test_units_in_another_case_are_suggested(typed, said):
    with pytest.raises(ValueError, match="unknown unit") as caught:
        parse_quantity(typed, "bandwidth")
    assert str(caught.value).endswith(said)


SMALL = "schedule: {kind: gpipe, microbatches: 1}\nworkload: {forward: 1 s, backward: 1 s}\n"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("infiniband.bandwidth=2", 'unknown "infiniband"; did you mean "cluster.infiniband"?'),
        ("gpu=h100", 'unknown "gpu"; did you mean "cluster.gpu"?'),
        ("cluster.in_switch=true", 'unknown "in_switch"; did you mean "nvlink.in_switch"?'),
        ("sharding=fsdp", 'unknown "fsdp"; did you mean "zero-3"?'),
        ("sharding=FULL_SHARD", 'unknown "FULL_SHARD"; did you mean "zero-3"?'),
        ("sharding=distributed_optimizer", 'unknown "distributed_optimizer"; did you mean "zero-1"?'),
        ("fsdp=true", 'unknown "fsdp"; did you mean "sharding: zero-3"?'),
    ],
)
def test_a_key_of_another_section_is_found(write, override, said):
    with pytest.raises(ScenarioError) as caught:
        load(write(SMALL, "a.yaml"), [override])
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("infiniband", 'unknown "infiniband"; did you mean "cluster.infiniband.bandwidth"?'),
        ("nvlink", 'did you mean "cluster.nvlink.bandwidth"?'),
        ("links", "expected links.bandwidth, link.NAME.bandwidth, rank.N.time or kind.B.time"),
        ("cluster.infiniband", "a section, of which a number can be scaled: bandwidth, latency, nics_per_node"),
    ],
)
def test_a_what_if_of_a_link_is_told_its_key(key, said):
    with pytest.raises(UsageError) as caught:
        override_of(key, "2x", scenario(), f"--what-if {key}=2x")
    assert str(caught.value).endswith(said)


def test_a_misspelled_file_is_suggested(write, tmp_path):
    file = write(SMALL, "first.yaml")
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path / "fisrt.yaml")
    assert str(caught.value) == f'{tmp_path / "fisrt.yaml"}: no such file; did you mean "{file}"?'
    with pytest.raises(UsageError) as caught:
        read_text(tmp_path / "first.yml")
    assert str(caught.value).endswith(f'; did you mean "{file}"?')
    with pytest.raises(UsageError) as caught:
        read_text(tmp_path / "other.csv")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["scenarios/a100_8.yaml", "a100_8.yaml"])
def test_a_misspelled_shipped_file_is_suggested(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match=r'did you mean "scenarios/a100_8x\.yaml"'):
        load(name)
