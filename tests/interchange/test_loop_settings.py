"""Settings that a run prints: every form of them, each value with its line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid_des.interchange.loops.log_lines import lines_of
from hybrid_des.interchange.loops.settings import settings_in
from hybrid_des.interchange.loops.spread import from_deviation, from_largest, from_share

MAPPING = """noise {not a mapping}
(Runner pid=1) {'a': {'b': 1, 'c': 'x {y'},
(Runner pid=2) other output: 3
(Runner pid=1)  'd': [1, 2],
(Runner pid=1)  'e': <Kind.two: 2>, 'f': None}
"""
CALL = "config: Master(cluster={'num_nodes': 4}, policy=Policy(name='q', size=8), grpo={'a': 1})\n"
YAML = "start\nrun:\n  nodes: 4\n  name: x\n  list: [1, 2]\n  deep:\n    on: true\nlast: 2.5\ndone!\n"
ARGUMENTS = """--- arguments ---
  batch_size ............................... 512
  backend ............................... AttnBackend.flash
  lr .............................................. 1e-06
  swiglu .......................................... True
"""
MAPPING_IN_A_LINE = "{'a': 1, 'b': {'c': 2}, 'd': 3, 'e': '${b.c}'}"
ATTRIBUTES = "GRPOConfig(\nnum_generations=8,\noutput_dir=out/a,\nbf16=True,\nlr=1e-06,\n)\n"
COMMAND = "+ python3 -m verl.trainer.main_ppo a.n=4 a.m=$X \\\n   b.c=two --flag-d 7\n"


def found(tmp_path, text):
    file = tmp_path / "run.log"
    file.write_text(text)
    settings = settings_in([*lines_of(file)])
    return {key: (setting.value, setting.line) for key, setting in settings.items() if not key.startswith("program.")}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (MAPPING, {"a.b": (1, 2), "a.c": ("x {y", 2), "d": ([1, 2], 4), "e": (None, 5), "f": (None, 5)}),
        (CALL, {"cluster.num_nodes": (4, 1), "policy.name": ("q", 1), "policy.size": (8, 1), "grpo.a": (1, 1)}),
        (YAML, {"run.nodes": (4, 3), "run.name": ("x", 4), "run.deep.on": (True, 7), "last": (2.5, 8)}),
        (ARGUMENTS, {"batch_size": (512, 2), "backend": ("flash", 3), "lr": (1e-6, 4), "swiglu": (True, 5)}),
        (ATTRIBUTES, {"num_generations": (8, 2), "output_dir": ("out/a", 3), "bf16": (True, 4), "lr": (1e-6, 5)}),
        (f"[0] {MAPPING_IN_A_LINE} was read", {"a": (1, 1), "b.c": (2, 1), "d": (3, 1), "e": (2, 1)}),
        (COMMAND, {"a.n": (4, 1), "b.c": ("two", 1), "flag_d": (7, 1)}),
    ],
    ids=["mapping", "call", "yaml", "arguments", "attributes", "reference", "command"],
)  # fmt: skip
def test_settings_have_values_and_lines(tmp_path, text, wanted):
    assert found(tmp_path, text) == wanted


def test_a_configuration_counts_above_its_command(tmp_path):
    config = "{'a': {'n': 8, 'm': 2}, 'b': {'c': 'two'}, 'e': 1, 'f': 2}\n"
    assert found(tmp_path, COMMAND + config)["a.n"] == (8, 3)


@pytest.mark.parametrize("text", ["{'a': 1, 'b': 2, 'c': 3,\n 'd': 4", "{'a': 1, 'b': 2, 'c': 3, 'd': +}\n", "(" * 99])
def test_what_is_no_configuration_is_passed_over(tmp_path, text):
    assert found(tmp_path, text) == {}


def test_aliases_of_yaml_make_no_text_huge(tmp_path):
    lines = ["a0: &a0 {x: 1, y: 2}", *(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40))]
    assert len(found(tmp_path, "\n".join(lines) + "\n")) <= 20_000


def test_colours_bars_and_writers_are_left_out(tmp_path):
    file = Path(tmp_path / "run.log")
    file.write_bytes(b"  3%|#  | 3/99\r  4%|#  | 4/99\n\x1b[36m(Trainer pid=7, ip=1.2.3.4)\x1b[0m step:1\n[rank0]: x")
    lines = [(line.number, line.writer, line.text, line.whole) for line in lines_of(file)]
    assert lines == [
        (1, "", "  3%|#  | 3/99", True),
        (1, "", "  4%|#  | 4/99", True),
        (2, "(Trainer pid=7, ip=1.2.3.4)", "step:1", True),
        (3, "[rank0]:", "x", False),
    ]


def cut(sigma, median, cap):
    """Lengths at equal steps of probability, cut at a cap."""
    normal = np.random.default_rng(1).standard_normal(400_000)
    return np.minimum(cap, median * np.exp(sigma * np.concatenate([normal, -normal])))


@given(st.floats(0.2, 2.5), st.floats(0.02, 0.9))
def test_sigma_follows_from_the_share_at_the_cap(sigma, part):
    lengths = cut(sigma, part * 8192, 8192)
    share = float(np.mean(lengths == 8192))
    assume(0.002 < share < 0.9)
    assert from_share(float(lengths.mean()), 8192, share) == pytest.approx(sigma, rel=0.05)


@given(st.floats(0.2, 1.5), st.floats(0.02, 0.5))
def test_sigma_follows_from_the_deviation_after_the_cut(sigma, part):
    lengths = cut(sigma, part * 8192, 8192)
    assert from_deviation(float(lengths.mean()), float(lengths.std()), 8192) == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0])
def test_sigma_follows_from_the_longest_of_steps(sigma):
    steps = np.exp(sigma * np.random.default_rng(2).standard_normal((400, 1024)))
    longest = float(np.exp(np.log(steps.max(axis=1)).mean()))
    assert from_largest(float(steps.mean()), longest, 1024) == pytest.approx(sigma, rel=0.03)


def test_lengths_without_a_lognormal_have_no_sigma():
    assert from_share(100, 8192, 0.5) is None  # those at the cap alone are more
    assert from_share(8192, 8192, 0.5) is None
    assert from_share(100, 8192, 0) is None
    assert from_deviation(5000, 5000, 8192) is None
    assert from_largest(100, 90, 64) is None
    assert from_largest(1, 1e9, 8) is None
