"""Decode steps, prefill and room for cached tokens of an engine."""

import csv
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import SHARED

from hybrid_des import load
from hybrid_des.cost_model.decode import DecodeEfficiency, decode_costs
from hybrid_des.cost_model.decode_table import read_decode_table
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.scenario.sections.rl import DecodeEfficiency as Section
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.catalogue import model

DENSE = {"layers": 2, "hidden": 1024, "heads": 8, "kv_heads": 2, "ffn": 4096, "vocab": 1000, "sequence": 64}
SERVING = SHARED / "rl" / "serving_tpot.csv"
TABLE = "sequences,tokens,seconds\n8,8192,0.0112\n8,65536,0.0131\n64,65536,0.0174\n64,524288,0.0302\n"


@cache
def node_of(gpu):
    """The usual node of a GPU."""
    return load({"cluster": {"gpu": gpu}, "model": {"base": "qwen2.5-7b"}, "batch": 1}).cluster.kinds[0]


def costs(values, gpu="h100", **more):
    return decode_costs(model(values), node_of(gpu), **more)


def table_of(folder, text):
    file = folder / "steps.csv"
    file.write_text(text, encoding="utf-8")
    return read_decode_table(file)


def test_a_dense_step_is_the_sum_of_its_parts():
    """Each term by hand: weights that every token reads, the cache, launches, host, and sums over two ranks."""
    h, f, v, layers, tokens = 1024, 4096, 1000, 2, 4
    weights = layers * (h * h + 2 * h * 256 + h * h + 3 * h * f) + h * v
    sums = 2 * layers * (5.4e-6 + 2 * 2 * tokens * h * (2 - 1) / 2 / 450e9)
    step = 2 * weights / 2 / (0.95 * 3350e9) + layers * 29e-6 + 3.0e-3 + tokens * 4.1e-6 + sums
    engine = costs(DENSE, tensor=2)
    assert isclose(engine.step_ps(tokens), step * 1e12, rel_tol=1e-9)
    cached = layers * 2 * 2 * 256 / 2 / (0.95 * 3350e9)
    assert engine.token_ps == round(cached * 1e12)
    prompt = 2 * (weights - h * v) * 5000 / 2 / (0.49 * 989e12)
    assert isclose(engine.prefill_ps(5000), prompt * 1e12, rel_tol=1e-9)


def test_many_sequences_are_bound_by_products():
    engine, h = costs(DENSE), 1024
    weights = 2 * (2 * h * h + 2 * h * 256 + 3 * h * 4096) + h * 1000
    more = engine.step_ps(20_000) - engine.step_ps(10_000)
    assert isclose(more, 10_000 * (2 * weights / (0.49 * 989e12) + 4.1e-6) * 1e12, rel_tol=1e-9)


def test_experts_are_read_as_far_as_sequences_want_them():
    experts = {"count": 8, "active": 2, "ffn": 2048}
    engine, h = costs(DENSE | {"experts": experts}), 1024
    wanted = {b: 1 - (1 - 2 / 8) ** b for b in (1, 3)}
    whole = 2 * 8 * 3 * h * 2048 * 2 / (0.605 * 3350e9)
    assert isclose(
        engine.step_ps(3) - engine.step_ps(1), ((wanted[3] - wanted[1]) * whole + 2 * 4.1e-6) * 1e12, rel_tol=1e-7
    )


