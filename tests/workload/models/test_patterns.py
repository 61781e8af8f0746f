"""Kinds of blocks and their pattern: counts against published totals, and laws that every mixer keeps."""

import pickle
from fractions import Fraction
from typing import get_args

import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st
from support.campaigns import thinned
from support.catalogue import TRANSFORMERS, kinds_in_other_words, shallowest
from support.counting import Counting, counted
from support.tables import from_table

from hybrid_des import costs, load, simulate
from hybrid_des.analysis.experience_table import Likeness
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.errors import Refusal, ScenarioError
from hybrid_des.options import Section
from hybrid_des.scenario.export import to_mapping
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.kinds import checks
from hybrid_des.workload.models.kinds.pattern import expanded as names_in
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.mixers import registration as mixers
from hybrid_des.workload.models.operations import Attention, Gemm, Scan, Scores, SelectiveAttention

BASE = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 96, "sequence": 64}
EXPERTS = {"count": 8, "active": 2, "ffn": 32}
LATENT = {"query": 24, "key_value": 16, "nope": 8, "rope": 8, "value": 8}
INDEXER = {"heads": 4, "size": 8, "top": 16}
COMPRESSED = {"size": 32, "rope": 8, "query": 16, "out_groups": 4, "out_rank": 8, "window": 8}
SELECTED = {"ratio": 4, "overlap": True, "indexer": {"heads": 2, "size": 8, "top": 4}}
MAMBA = {"heads": 8, "head_size": 16, "groups": 4, "state": 32, "chunk": 64}


def scenario(values, **sections):
    cluster = {"gpu": "h100", "gpus_per_node": 8}
    return {"cluster": cluster, "model": values, "schedule": {"kind": "1f1b", "microbatches": 4}} | sections


def product(values, name, place=1):
    """Shape of a product of a block."""
    one = next(one for one in model(values).layers[place].operations if one.name == name and isinstance(one, Gemm))
    return one.k, one.n, one.split


@pytest.mark.parametrize("name", thinned(TRANSFORMERS, slow=set(TRANSFORMERS) - shallowest()))
def test_kinds_in_other_words_are_the_same_model(name):
    said = kinds_in_other_words(name)
    assert model(said).layers == model(name).layers
    assert model({**said, "written": "pytorch"}).layers == model({"base": name, "written": "pytorch"}).layers


def test_a_step_of_one_kind_takes_as_long():
    parallel = {"pipeline": 2, "tensor": 2, "data": 2, "expert": 2}
    values = {**BASE, "experts": EXPERTS}
    assert step(values, parallel=parallel) == step({**values, "kinds": {"a": {}}, "pattern": "a*2"}, parallel=parallel)


QUICK = ("llama3-8b", "glm-4.5-air", "nemotron-3-nano-30b-a3b")
UNCUT = ("falcon-h1-7b", "gemma-4-e2b", "gemma-4-e4b", "gpt2-xl")  # heads or groups of 1 or 25, keys of other stages


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS]
)
def test_a_step_in_other_words_takes_as_long(name):
    parallel = {"data": 2} if name in UNCUT else {"pipeline": 2, "tensor": 2, "sequence": True, "stages": "balanced"}
    more = {"parallel": parallel, "efficiency": {"lightning": 0.05}}
    assert step(kinds_in_other_words(name), **more) == step({"base": name}, **more)


def step(values, **sections):
    """Time and memory of a step."""
    summary = simulate(scenario(values, **sections)).summary
    return summary["step_time_s"], summary["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("pattern", "order"),
    [
        ("a b", "ab"),
        ("a*3 b", "aaab"),
        ("(a*2 b)*2", "aabaab"),
        ("((a b)*2 c)*2 a", "ababcababca"),
        ("a(b)*2a", "abba"),
    ],
)
def test_patterns_repeat_names_and_groups(pattern, order):
    assert "".join(names_in(pattern)) == order


