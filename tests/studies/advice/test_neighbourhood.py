"""Which plans are tried: two moves away, from those that a framework has."""

import pytest

from hybrid_des import advise, load

NARROW = {  # of 80 GB, 79.3 are held: a quicker schedule fits only if something else holds less
    "cluster": {"gpu": "h100", "nodes": 16},
    "model": {
        "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000, "sequence": 4096,
        "written": "megatron",
    },
    "parallel": {"tensor": 2, "pipeline": 8, "sequence": True, "data": 8},
    "batch": 1024,
    "schedule": {"kind": "1f1b", "p2p": "blocking"},
    "sharding": "zero-1",
    "overlap": {"parameters": True},
    "gradients": {"pad": True, "overlap": True, "bucket_rule": "megatron"},
}  # fmt: skip


@pytest.mark.slow
def test_second_moves_begin_from_plans_that_the_framework_has():
    """Not from ZB-V alone, which Megatron-LM does not run: 20 virtual stages with gradients in bf16 are as quick."""
    advice = advise(load(NARROW))
    assert advice.framework == "Megatron-LM"
    first = advice.lines[0]
    assert first.settings["schedule.kind"] == "interleaved-1f1b"
    assert not any("not in Megatron-LM" in remark for remark in first.remarks)


def test_short_documents_do_not_hide_what_helps():
    """A step of documents that fill a tenth of their samples takes less than any bound on full ones."""
    scenario = {
        "cluster": {"gpu": "h100", "nodes": 1},
        "model": {"base": "llama3.1-8b", "layers": 4, "sequence": 8192, "written": "megatron"},
        "parallel": {"tensor": 2, "sequence": True, "data": 4},
        "batch": 32,
        "schedule": {"kind": "1f1b"},
        "recompute": "full",
        "data": {"lengths": {"kind": "lognormal", "mean": 600, "sigma": 1, "max": 8192}, "packing": "greedy"},
    }
    first, *_ = advise(scenario).lines
    assert "no recompute" in first.words