@given(b=st.integers(1, 300), held=st.integers(0, 10**6), first=st.integers(0, 5000), then=st.integers(0, 5000))
def test_a_stretch_cut_anywhere_lasts_as_long(b, held, first, then):
    engine = costs("qwen2.5-7b", tensor=4)
    whole = engine.stretch_ps(b, held, first + then)
    assert engine.stretch_ps(b, held, first) + engine.stretch_ps(b, held + first * b, then) == whole
    k = first + then
    assert whole == k * engine.step_ps(b) + engine.token_ps * (k * held + b * k * (k - 1) // 2)


@given(b=st.integers(1, 100), held=st.integers(0, 10**6), first=st.integers(0, 3000), then=st.integers(0, 3000))
def test_a_measured_stretch_may_be_cut_too(tmp_path_factory, b, held, first, then):
    table = table_of(tmp_path_factory.getbasetemp(), TABLE)
    engine = costs("qwen2.5-7b", efficiency=DecodeEfficiency(table=table))
    whole = engine.stretch_ps(b, held, first + then)
    assert engine.stretch_ps(b, held, first) + engine.stretch_ps(b, held + first * b, then) == whole


def test_a_measured_stretch_is_the_sum_of_its_steps(tmp_path):
    engine = costs("qwen2.5-7b", efficiency=DecodeEfficiency(table=table_of(tmp_path, TABLE)))
    steps = [engine.stretch_ps(30, 7000 + 30 * number, 1) for number in range(3000)]
    assert engine.stretch_ps(30, 7000, 3000) == sum(steps)


@pytest.mark.parametrize(
    ("sequences", "held", "seconds"),
    [
        (8, 8192, 0.0112),
        (8, 36864, 0.01215),
        (64, 524288, 0.0302),
        (36, 65536, (0.0131 + 0.0174) / 2),
        (4, 65536, 0.0131),
        (92, 65536, 0.0174 + (0.0174 - 0.0131) / 2),
    ],
)
def test_measured_steps_are_interpolated(tmp_path, sequences, held, seconds):
    engine = costs("qwen2.5-7b", efficiency=DecodeEfficiency(table=table_of(tmp_path, TABLE)))
    assert isclose(engine.stretch_ps(sequences, held, 1), seconds * 1e12, rel_tol=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sequences,seconds\n8,0.1\n", ":1: not a table of decode steps; expected the columns"),
        ("sequences,tokens,seconds\n", ":2: no row"),
        ("sequences,tokens,seconds\n8,0,0.1\n8,1e9,x\n", ":3: expected whole numbers"),
        ("sequences,tokens,seconds\n0,0,0.1\n", ":2: expected at least 1 sequence"),
        ("sequences,tokens,seconds\n8,0,-1\n", ":2: expected at least 1 sequence"),
        ("sequences,tokens,seconds\n8,0,0.1\n8,0,0.2\n", ":3: 8 sequences with 0 tokens have two times"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path, text, said):
    with pytest.raises(UsageError, match=r"steps\.csv") as error:
        table_of(tmp_path, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_efficiencies_of_a_scenario_are_those_of_the_formula(tmp_path):
    assert DecodeEfficiency.of(Section()) == DecodeEfficiency()
    table_of(tmp_path, TABLE)
    given = DecodeEfficiency.of(Section(reached="60 %", table=str(tmp_path / "steps.csv")))
    assert given.reached == 0.6
    assert given.table is not None
    assert given.table.pieces(8)[0].value == 11_200_000_000


def test_an_engine_at_half_speed_takes_twice_as_long(tmp_path):
    table = table_of(tmp_path, TABLE)
    for measured in (None, table):
        full, half = (
            costs("qwen3-30b-a3b", efficiency=DecodeEfficiency(table=measured, reached=share)) for share in (1.0, 0.5)
        )
        assert isclose(half.stretch_ps(17, 30_000, 50), 2 * full.stretch_ps(17, 30_000, 50), rel_tol=1e-6)
        assert isclose(half.prefill_ps(10**6), 2 * full.prefill_ps(10**6), rel_tol=1e-9)


def test_latent_attention_caches_one_vector_on_every_rank():
    """DeepSeek-V3: 512 + 64 elements of 2 bytes in each of 61 layers, however many tensor ranks there are."""
    for tensor in (8, 16):
        engine = costs("deepseek-v3", "h200", tensor=tensor, precision="fp8", memory_share=Fraction(9, 10))
        assert engine.token_ps >= round(61 * 576 * 2 / (0.95 * 4800e9) * 1e12)
    left = 16 * 0.9 * 141e9 - 671e9
    assert engine.kv_room == pytest.approx(left / 16 / (61 * 576 * 2), rel=0.05)


def test_keys_are_copied_where_ranks_outnumber_heads():
    four, eight = (costs("qwen2.5-14b", tensor=tensor) for tensor in (8, 40))
    assert four.token_ps == eight.token_ps


@pytest.mark.parametrize("written", ["megatron", "pytorch"])
def test_ranks_with_copies_do_as_with_heads_of_their_own(written):
    """Eight ranks read, compute and hold one head of keys each, whether there are eight of them or two."""
    few, many = (costs({**DENSE, "written": written, "kv_heads": heads}, tensor=8) for heads in (2, 8))
    for of in (lambda one: one.step_ps(4), lambda one: one.prefill_ps(5000), lambda one: one.kv_room):
        assert of(few) == of(many)


def test_room_is_memory_less_weights():
    engine = costs("llama3.1-8b", memory_share=Fraction(4, 5))
    assert engine.kv_room == int((0.8 * 80e9 - 2 * model("llama3.1-8b").parameters) / (32 * 2 * 8 * 128 * 2))
    assert costs("llama3.1-8b", tensor=2, data=2).kv_room == pytest.approx(
        4 * 0.8 * 80e9 / (32 * 2 * 8 * 128 * 2) - 2 * 2 * model("llama3.1-8b").parameters / (32 * 2 * 8 * 128 * 2),
        rel=1e-3,
    )


def test_states_of_linear_mixers_take_room_and_time():
    """Qwen3.5: 48 of 64 layers keep 48 heads of 128 × 128 elements of 4 bytes per sequence."""
    engine = costs("qwen3.5-27b", "h200", tensor=2)
    kept = 48 * 48 * 128 * 128 * 4 / 2
    assert engine.room(1) - engine.room(11) == pytest.approx(10 * kept / (16 * 2 * 2 * 2 * 256), rel=1e-3)
    more = (engine.step_ps(2) - engine.step_ps(1)) / 1e12
    assert more > 2 * kept / (0.95 * 4800e9)


def test_windows_keep_a_bounded_number_of_keys():
    """Half of GPT-OSS's layers attend to 128 tokens, so that a token adds to the cache of the others only."""
    engine = costs("gpt-oss-20b", "h100")
    assert engine.token_ps == round(12 * 2 * 8 * 64 * 2 / (0.95 * 3350e9) * 1e12)
    assert engine.state == 128


def test_all_reduces_across_nodes_take_the_adapters():
    """Sixteen tensor ranks on nodes of eight: 2·80 all-reduces of 8192 elements at 50 GB/s and not at 450."""
    inside, across = (costs("llama3.1-70b", tensor=tensor) for tensor in (8, 16))
    sent = 2 * 80 * 2 * 2 * 8192
    assert inside.sequence == pytest.approx(4.1e-6 + sent * 7 / 8 / 450e9, rel=1e-9)
    assert across.sequence == pytest.approx(4.1e-6 + sent * 15 / 16 / 50e9, rel=1e-9)


def test_given_all_reduces_replace_those_of_the_formula():
    """Of 2·80 all-reduces, each takes what is given for its bytes; with 24 sequences, halfway between 16 and 32."""
    given = {16: 50e-6, 32: 90e-6}
    named = {sequences * 2 * 8192: seconds for sequences, seconds in given.items()}
    reached = DecodeEfficiency(all_reduce=named.__getitem__)
    across = costs("llama3.1-70b", tensor=16, efficiency=reached)
    formula = costs("llama3.1-70b", tensor=16)
    alpha, sent = 2 * 80 * 5.4e-6, 2 * 80 * 2 * 2 * 8192 * 15 / 16 / 50e9
    for sequences, seconds in ((16, 50e-6), (24, 70e-6), (32, 90e-6)):
        less = (formula.step_ps(sequences) - across.step_ps(sequences)) / PICOSECONDS_PER_SECOND
        assert less == pytest.approx(alpha + sequences * sent - 2 * 80 * seconds, abs=2e-12)
    longer = costs("llama3.1-70b", tensor=16, efficiency=replace(reached, across=3.0))
    assert longer.step_ps(24) - across.step_ps(24) == pytest.approx(2 * 2 * 80 * 70e-6 * PICOSECONDS_PER_SECOND, abs=2)
    slower = costs("llama3.1-70b", tensor=16, efficiency=replace(reached, reached=0.5))
    assert slower.step_ps(24) == pytest.approx(2 * across.step_ps(24), abs=2)


def test_data_ranks_divide_sequences_but_not_weights():
    alone, two = costs("qwen2.5-7b"), costs("qwen2.5-7b", data=2)
    assert two.step_ps(16) == alone.step_ps(8)
    assert two.prefill_ps(1000) * 2 == pytest.approx(alone.prefill_ps(1000), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "more", "said"),
    [
        ("llama3.1-70b", {}, "weights of 141.1 GB per GPU leave no room for a cached token in its 64 GB"),
        ("qwen2.5-7b", {"tensor": 8}, "28 heads cannot be divided over 8 tensor ranks"),
        ("qwen2.5-7b", {"expert": 2, "tensor": 2}, "no experts"),
        ("qwen3-30b-a3b", {"expert": 3, "tensor": 2}, "2 ranks of a replica cannot be divided into 3 groups"),
        ("deepseek-v3.2", {"tensor": 8}, "attention to selected or compressed keys"),
        ("bert-large", {}, "attention to later tokens"),
        ("resnet-50", {}, "expected one on sequences"),
        ("nemotron-h-56b", {"precision": "nvfp4", "gpu": "h100"}, "peak in nvfp4 of GPU h100 is not known"),
    ],
)
def test_what_no_engine_can_do_is_refused_in_one_line(values, more, said):
    with pytest.raises(Refusal) as error:
        costs(values, **more)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not SERVING.exists(), reason="the rows are not part of the project")
def test_published_token_times_are_met_within_thirteen_percent():
    """A row's time per token is that of its steps, and of the prompts that join meanwhile: as many as end."""
    names = {"MiniMaxAI/MiniMax-M2.5": "minimax-m2.5", "meta-llama/Llama-3.1-70B": "llama3.1-70b"}
    errors = []
    with SERVING.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            engine = costs(
                names[row["model_path"]], row["system"].partition("_")[0], tensor=int(float(row["tp_size"])),
                precision=row["precision"], memory_share=Fraction(95, 100),
                efficiency=DecodeEfficiency(cache=1 if row["backend"] == "trtllm" else 2),
            )  # fmt: skip
            b, prompt, steps = (int(float(row[key])) for key in ("batch_size", "isl", "osl"))
            token = (engine.stretch_ps(b, b * prompt, steps) + b * engine.prefill_ps(prompt)) / steps
            errors.append(token / 1e9 / float(row["silicon_tpot_ms"]) - 1)
    assert sum(map(abs, errors)) / len(errors) <= 0.13
    assert abs(sum(errors) / len(errors)) <= 0.02