def test_a_short_pattern_repeats_and_a_list_is_the_same():
    kinds = {"w": {"window": 16}, "f": {}}
    layers = [model({**BASE, "kinds": kinds, "pattern": each}).layers for each in ("w f", ["w", "f"], "w f w f")]
    assert layers[0] == layers[1] == layers[2]
    windows = [one.window for layer in layers[0] for one in layer.operations if isinstance(one, Attention)]
    assert windows == [16, None, 16, None]


def test_kinds_change_keys_one_by_one():
    kinds = {"a": {"experts": {"ffn": 16}}, "d": {"experts": "none"}}
    own = model({**BASE, "experts": EXPERTS, "kinds": kinds, "pattern": "a d"})
    assert own.layers[1].routing == model({**BASE, "experts": EXPERTS}).layers[1].routing
    assert own.layers[1].parameters.expert == 8 * 3 * 64 * 16
    assert own.layers[2].operations == model(BASE).layers[1].operations


def test_scenarios_with_kinds_are_written_and_read():
    kinds = {"a": {"experts": {"ffn": 16}}, "d": {"experts": "none", "ffn": 96}, "n": {"mixer": "none"}}
    found = load(scenario({**BASE, "experts": EXPERTS, "kinds": kinds, "pattern": "a d n d"}))
    assert load(to_mapping(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found  # as processes of a sweep get it
    assert found.parallel.stages == "balanced"


def test_every_size_of_a_mixer_is_checked():
    assert {mixers.find(name).facts["sizes"] for name in mixers.names()} - {None} == {*checks.SIZES}


def test_attention_in_pieces_meets_half_of_a_piece():
    def flop(**more):
        layer = model({**BASE, **more}).layers[1]
        return next(one.flop for one in layer.operations if isinstance(one, Attention))

    assert flop(attention_chunk=16) == flop() * Fraction(16, 64)
    assert flop(attention_chunk=48) == flop() * Fraction(48 * 48 + 16 * 16, 64 * 64)
    assert flop(attention_chunk=64) == flop(attention_chunk=2**20) == flop()


def test_variants_of_attention_have_their_products():
    sizes = {**BASE, "kv_heads": 2, "head_size": 16}
    joined = "queries, keys, values"
    assert product(sizes, joined) == (64, 64 + 2 * 32, "columns")
    assert product({**sizes, "gate": "element"}, joined) == (64, 2 * 64 + 2 * 32, "columns")
    assert product({**sizes, "gate": "head"}, joined) == (64, 64 + 4 + 2 * 32, "columns")
    assert product({**sizes, "keys_values": "one"}, joined) == (64, 64 + 32, "columns")
    assert product({**sizes, "value_size": 8}, joined) == (64, 64 + 32 + 16, "columns")
    assert product({**sizes, "value_size": 8}, "attention output") == (32, 64, "rows")
    shared = {"kinds": {"a": {}, "s": {"keys_values": "shared"}}, "pattern": "a s s s"}
    assert product({**sizes, **shared}, joined, place=2) == (64, 64, "columns")
    assert [layer.shares for layer in model({**sizes, **shared}).layers[1:5]] == [None, 0, 0, 0]


def test_blocks_of_one_half_have_one_norm_and_one_residual():
    def block(**more):
        return model({**BASE, "kinds": {"x": more, "y": {}}, "pattern": "x y"}).layers[1]

    whole, mixing, feeding = block(), block(ffn="none"), block(mixer="none")
    moved = [next(one for one in each.operations if one.name.startswith("norms")) for each in (whole, mixing, feeding)]
    assert [one.forward for one in moved] == [22 * 64, 11 * 64, 11 * 64]
    assert mixing.parameters + feeding.parameters == whole.parameters
    assert mixing.kept + feeding.kept == whole.kept
    assert (whole.halves, mixing.halves, feeding.halves) == (2, 1, 1)
    assert block(parallel=True).halves == 1


def test_tensor_ranks_exchange_once_per_half():
    kinds = {"x": {"ffn": "none"}, "y": {}}
    parallel = {"tensor": 2, "sequence": True}
    found = load(scenario({**BASE, "kinds": kinds, "pattern": "x y"}, parallel=parallel))
    one, both = (counted(found, place).forward for place in (1, 2))
    assert [each.repeats for each in one] == [1, 1] and [each.repeats for each in both] == [2, 2]


@pytest.mark.parametrize(
    ("kv_heads", "sizes"), [(4, []), (2, [(64 + 2 * 2 * 16) * 2 * 64]), (1, [(64 + 2 * 16) * 2 * 64])]
)
def test_more_ranks_than_keys_gather_results_of_a_product(kv_heads, sizes):
    """They divide the rows of queries, keys and values evenly, and each then takes those of its heads."""
    found = load(scenario({**BASE, "kv_heads": kv_heads}, parallel={"tensor": 4}))
    layer = counted(found, 1)
    assert [one.size for one in layer.forward if one.does == "all-gather"] == sizes
    assert [one.size for one in layer.backward if one.does == "reduce-scatter"] == sizes


VARIANTS = {
    "plain": {}, "gated": {"gate": "element"}, "heads gated": {"gate": "head"}, "sinks": {"sinks": True},
    "narrow": {"value_size": 8}, "one": {"keys_values": "one"}, "layer norms": {"qk_norm": "layer"},
    "few keys": {"kv_heads": 2}, "one key": {"kv_heads": 1, "qk_norm": True},
    "window": {"window": 16}, "pieces": {"attention_chunk": 16}, "norms": {"norms": 4}, "parallel": {"parallel": True},
    "latent": {"latent": LATENT},
    "mixing only": {"ffn": "none"}, "MLP only": {"mixer": "none"}, "relu2": {"mlp": "relu2"}, "geglu": {"mlp": "geglu"},
    "experts": {"experts": EXPERTS}, "shared": {"experts": {**EXPERTS, "shared_ffn": 48, "shared_gate": True}},
    "latent experts": {"experts": {**EXPERTS, "latent": 16}}, "beside": {"experts": EXPERTS, "beside": True},
    "experts only": {"experts": EXPERTS, "mixer": "none"}, "vectors": {},
    "mamba2": {"mixer": "mamba2", "mamba": MAMBA}, "scan only": {"mixer": "mamba2", "mamba": MAMBA, "ffn": "none"},
    "delta": {"mixer": "delta", "delta": {"key_heads": 4, "value_heads": 8, "key_size": 16, "value_size": 8}},
    "kda": {"mixer": "kda", "kda": {"heads": 8, "size": 16}},
    "kda, full gate": {"mixer": "kda", "kda": {"heads": 8, "size": 16, "full_gate": True}},
    "lightning": {"mixer": "lightning", "lightning": {"heads": 8, "size": 16}},
    "conv": {"mixer": "conv", "conv": {"width": 3}},
    "indexer": {"latent": LATENT, "indexer": INDEXER},
    "short of keys": {"latent": LATENT, "indexer": {**INDEXER, "top": 128}},
    "reused": {"latent": LATENT, "indexer": {**INDEXER, "reused": True}},
    "window and one key": {"mixer": "compressed", "compressed": COMPRESSED},
    "compressed": {"mixer": "compressed", "compressed": {**COMPRESSED, "ratio": 8}},
    "selected": {"mixer": "compressed", "compressed": {**COMPRESSED, **SELECTED}}, "streams": {},
    "side by side": {"mixer": ["attention", "mamba2"], "mamba": MAMBA},
}  # fmt: skip
MODEL_WIDE = {"vectors": {"layer_vectors": 16}, "streams": {"streams": 4}}


def copied(operation):
    """Whether every tensor rank does all of an operation."""
    return isinstance(operation, Scores) or (isinstance(operation, Gemm) and operation.split == "none")


RANKS = [1, 2, 4], [1, 2], [1, 2]  # tensor, context, expert


@given(st.sampled_from(sorted(VARIANTS)), *map(st.sampled_from, RANKS))
def test_ranks_do_the_work_of_a_layer_together(name, tensor, context, expert):
    check_ranks({**BASE, **MODEL_WIDE.get(name, {})}, VARIANTS[name], tensor, context, expert)


SIZES = {"heads": int, "head_size": int}  # of a mixer that has no sizes of its own


@given(st.data(), st.sampled_from(mixers.names()), *map(st.sampled_from, RANKS[:2]))
def test_ranks_share_every_mixer_of_any_sizes(data, name, tensor, context):
    """Whatever is registered as a mixer; sizes that do not fit each other or the ranks are refused, and drawn again."""
    key = mixers.find(name).facts["sizes"]
    fields = Block.model_fields[key].annotation if key else None
    sizes = data.draw(any_sizes(SIZES if fields is None else section_of(fields)))
    kind = {"mixer": name, **({key: sizes} if key else sizes)}
    try:
        check_ranks(BASE, kind, tensor, context)
    except (ModelRefusal, ScenarioError):
        assert len({*sizes.values()}) > 1  # equal sizes of 8 and more fit each other and the ranks
        reject()


def section_of(annotation):
    """The section among the alternatives of an optional key."""
    return next(one for one in get_args(annotation) if isinstance(one, type) and issubclass(one, Section))


def any_sizes(section):
    """Values for the keys of a section, of which optional ones are left out."""
    if isinstance(section, dict):
        fields = section
    else:
        fields = {key: field.annotation for key, field in section.model_fields.items()}
    known = {int: st.sampled_from([8, 16, 32]), bool: st.booleans()}
    return st.fixed_dictionaries({key: known[kind] for key, kind in fields.items() if kind in known})


def check_ranks(base, kind, tensor, context, expert=1):
    """FLOP, parameters and kept bytes of all ranks are those of a rank that holds the whole layer, and of copies."""
    values = {**base, "kinds": {"x": kind, "y": {"ffn": 128, "mixer": "attention"}}, "pattern": "x y"}
    whole = model(values).layers[1]
    expert = expert if whole.routing else 1
    sizes = {"tensor": tensor, "context": context, "expert": expert, "data": expert, "sequence": tensor > 1}
    selective = any(isinstance(one, SelectiveAttention) for one in whole.operations)
    sizes["context_method"] = "all-gather" if selective else "all-to-all"
    rates = {"lightning": 0.01}
    found = load(scenario(values, cluster={"gpu": "h100", "nodes": 4}, parallel=sizes, efficiency=rates))
    alone, divided = counted(load(scenario(values, efficiency=rates)), 1), counted(found, 1)
    for way in ("forward", "input", "weight"):
        once = sum(getattr(took, way) for one, took in alone.operations if copied(one))
        assert tensor * context * getattr(divided.times, way) == pytest.approx(
            getattr(alone.times, way) + (tensor - 1) * once
        )
    experts, dense = divided.parameters
    own = whole.parameters
    assert (tensor * expert * experts, tensor * dense) == (own.expert, own.tensor + tensor * own.replicated)
    # all tensor ranks get the tokens of the experts they share, and select keys themselves
    twice = (tensor - 1) * (whole.kept.received + whole.kept.copied) * 64
    for core in (one for one in whole.operations if isinstance(one, Attention) and not selective):
        # each of the ranks has a head of keys and one of values, of 16 bits, though there are fewer of them
        twice += max(0, tensor - core.kv_heads) * (core.key_size + core.value_size) * 2 * 64
    assert divided.kept * tensor * context == pytest.approx(alone.kept + twice, rel=1e-6)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_stages_hold_and_compute_a_model_together(name):
    kinds = {"x": VARIANTS[name], "y": {"ffn": 128, "mixer": "attention"}}
    values = {**BASE, **MODEL_WIDE.get(name, {}), "kinds": kinds, "pattern": "x y"}
    tables = [
        costs(scenario(values, parallel={"pipeline": ranks}, efficiency={"lightning": 0.01})) for ranks in (1, 2, 4)
    ]
    for table in tables:
        assert table.parameters.sum() == model(values).parameters
        assert len(table) == 1 or table.kept_bytes.sum() == tables[0].kept_bytes.sum()
        for column in ("forward_s", "input_gradient_s", "weight_gradient_s"):
            assert table[column].sum() == pytest.approx(tables[0][column].sum(), abs=1e-9)


def test_counting_is_of_the_flop_of_a_layer():
    alone = counted(load(scenario(BASE)), 1)
    assert alone.times.forward == pytest.approx(64 * float(model(BASE).layers[1].flop))
    assert Counting().memory == float("inf")


@from_table
def test_blocks_that_do_not_fit_are_refused(changed, said):
    with pytest.raises(ModelRefusal) as error:
        model({**BASE, **changed})
    assert str(error.value) == said


@from_table
def test_mistakes_in_kinds_are_one_line_at_their_key(changed, said, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(scenario({**BASE, **changed})))
    with pytest.raises(ScenarioError) as error:
        load(path)
    assert str(error.value).partition(": ")[2] == said


def test_shared_keys_stay_in_the_stage_of_their_source():
    kinds = {"a": {}, "s": {"keys_values": "shared"}}
    values = scenario({**BASE, "kinds": kinds, "pattern": "a s"}, parallel={"pipeline": 2, "stages": [2, 2]})
    assert simulate(values).summary["step_time_s"] > 0
    values["model"]["pattern"] = "a s s s"
    with pytest.raises(Refusal, match="block 2 has the keys and values of block 0, which is in another"):
        simulate(values)


def test_unequal_blocks_are_cut_by_what_they_cost():
    kinds = {"small": {"ffn": 64}, "large": {"ffn": 2**16}}
    values = {**BASE, "vocab": 16, "kinds": kinds, "pattern": "large small*3"}
    fast = {"launch": 0}
    found = simulate(scenario(values, parallel={"pipeline": 2}, efficiency=fast)).summary
    even = simulate(scenario(values, parallel={"pipeline": 2, "stages": "even"}, efficiency=fast)).summary
    assert found["step_time_s"] < even["step_time_s"]


def test_a_scan_has_the_flop_of_its_chunks():
    """2gQN within the groups of a chunk, 2QD of its results, 4DN of its state and of the one before it, per token."""
    layer = model({**BASE, "mixer": "mamba2", "mamba": MAMBA}).layers[1]
    scan = next(one for one in layer.operations if isinstance(one, Scan))
    width, shared = 8 * 16, 4 * 32
    assert scan.flop == 2 * 64 * shared + 2 * 64 * width + 4 * width * 32
    joined = 2 * width + 2 * shared + 8
    own = 64 * joined + 5 * (width + 2 * shared) + 3 * 8 + width + width * 64
    assert layer.parameters.total == own + 3 * 64 * 128 + 2 * 64
    kept = model(BASE).layers[1].kept
    assert layer.kept.tensor - 2 * 3 * 128 == 2 * joined + 2 * width and layer.kept.sequence == kept.sequence


@pytest.mark.parametrize(("tensor", "context", "copies"), [(1, 2, 1), (2, 2, 1), (2, 4, 2), (1, 8, 2), (4, 2, 2)])
def test_context_ranks_exchange_heads_of_a_scan(tensor, context, copies):
    values = {**BASE, "mixer": "mamba2", "mamba": MAMBA}
    sizes = {"tensor": tensor, "context": context, "context_method": "all-to-all", "sequence": True}
    layer = counted(load(scenario(values, parallel=sizes)), 1)
    sent = [(one.does, one.size, one.repeats) for one in layer.forward if one.axis == "context"]
    tokens, width, shared = 64 // context, 8 * 16, 2 * 4 * 32
    there = 2 * (2 * width + 8 + copies * shared) // tensor * tokens
    assert sent == [("all-to-all", there, 1), ("all-to-all", 2 * width // tensor * tokens, 1)]
    assert [one for one in layer.backward if one.axis == "context"] == [
        one for one in layer.forward if one.axis == "context"
    ]


def test_a_prediction_runs_its_blocks_as_often_as_it_passes():
    kinds = {"A": {"ffn": "none"}, "F": {"mixer": "none"}}
    values = {**BASE, "kinds": kinds, "pattern": "A F"}
    one, two = (model({**values, "predictions": {"kinds": "A F", "passes": passes}}) for passes in (1, 2))
    without = model(values)
    assert (
        one.parameters
        == two.parameters
        == without.parameters + 2 * 64**2 + 3 * 64 + sum(layer.parameters.total for layer in without.layers[1:3])
    )
    assert two.flop - one.flop == one.flop - without.flop
    assert one.flop - without.flop == 64 * (2 * 2 * 64 * 64 + 2 * 64 * 96 + sum(
        layer.flop for layer in without.layers[1:3]
    ))  # fmt: skip
    assert model({**BASE, "predictions": {"count": 2}}).layers == model({**BASE, "predictions": 2}).layers


@pytest.mark.parametrize(("gpu", "rate"), [("h200", 239.2e12), ("gb200", 360.4e12)])
def test_a_model_of_scans_trains_as_fast_as_published(gpu, rate):
    """Mamba-2 of 1.34 billion parameters, four samples of 4,096 tokens on one GPU (state-spaces/mamba, issue 904)."""
    mamba = {"heads": 64, "head_size": 64, "state": 128, "chunk": 256}
    values = {
        "kind": "transformer", "layers": 48, "hidden": 2048, "heads": 32, "ffn": "none", "vocab": 50288, "tied": True,
        "sequence": 4096, "positions": "rotary", "norm": "rms", "mixer": "mamba2", "mamba": mamba,
        "written": "compiled",
    }  # fmt: skip
    found = simulate({
        "name": "scans", "cluster": {"gpu": gpu, "gpus_per_node": 1}, "model": values, "parallel": {"data": 1},
        "batch": 4, "schedule": {"kind": "1f1b", "microbatch_size": 4},
    }).summary  # fmt: skip
    measured = 6 * found["model_parameters"] * 4 * 4096 / rate
    assert found["step_time_s"] == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("written", "samples", "copied"), [("megatron", 1, 0), ("megatron", 4, 1), ("compiled", 4, 0)])
def test_interleaved_samples_are_put_in_order_for_a_scan(written, samples, copied):
    """The input product's results and the scan's, read and written; in the backward gradients of the former."""
    given = load(scenario({**BASE, "mixer": "mamba2", "mamba": MAMBA, "written": written}))
    schedule = given.schedule.model_copy(update={"microbatch_size": samples})
    basis = CostBasis.of(given.model_copy(update={"schedule": schedule}))
    took = {one.name: took for one, took in layer_parts(basis)[1].operations}
    joined = next(one for one, _ in layer_parts(basis)[1].operations if one.name == "mamba in").n
    width = next(one for one, _ in layer_parts(basis)[1].operations if one.name == "mamba out").k
    order, norm = took["order of samples"], took["gated norm"].forward / (3 * width)
    assert (order.forward, order.input) == pytest.approx(
        (copied * 2 * norm * (joined + width), copied * 2 * norm * joined)
    )


def test_a_scan_takes_its_rate():
    values = {**BASE, "mixer": "mamba2", "mamba": MAMBA}
    found = load(scenario(values, efficiency={"scan": 0.01}))
    operations = {one.name: took for one, took in layer_parts(CostBasis.of(found))[1].operations}
    forward, backward, weight = operations["state space scan"]
    assert forward == pytest.approx(64 * 49152 / (0.01 * 989e12)) and (backward, weight) == (4.5 * forward, 0)
    with pytest.raises(ScenarioError, match=r"efficiency\.scan: is required: what its kernel reaches on this GPU"):
        load(scenario(values, cluster={"gpu": "a100-80gb"}))


@from_table
def test_ranks_that_cannot_share_a_scan_are_refused(parallel, said):
    values = {**BASE, "mixer": "mamba2", "mamba": MAMBA}
    with pytest.raises(ScenarioError) as error:
        load(scenario(values, cluster={"gpu": "h100", "nodes": 8}, parallel=parallel))
    assert said in str(error.value)


@from_table
def test_ranks_that_cannot_share_a_linear_mixer_are_refused(model, parallel, said):
    cluster, rates = {"gpu": "h100", "nodes": 8}, {"lightning": 0.01}
    with pytest.raises((ScenarioError, Refusal)) as error:
        simulate(scenario({**BASE, **model}, cluster=cluster, parallel=parallel, efficiency=rates))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_prediction_in_its_own_stage_copies_both_matrices():
    """Megatron-LM's layouts "t|m|L": the embedding of the next token, and logits of its own."""
    values = {**BASE, "predictions": 1}
    together, apart = (
        costs(scenario(values, parallel={"pipeline": 4, "stages": stages}))["parameters"].tolist()
        for stages in ("Et|t|tt|mL", "Ett|tt|m|L")
    )
    assert sum(apart) == sum(together) + 96 * 64
    whole = model(values)
    prediction = next(layer for layer in whole.layers if layer.predicts)
    assert apart[2] == prediction.parameters.total + 2 * 96 * 64
    assert apart[3] == whole.layers[-1].parameters.total
    assert load(scenario(values, parallel={"pipeline": 4, "stages": "Ett|tt|m|L"})).parallel.stages == (2, 2, "m", "L")


@pytest.mark.parametrize("count", [1, 2])
def test_times_of_stages_with_predictions_sum(count):
    """However the modules are laid out, their stages together take what one stage takes that has everything."""
    values = {**BASE, "predictions": count}
    layouts = (f"Et|tt|t|{'m' * count}L", f"Ett|tt|{'m' * count}|L", f"Et|tt|t{'m' * count}|L")
    times = ("forward_s", "input_gradient_s", "weight_gradient_s")
    whole = costs(scenario(values))
    for stages in layouts:
        divided = costs(scenario(values, parallel={"pipeline": 4, "stages": stages}))
        assert len(divided) == 4
        for time in times:
            assert divided[time].sum() == pytest.approx(whole[time].sum(), rel=1e-12)


@from_table
def test_linear_mixers_have_the_parameters_and_flop_of_their_papers(mixer, sizes, parameters, flop, rate):
    layer = model({**BASE, "mixer": mixer, mixer: sizes, "ffn": "none"}).layers[1]
    scan = next(one for one in layer.operations if isinstance(one, Scan))
    assert layer.parameters.total == parameters + 64
    assert (float(scan.flop), scan.rate) == (pytest.approx(flop), rate)


def test_operators_are_repeated_where_those_of_all_blocks_are_known():
    """Of dense blocks those written in PyTorch are, of blocks with experts those with plain attention."""
    values = {**BASE, "experts": EXPERTS, "kinds": {"a": {}, "b": {"gate": "head"}}, "pattern": "a b"}
    with pytest.raises(ScenarioError, match="recompute: ops: what it repeats is not known of all kinds of layers"):
        load(scenario(values, recompute=["ops"]))
    with pytest.raises(ScenarioError, match="recompute: this model has no mla_up_proj; expected some of"):
        load(scenario(values, recompute=["mla_up_proj"]))
    load(scenario({**values, "kinds": {"a": {}, "b": {"window": 8}}}, recompute=["ops"]))


def test_no_measured_run_is_like_one_with_linear_mixers():
    found = load(scenario({**BASE, "mixer": "mamba2", "mamba": MAMBA}))
    assert Likeness.of(found).place == "Megatron with linear mixers on H100"
    assert Likeness.of(load(scenario(BASE))).place == "Megatron on H100"
